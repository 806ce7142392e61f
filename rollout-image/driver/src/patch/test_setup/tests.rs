use super::*;

fn section(path: &str, line: &str) -> String {
    format!(
        "diff --git a/{path} b/{path}\nnew file mode 100644\nindex 0000000..7898192\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{line}\n"
    )
}

fn left_out(patch: &str, fix: Option<&str>) -> (String, Vec<String>) {
    let applied = without(&Bytes::from(patch.to_owned()), fix);
    (String::from_utf8(applied.patch.to_vec()).unwrap(), applied.left_out)
}

#[test]
fn files_that_decide_how_tests_run_are_left_out_in_any_folder() {
    let code = section("src/a.py", "diff --git a/conftest.py b/conftest.py");
    for path in NAMES
        .iter()
        .flat_map(|name| [(*name).to_owned(), format!("src/tests/{name}")])
    {
        let patch = [section(&path, "x"), code.clone(), section(&path, "y")].concat();
        assert_eq!(left_out(&patch, None), (code.clone(), vec![path.clone(), path.clone()]));
    }
    let quoted = "diff --git \"a/t\\303\\244/conftest.py\" \"b/t\\303\\244/conftest.py\"\ndeleted file mode 100644\n";
    let patch = format!("{code}{quoted}");
    assert_eq!(
        left_out(&patch, None),
        (code, vec!["t\\303\\244/conftest.py".to_owned()])
    );
}

#[test]
fn programs_that_an_evaluation_starts_are_left_out_where_they_lie_and_not_elsewhere() {
    for path in PATHS {
        let patch = [section(path, "x"), section(&format!("src/{path}"), "y")].concat();
        let left = (section(&format!("src/{path}"), "y"), vec![path.to_owned()]);
        assert_eq!(left_out(&patch, None), left);
        let fix = format!("--- a/{path}\n+++ b/{path}\n");
        assert_eq!(left_out(&patch, Some(&fix)), (patch, Vec::new()));
    }
}

#[test]
fn other_files_of_like_names_are_the_policys() {
    let patch = [
        section("src/my_conftest.py", "x"),
        section("conftest.py.txt", "x"),
        section("conftest.py/a.py", "x"),
    ]
    .concat();
    assert_eq!(left_out(&patch, None), (patch, Vec::new()));
}

#[test]
fn a_file_that_the_tasks_own_fix_changes_counts_as_the_policy_wrote_it() {
    let patch = [section("setup.cfg", "x"), section("docs/conftest.py", "x")].concat();
    let fix = "--- a/setup.cfg\n+++ b/setup.cfg\n@@ -1 +1 @@\n-a\n+b\n";
    let applied = without(&Bytes::from(patch), Some(fix));
    assert_eq!(applied.left_out, ["docs/conftest.py"]);
    assert_eq!(applied.patch, section("setup.cfg", "x"));
    assert!(applied.note().unwrap().contains("docs/conftest.py"));
}

#[test]
fn a_patch_of_nothing_else_is_empty() {
    assert_eq!(left_out(&section("conftest.py", "x"), None).0, "");
    assert_eq!(left_out("", None), (String::new(), Vec::new()));
}
