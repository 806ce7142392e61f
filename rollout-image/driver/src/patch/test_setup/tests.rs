use super::*;
use grpo_contracts::test_setup::{NAMES, PATHS};
use serde_json::json;

fn section(path: &str, line: &str) -> String {
    format!(
        "diff --git a/{path} b/{path}\nnew file mode 100644\nindex 0000000..7898192\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{line}\n"
    )
}

/// Of a task in `/testbed` that hides a folder, a file and a name with unusual bytes.
fn hidden() -> Hidden {
    let paths = [
        "/r2e_tests",
        "/testbed/tests/secret",
        "/testbed/run_tests.sh",
        "/testbed/t\u{e4}sts",
    ];
    Hidden::of("/testbed", &paths.map(str::to_owned))
}

fn paths(applied: &Applied) -> Vec<String> {
    applied.left_out.iter().map(|(path, _)| path.clone()).collect()
}

fn left_out(patch: &str, fix: Option<&str>) -> (String, Vec<String>) {
    let applied = without(
        &Bytes::from(patch.to_owned()),
        &json!({"patch": fix}),
        &Hidden::default(),
    );
    (String::from_utf8(applied.patch.to_vec()).unwrap(), paths(&applied))
}

#[test]
fn each_cause_has_a_note_of_its_own() {
    let foreign = section("src/c.py", "x").replace("+++ b/src/c.py", "+++ b/src/d.py");
    let patch = [
        section("conftest.py", "x"),
        section("tests/test_new.py", "x"),
        foreign,
        section("pytest.ini", "x"),
        section("run_tests.sh", "x"),
        section("src/a.py", "x"),
    ];
    let script = format!("git apply - <<'EOF'\n{}EOF\n", section("tests/test_new.py", "y"));
    let applied = without(&Bytes::from(patch.concat()), &json!({"eval_script": script}), &hidden());
    assert_eq!(
        applied.notes(),
        [
            "these files are hidden from the policy, so the task's own are used: run_tests.sh",
            "these files decide how tests run, so the task's own are used: conftest.py, pytest.ini",
            "these files are of the task's test patch, so the task's own are used: tests/test_new.py",
            "the changes of these files are not as git writes them, so the task's own are used: src/c.py",
        ]
    );
    let plain = without(&Bytes::from(section("src/a.py", "x")), &json!({}), &hidden());
    assert_eq!(plain.notes(), [""; 0]);
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
fn files_that_python_and_test_programs_load_automatically_are_left_out() {
    for path in [
        "sitecustomize.py",
        "src/usercustomize/__init__.py",
        "sitecustomize.cpython-312-x86_64-linux-gnu.so",
        "tests/__pycache__/test_a.cpython-312-pytest-8.4.2.pyc",
        "a.pyc",
        "mine.egg-info/entry_points.txt",
        "src/mine-1.0.dist-info/entry_points.txt",
        "pytest/__init__.py",
        "web/jest.config.mjs",
        ".mocharc.json",
        "phpunit.xml.dist",
    ] {
        let code = section("src/a.py", "x");
        let patch = [section(path, "x"), code.clone()].concat();
        assert_eq!(left_out(&patch, None), (code, vec![path.to_owned()]));
    }
}

#[test]
fn files_of_the_test_patch_are_left_out() {
    let tests = [
        section("tests/test_new.py", "x"),
        section("tests/a b.py", "x"),
        "diff --git a/tests/old.py b/tests/renamed.py\nrename from tests/old.py\n".to_owned(),
        "diff --git \"a/tests/t\\303\\244.py\" \"b/tests/t\\303\\244.py\"\n".to_owned(),
    ]
    .concat();
    let row = json!({
        "patch": "--- /dev/null\n+++ b/tests/test_new.py\n",
        "eval_script": format!("cd /testbed\ngit apply -v - <<'EOF'\n{tests}EOF\npytest\n"),
    });
    let theirs =
        ["tests/test_new.py", "tests/a b.py", "tests/old.py", "tests/renamed.py"].map(|it| section(it, "mine"));
    let quoted = "diff --git \"a/tests/t\\303\\244.py\" \"b/tests/t\\303\\244.py\"\ndeleted file mode 100644\n";
    let own = section("tests/test_mine.py", "x");
    let patch = format!("{}{quoted}{own}", theirs.concat());
    let applied = without(&Bytes::from(patch), &row, &Hidden::default());
    assert_eq!(applied.patch, own);
    assert_eq!(applied.left_out.len(), 5, "{:?}", applied.left_out);
}

/// Such as a module that holds its own tests.
#[test]
fn a_file_that_fix_and_test_patch_both_change_counts_as_the_policy_wrote_it() {
    let changes = "diff --git a/src/lib.rs b/src/lib.rs\n--- a/src/lib.rs\n+++ b/src/lib.rs\n@@ -9 +9 @@\n-a\n+b\n";
    let script = format!("git apply <<'EOF'\n{changes}{}EOF\n", section("tests/new.rs", "x"));
    let own = changes.replace("-a", "-c");
    let patch = Bytes::from([own.clone(), section("tests/new.rs", "mine")].concat());
    let with_fix = json!({"patch": changes, "eval_script": script});
    let none = Hidden::default();
    assert_eq!(paths(&without(&patch, &with_fix, &none)), ["tests/new.rs"]);
    assert_eq!(without(&patch, &with_fix, &none).patch, own);
    let without_fix = json!({"eval_script": script});
    assert_eq!(
        paths(&without(&patch, &without_fix, &none)),
        ["src/lib.rs", "tests/new.rs"]
    );
}

#[test]
fn changes_of_hidden_files_are_left_out_in_every_form_also_if_the_fix_has_them() {
    let kept = [
        section("src/a.py", "x"),
        section("tests/secrets.py", "x"),
        section("tests/test_own.py", "x"),
        section("src/run_tests.sh", "x"),
    ]
    .concat();
    let moved = "diff --git a/tests/secret/test_a.py b/tests/secret/test_a.py\ndeleted file mode 100644\nindex 1..0\n--- a/tests/secret/test_a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n";
    let quoted = "\"a/t\\303\\244sts/b.py\" \"b/t\\303\\244sts/b.py\"";
    for (change, path) in [
        (section("run_tests.sh", "x"), "run_tests.sh"),
        (section("tests/secret/test_a.py", "x"), "tests/secret/test_a.py"),
        (section("tests/secret/conftest.py", "x"), "tests/secret/conftest.py"),
        (moved.to_owned(), "tests/secret/test_a.py"),
        (
            "diff --git a/run_tests.sh b/run_tests.sh\nold mode 100755\nnew mode 100644\n".to_owned(),
            "run_tests.sh",
        ),
        (
            "diff --git a/tests/secret/x b/tests/secret/x\nnew file mode 100644\nindex 0..2\nGIT binary patch\nliteral 4\nLcmZQzWMXDv000UK\n\n".to_owned(),
            "tests/secret/x",
        ),
        (
            format!("diff --git {quoted}\nnew file mode 100644\nindex 0000000..e69de29\n"),
            "t\\303\\244sts/b.py",
        ),
        // A link in place of a folder with hidden files.
        (
            "diff --git a/tests b/tests\nnew file mode 120000\nindex 0..3\n--- /dev/null\n+++ b/tests\n@@ -0,0 +1 @@\n+mine\n\\ No newline at end of file\n".to_owned(),
            "tests",
        ),
    ] {
        let patch = Bytes::from([change.as_str(), &kept].concat());
        let fix = format!("--- a/{path}\n+++ b/{path}\n");
        let applied = without(&patch, &json!({"patch": fix}), &hidden());
        assert_eq!(applied.patch, kept, "{change}");
        assert_eq!(applied.left_out, [(path.to_owned(), Cause::Hidden)]);
        // The same patch of a task that hides nothing.
        let applied = without(&patch, &json!({"patch": fix}), &Hidden::default());
        assert_eq!((applied.patch, applied.left_out), (patch, Vec::new()));
    }
}

/// The command that takes a patch has renames written as a deletion and a new file. A policy may send another form.
#[test]
fn renames_from_and_to_hidden_names_are_left_out() {
    let code = section("src/a.py", "x");
    let gone = "diff --git a/src/b.py b/src/b.py\ndeleted file mode 100644\nindex 1..0\n--- a/src/b.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n";
    let patch = [gone, &section("tests/secret/b.py", "x"), &code].concat();
    let applied = without(&Bytes::from(patch), &json!({}), &hidden());
    assert_eq!(applied.patch, [gone, &code].concat());
    assert_eq!(paths(&applied), ["tests/secret/b.py"]);
    for (old, new) in [
        ("src/b.py", "run_tests.sh"),
        ("run_tests.sh", "src/b.py"),
        ("ab/test.sh", "run_tests.sh"),
    ] {
        let renamed =
            format!("diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n");
        let applied = without(&Bytes::from([renamed.as_str(), &code].concat()), &json!({}), &hidden());
        assert_eq!(
            (applied.patch, applied.left_out.len()),
            (Bytes::from(code.clone()), 1),
            "{renamed}"
        );
    }
}

/// A policy that replaced git sends them. What applies them would write to a file that their first line does not name.
#[test]
fn sections_that_git_would_not_write_are_left_out() {
    let code = section("src/a.py", "x");
    let setup = "--- a/conftest.py\n+++ b/conftest.py\n@@ -1 +1 @@\n-a\n+b\n";
    let begins = "diff --git a/b.py b/b.py\n";
    for forged in [
        format!("{begins}{setup}"),
        format!("{begins}--- a/b.py\n+++ b/b.py\n@@ -1 +1 @@\n-a\n+b\n{setup}"),
        format!("{begins}--- a/b.py\n+++ b/b.py\n@@ -1,9 +1,9 @@\n-a\n+b\n{setup}"),
        format!("{begins}rename from conftest.py\nrename to b.py\n"),
        format!("{begins}copy from b.py\ncopy to conftest.py\n"),
        format!("diff --git a/b.py b/conftest.py\n{setup}"),
        "diff --git \"a/conf\\164est.py\" \"b/conf\\164est.py\"\nold mode 100644\nnew mode 100755\n".to_owned(),
        section("bin//test", "x"),
        section("bin/./test", "x"),
        section(".git/hooks/post-checkout", "x"),
    ] {
        let (kept, left) = left_out(&format!("{code}{forged}"), None);
        assert_eq!((kept.as_str(), left.len()), (code.as_str(), 1), "{forged}");
    }
    assert_eq!(left_out(&format!("{setup}{code}"), None), (code, Vec::new()));
}

#[test]
fn sections_of_every_kind_that_git_writes_are_applied() {
    let sections = [
        "diff --git a/a.py b/a.py\nold mode 100644\nnew mode 100755\n",
        "diff --git a/b.py b/b.py\nnew file mode 100644\nindex 0000000..e69de29\n",
        "diff --git a/c b/c\ndeleted file mode 120000\nindex 1..0\n--- a/c\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\\ No newline at end of file\n",
        "diff --git a/d e b/d e\nindex 1..2 100644\n--- a/d e\t\n+++ b/d e\t\n@@ -1,3 +1,2 @@ def f(x):\n \n--- a/conftest.py\n \r\n@@ -9 +8 @@\n-@@ -1 +1 @@\n\\ No newline at end of file\n+@@ -1 +1 @@\n",
        "diff --git \"a/\\303\\244\\t\\\"\" \"b/\\303\\244\\t\\\"\"\nindex 1..2 100644\n--- \"a/\\303\\244\\t\\\"\"\n+++ \"b/\\303\\244\\t\\\"\"\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/f b/f\nindex 1..2 100644\nGIT binary patch\nliteral 4\nLcmZQzWMXDv000UK\n\ndelta 3\nKcmZQzWMT#Y01f~L\n\n",
        "diff --git a/g b/g\nindex 1..2 160000\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-Subproject commit 1\n+Subproject commit 2\n",
    ];
    for section in sections {
        assert_eq!(left_out(section, None), (section.to_owned(), Vec::new()));
    }
    assert_eq!(left_out(&sections.concat(), None), (sections.concat(), Vec::new()));
}

#[test]
fn other_files_of_like_names_are_the_policys() {
    let patch = [
        section("src/my_conftest.py", "x"),
        section("conftest.py.txt", "x"),
        section("conftest.py/a.py", "x"),
        section("src/pytest.py", "x"),
        section("src/mysitecustomize.py", "x"),
        section("jest.configs/a.js", "x"),
    ]
    .concat();
    assert_eq!(left_out(&patch, None), (patch, Vec::new()));
}

#[test]
fn a_file_that_the_tasks_own_fix_changes_counts_as_the_policy_wrote_it() {
    let patch = [section("setup.cfg", "x"), section("docs/conftest.py", "x")].concat();
    let fix = "--- a/setup.cfg\n+++ b/setup.cfg\n@@ -1 +1 @@\n-a\n+b\n";
    let applied = without(&Bytes::from(patch), &json!({"patch": fix}), &Hidden::default());
    assert_eq!(paths(&applied), ["docs/conftest.py"]);
    assert_eq!(applied.patch, section("setup.cfg", "x"));
    assert!(applied.notes()[0].contains("docs/conftest.py"));
}

#[test]
fn a_patch_of_nothing_else_is_empty() {
    assert_eq!(left_out(&section("conftest.py", "x"), None).0, "");
    assert_eq!(left_out("", None), (String::new(), Vec::new()));
}

#[test]
fn a_note_names_few_of_many_paths_and_little_of_a_long_one() {
    let long = format!("{}/conftest.py", "\u{e4}".repeat(5000));
    let many: Vec<String> = (0..50).map(|at| section(&format!("{at}/conftest.py"), "x")).collect();
    let patch = section(&long, "x") + &many.concat();
    let applied = without(&Bytes::from(patch), &json!({}), &Hidden::default());
    let [note] = &applied.notes()[..] else {
        panic!("one cause")
    };
    assert!(note.ends_with("18/conftest.py, and 31 more"), "{note}");
    assert!(note.len() < 1500, "{}", note.len());
}
