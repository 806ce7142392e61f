//! Rows that name their test commands and log parser: SWE-rebench-V2 and SWE-bench-Live.

use super::samples::{TEST_PATCH, live, rebench_v2, with};
use super::{complete, load, worker};
use grpo_crds::grpo_run::RowFormat;
use grpo_driver::grader_worker::GraderWorker;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::process::Command;

/// Whether the log is judged, and whether it resolves the task.
async fn judge(worker: &GraderWorker, row: &Map<String, Value>, log: &str) -> (bool, bool) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log");
    std::fs::write(&file, log).unwrap();
    let report = worker
        .judge("a", &Value::Object(row.clone()), "diff", &file)
        .await
        .unwrap();
    (report.status == "Judged", report.resolved)
}

/// The log of an evaluation with this output of the tests.
fn log_of(output: &str) -> String {
    format!(
        "+ : '>>>>> Start Test Output'\n{output}\n+ SWEBENCH_TEST_EXIT_CODE=0\n+ : '>>>>> End Test Output'\n\
         >>>>> Test Exit Code: 0\n"
    )
}

async fn completed(parser: &str, first: &str, second: &str) -> Map<String, Value> {
    let lists = json!({"FAIL_TO_PASS": [first], "PASS_TO_PASS": [second]});
    complete("SweRebenchV2", &with(&rebench_v2(parser), lists))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_row_of_version_2_is_a_task_in_its_own_image_and_folder() {
    let set = load(&[rebench_v2("parse_log_gotest")], RowFormat::Auto).await;
    let task = &set.tasks[0];
    assert_eq!(task.image, "docker.io/swerebenchv2/owner-name:1-abc");
    assert_eq!(task.environment.directory, "/name");
    assert_eq!(task.environment.activation, None);
    assert!(
        task.environment.setup.contains("cd /name\n"),
        "{}",
        task.environment.setup
    );
    let shown = format!("{:?}", task.variables());
    for secret in ["gold", "the answer", "diff --git", "TestA", "go mod download"] {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
    assert!(shown.contains("interface"), "{shown}");
}

#[tokio::test]
async fn a_row_of_live_is_a_task_in_the_publishers_image_without_an_environment() {
    let set = load(&[live()], RowFormat::Auto).await;
    let task = &set.tasks[0];
    assert_eq!(
        task.image,
        "docker.io/starryzhang/sweb.eval.x86_64.owner_1776_name-1:latest"
    );
    assert_eq!(task.environment.directory, "/testbed");
    assert_eq!(task.environment.activation, None);
    let script = task.row["eval_script"].as_str().unwrap();
    let tests =
        ": '>>>>> Start Test Output'\npytest -rA\n: '>>>>> End Test Output'\ngit checkout abc tests/test_a.py\n";
    assert!(script.ends_with(tests), "{script}");
    assert!(!format!("{:?}", task.variables()).contains("the answer"));
}

#[tokio::test]
async fn a_row_that_lacks_a_column_or_names_an_unknown_parser_names_the_field() {
    let config = |config: Value| with(&rebench_v2("parse_log_gotest"), json!({"install_config": config}));
    let v2 = |added: Value| with(&rebench_v2("parse_log_gotest"), added);
    let parser = "parse_log_gotest";
    for (format, row, field, cause) in [
        (
            "SweRebenchV2",
            v2(json!({"install_config": null})),
            "install_config",
            "missing",
        ),
        ("SweRebenchV2", config(json!([])), "install_config", "not an object"),
        (
            "SweRebenchV2",
            config(json!({"log_parser": parser})),
            "install_config.test_cmd",
            "missing",
        ),
        (
            "SweRebenchV2",
            config(json!({"log_parser": parser, "test_cmd": ["", " "]})),
            "install_config.test_cmd",
            "no command",
        ),
        (
            "SweRebenchV2",
            config(json!({"log_parser": parser, "test_cmd": [1]})),
            "install_config.test_cmd",
            "neither",
        ),
        (
            "SweRebenchV2",
            config(json!({"test_cmd": "x"})),
            "install_config.log_parser",
            "None",
        ),
        (
            "SweRebenchV2",
            rebench_v2("parse_log_of_nobody"),
            "install_config.log_parser",
            "parse_log_of_nobody",
        ),
        ("SweRebenchV2", v2(json!({"image_name": null})), "image_name", "missing"),
        ("SweRebenchV2", v2(json!({"repo": "name"})), "repo", "owner/name"),
        ("SweRebenchV2", v2(json!({"repo": "owner/.."})), "repo", "owner/name"),
        ("SweRebenchV2", v2(json!({"base_commit": ""})), "base_commit", "missing"),
        ("SweRebenchV2", v2(json!({"test_patch": null})), "test_patch", "missing"),
        (
            "SweRebenchV2",
            v2(json!({"test_patch": "EOF_114329324912\n"})),
            "test_patch",
            "EOF_114329324912",
        ),
        (
            "SweRebenchV2",
            v2(json!({"FAIL_TO_PASS": null})),
            "FAIL_TO_PASS",
            "missing",
        ),
        (
            "SweBenchLive",
            with(&live(), json!({"test_cmds": null})),
            "test_cmds",
            "missing",
        ),
        (
            "SweBenchLive",
            with(&live(), json!({"test_cmds": []})),
            "test_cmds",
            "no command",
        ),
        (
            "SweBenchLive",
            with(&live(), json!({"log_parser": "def parser(log):\n    return {}\n"})),
            "log_parser",
            "SWE-bench-Live/MultiLang",
        ),
        (
            "SweBenchLive",
            with(&live(), json!({"test_patch": ""})),
            "test_patch",
            "missing",
        ),
    ] {
        let (refused, what) = complete(format, &row).await.unwrap_err();
        assert!(refused == field && what.contains(cause), "{format}: {refused}: {what}");
    }
}

/// A parser, a log in which both tests are PASSED, and one in which the second is not.
const LOGS: [(&str, &str, &str); 27] = [
    (
        "parse_log_pytest",
        "PASSED t.py::a\nPASSED t.py::b",
        "PASSED t.py::a\nFAILED t.py::b - AssertionError",
    ),
    (
        "parse_log_pytest",
        "FAILED t.py::c - x\nPASSED t.py::a\nPASSED t.py::b",
        "PASSED t.py::a\nXFAIL t.py::b",
    ),
    (
        "parse_log_pytest_v2",
        "\x1b[32mPASSED\x1b[0m t.py::a\nt.py::b PASSED",
        "t.py::a PASSED\nt.py::b FAILED",
    ),
    (
        "parse_log_pytest_options",
        "PASSED t.py::a\nPASSED t.py::b",
        "PASSED t.py::a\nSKIPPED t.py::b",
    ),
    (
        "parse_log_gotest",
        "--- PASS: a (0.01s)\n    --- PASS: b (0.00s)",
        "--- PASS: a (0.01s)\n--- SKIP: b (0.00s)",
    ),
    (
        "parse_log_cargo",
        "test a ... ok\ntest b ... ok",
        "test a ... ok\ntest b ... FAILED",
    ),
    ("parse_log_jest", "  ✓ a (5 ms)\n  ✓ b", "  ✓ a (5 ms)\n  ✕ b (2 ms)"),
    ("parse_log_vitest", "✓ a 5ms\n✓ b", "✓ a\n× b"),
    (
        "parse_log_gradle_custom",
        "t.py::a PASSED (0.1s)\nt.py::b PASSED",
        "t.py::a PASSED\n> t.py::b PASSED",
    ),
    (
        "parse_log_junit",
        "<testcase name=\"a\" time=\"1\"/><testcase name=\"b\"></testcase>",
        "<testcase name=\"a\"/>",
    ),
    (
        "parse_log_sbt",
        "noise <testcase time=\"1\" name=\"a\"/>\n<testcase name=\"b\">\n<system-out>x</system-out>\n</testcase>",
        "<testcase name=\"a\"/><testcase name=\"b\"><failure message=\"x\"/></testcase>",
    ),
    ("parse_log_js", "  ✔ a (53ms)\n    ✔ b", "  ✔ a\n  ✔ b\n  1) b:"),
    ("parse_log_js", "✔ b\n✔ a", "✔ a\n✔ b\n[W] 1) b"),
    ("parse_log_js_2", "✔ a\n✔ b 5ms", "✔ a\n- b\n✔ b"),
    ("parse_log_js_4", "✓ [web]: a (5 ms)\n✔ b", "✓ a\n✓ b\n✖ b"),
    ("parse_log_js_4", "○ c\n✓ a\n✓ b", "✓ a\n✓ b\nb (skipped)"),
    (
        "parse_log_ant",
        "[junit] [PASS] a\n[junit] [PASS] b",
        "[junit] [PASS] a\n[junit] [FAIL] b",
    ),
    ("parse_log_cucumber", "a ....\nb ....", "a ....\nb ..F"),
    (
        "parse_log_googletest",
        "[ OK ] a (0 ms)\n[ OK ] b (1 ms)",
        "[ OK ] a (0 ms)\n[  FAILED  ] b (1 ms)",
    ),
    (
        "parse_log_jest_json",
        "[PASSED] a\n[PASSED] b",
        "[PASSED] a\n[FAILED] b",
    ),
    ("parse_log_jq", "PASS: a\nPASS: b", "PASS: a\nFAIL: b"),
    ("parse_log_micropython_test", "pass  a\npass  b", "pass  a\nFAIL  b"),
    (
        "parse_log_minitest",
        "a. = 0.1 s = .\nb. = 0.1 s = .",
        "a. = 0.1 s = .\nb. = 0.1 s = F",
    ),
    (
        "parse_log_redis",
        "[ok]: a (3 ms)\n[ok]: b",
        "[ok]: a\n[err]: b in tests/x.tcl",
    ),
    (
        "parse_log_rspec_transformed_json",
        "a - passed\nb - passed",
        "a - passed\nb - failed",
    ),
    ("parse_log_ruby_unit", "test: a: .: (0.1)\nb: .", "a: .\nb: F"),
    ("parse_log_tap", "ok 1 a\nok 2 b", "ok 1 a\nnot ok 2 b"),
];

#[tokio::test]
async fn each_parser_of_version_2_finds_the_tests_that_pass() {
    let worker = worker();
    for (parser, passed, not_passed) in LOGS {
        let (first, second) = match passed.contains("t.py::a") {
            true => ("t.py::a", "t.py::b"),
            false => ("a", "b"),
        };
        let row = completed(parser, first, second).await;
        assert_eq!(
            judge(&worker, &row, &log_of(passed)).await,
            (true, true),
            "{parser}: {passed}"
        );
        assert_eq!(
            judge(&worker, &row, &log_of(not_passed)).await,
            (true, false),
            "{parser}: {not_passed}"
        );
    }
}

/// The policy's patch can cause such logs, and the empty patch may too: both count as judged.
#[tokio::test]
async fn a_log_without_a_result_does_not_resolve_the_task() {
    let worker = worker();
    for (parser, output) in [
        (
            "parse_log_gotest",
            "./a_test.go:3: undefined: New\nFAIL name [build failed]",
        ),
        (
            "parse_log_doctest",
            "<doctest>\n<TestCase name=\"a\">\nSegmentation fault",
        ),
        (
            "parse_log_karma",
            "Starting browser\n    a\n        b\n       c\n      d\n     e",
        ),
        ("parse_log_phpunit", ""),
    ] {
        let row = completed(parser, "a", "b").await;
        assert_eq!(judge(&worker, &row, &log_of(output)).await, (true, false), "{parser}");
    }
}

#[tokio::test]
async fn durations_in_names_do_not_count_in_rows_or_in_logs() {
    let worker = worker();
    for (listed, printed) in [
        ("a [1.34 ms]", "a [2 s]"),
        ("a (0.5s)", "a"),
        ("a", "a ( 12 ms )"),
        ("a in 29.08 msec", "a in 1 sec"),
    ] {
        let row = completed("parse_log_junit", listed, "b").await;
        let log = log_of(&format!("<testcase name=\"{printed}\"/><testcase name=\"b\"/>"));
        assert_eq!(judge(&worker, &row, &log).await, (true, true), "{listed}: {printed}");
    }
    let row = completed("parse_log_junit", "a 5 ms", "b").await;
    let log = log_of("<testcase name=\"a 6 ms\"/><testcase name=\"b\"/>");
    assert_eq!(judge(&worker, &row, &log).await, (true, false));
}

#[tokio::test]
async fn live_is_judged_by_the_names_and_statuses_of_pytest() {
    let worker = worker();
    let row = complete("SweBenchLive", &live()).await.unwrap();
    for (output, resolved) in [
        ("PASSED t.py::a\nPASSED t.py::b", true),
        ("PASSED t.py::a\nPASSED t.py::b\nFAILED t.py::c - x", true),
        ("PASSED t.py::a\nFAILED t.py::b - x", false),
        ("PASSED t.py::b", false),
        ("SKIPPED t.py::a\nPASSED t.py::b", false),
    ] {
        assert_eq!(
            judge(&worker, &row, &log_of(output)).await,
            (true, resolved),
            "{output}"
        );
    }
}

/// Runs a script in which `folder` stands for the folder of the task's repository. Returns its output.
fn bash(folder: &Path, script: &str) -> String {
    let home = folder.parent().unwrap();
    let out = Command::new("bash")
        .args([
            "-c",
            &format!("exec 2>&1\n{}", script.replace("/name", folder.to_str().unwrap())),
        ])
        .current_dir(folder)
        .env("HOME", home)
        .env("GIT_CONFIG_GLOBAL", home.join(".gitconfig"))
        .envs(
            [
                "GIT_AUTHOR_NAME",
                "GIT_AUTHOR_EMAIL",
                "GIT_COMMITTER_NAME",
                "GIT_COMMITTER_EMAIL",
            ]
            .map(|name| (name, "a")),
        )
        .output()
        .unwrap();
    String::from_utf8(out.stdout).unwrap()
}

/// A repository with two commits; the second is the fix, and a tag and the branch of a clone's origin name it.
fn repository(dir: &Path) -> std::path::PathBuf {
    let folder = dir.join("repository");
    std::fs::create_dir(&folder).unwrap();
    let made = bash(
        &folder,
        "set -e; git init -q -b main; printf '1\\n2\\n3\\n4\\n5\\n6\\n7\\n8\\n9\\n' > lib.rs; git add -A; git commit -qm base; \
         sed -i 's/^1$/fixed/' lib.rs; git commit -qam later; git tag v2; git update-ref refs/remotes/origin/main v2; \
         git symbolic-ref refs/remotes/origin/HEAD refs/remotes/origin/main; git reset -q --hard HEAD~1; echo done",
    );
    assert_eq!(made.trim(), "done");
    folder
}

const TESTS_OF_LIB: &str = "diff --git a/lib.rs b/lib.rs\n--- a/lib.rs\n+++ b/lib.rs\n@@ -7,3 +7,3 @@\n 7\n 8\n-9\n+tested\n\
    diff --git a/tests/new.rs b/tests/new.rs\nnew file mode 100644\n--- /dev/null\n+++ b/tests/new.rs\n@@ -0,0 +1 @@\n+new\n";

/// As in Rust, where a module holds its own tests.
#[tokio::test]
async fn the_test_patch_applies_onto_a_file_that_the_policy_changed_too() {
    let dir = tempfile::tempdir().unwrap();
    let folder = repository(dir.path());
    let commands = json!(["cat lib.rs tests/new.rs", "echo $UNSET", "false", "echo late"]);
    let row = with(
        &rebench_v2("parse_log_jq"),
        json!({"test_patch": TESTS_OF_LIB, "install_config": {"log_parser": "parse_log_jq", "test_cmd": commands}}),
    );
    let row = complete("SweRebenchV2", &row).await.unwrap();
    let script = worker().eval_script("a", &Value::Object(row)).await.unwrap();
    bash(&folder, "sed -i 's/^1$/mine/' lib.rs");
    let output = bash(&folder, &script);
    let (_, tests) = output.split_once(">>>>> Start Test Output'\n").unwrap();
    let (tests, after) = tests.split_once("+ : '>>>>> End Test Output'").unwrap();
    assert!(
        tests.starts_with("mine\n2\n3\n4\n5\n6\n7\n8\ntested\nnew\n\n"),
        "{output}"
    );
    assert!(!tests.contains("\nlate\n"), "a command that fails ends them: {output}");
    assert!(after.contains(">>>>> Test Exit Code: 0"), "{output}");
}

#[tokio::test]
async fn no_test_runs_if_the_test_patch_does_not_apply() {
    let dir = tempfile::tempdir().unwrap();
    let folder = repository(dir.path());
    let row = complete("SweRebenchV2", &rebench_v2("parse_log_jq")).await.unwrap();
    assert!(row["eval_script"].as_str().unwrap().contains(TEST_PATCH));
    let worker = worker();
    let script = worker.eval_script("a", &Value::Object(row.clone())).await.unwrap();
    let output = bash(&folder, &script);
    assert!(!output.contains("Start Test Output"), "{output}");
    assert_eq!(judge(&worker, &row, &output).await, (false, false));
}

#[tokio::test]
async fn the_setup_of_version_2_undoes_changes_of_the_image_and_removes_names_of_later_commits() {
    let dir = tempfile::tempdir().unwrap();
    let folder = repository(dir.path());
    let row = complete("SweRebenchV2", &rebench_v2("parse_log_jq")).await.unwrap();
    let commits = "git log --all --reflog --format=%s | sort";
    assert_eq!(bash(&folder, commits).trim(), "base\nlater");
    bash(&folder, "git tag v1; echo built > built; echo changed > lib.rs");
    let script = format!("{}echo done", row["setup"].as_str().unwrap());
    assert_eq!(bash(&folder, &script).trim(), "done");
    assert_eq!(bash(&folder, commits).trim(), "base");
    assert_eq!(bash(&folder, "git tag; git status --porcelain").trim(), "v1\n?? built");
}
