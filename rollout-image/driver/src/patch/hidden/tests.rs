use super::*;

fn hidden(paths: &[&str]) -> Hidden {
    let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    Hidden::of("/work/repo", &paths)
}

#[test]
fn a_hidden_path_covers_itself_what_is_below_it_and_what_takes_the_place_of_its_folders() {
    let all = hidden(&["/work/repo/tests/secret", "/work/repo//./run.sh", "docs/../lib/t.py/"]);
    for (path, wanted) in [
        ("tests/secret", true),
        ("tests/secret/deep/test_a.py", true),
        ("tests", true),
        ("run.sh", true),
        ("lib/t.py", true),
        ("lib", true),
        ("tests/secrets", false),
        ("tests/secret.py", false),
        ("tests/other.py", false),
        ("src/tests/secret", false),
        ("repo/tests/secret", false),
        ("docs", false),
        ("", false),
    ] {
        assert_eq!(all.covers(path, false), wanted, "{path:?}");
    }
}

#[test]
fn paths_outside_of_the_repository_and_the_repository_itself_cover_nothing() {
    let outside = hidden(&[
        "/r2e_tests",
        "/work/repository/a",
        "/work",
        "/work/repo",
        "/work/repo/",
        "../b",
        "c/../../d",
        "..",
        "",
        ".",
    ]);
    for path in ["r2e_tests", "a", "b", "c", "d", "repo", "work/repo"] {
        assert!(!outside.covers(path, false), "{path}");
    }
    assert!(!Hidden::default().covers("a", false));
}

#[test]
fn a_relative_path_counts_from_the_repository_and_an_empty_one_names_nothing() {
    let paths = ["tests/secret", "../b", "/r2e_tests", ""].map(str::to_owned);
    assert_eq!(
        absolute("/work/repo", &paths),
        ["/work/repo/tests/secret", "/work/repo/../b", "/r2e_tests", ""]
    );
}

#[test]
fn names_in_gits_quotes_are_compared_by_their_bytes() {
    let all = hidden(&["/work/repo/t\u{e4}sts", "a\tb\"c\\d\n"]);
    assert!(all.covers(r"t\303\244sts/test_a.py", true));
    assert!(all.covers("t\u{e4}sts/test_a.py", false));
    assert!(all.covers(r#"a\tb\"c\\d\n"#, true));
    // Without quotes a backslash is a byte of the name.
    assert!(!all.covers(r"t\303\244sts/test_a.py", false));
    assert!(!all.covers(r"t\303\245sts/test_a.py", true));
    // An escape that is cut off hides nothing, and is no reason to end.
    assert!(!all.covers(r"x\30", true));
    assert!(!all.covers("x\\", true));
}
