//! Published rows, completed and graded by the worker with the publishers' own packages.

mod commands_in_rows;
mod parquet_file;
pub mod samples;

use self::parquet_file::write_parquet;
use self::samples::{TEST_PATCH, classic, gym, kod_code, live, r2e, rebench, rebench_v2, smith, with};
use crate::world::{self, Images};
use grpo_crds::grpo_run::RowFormat;
use grpo_driver::grader_worker::{GraderWorker, WorkerError};
use grpo_driver::tasks::{self, TaskSet, selection::Selection};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

fn worker() -> GraderWorker {
    let site = world::grader_site();
    assert!(
        site.join("older/swesmith").is_dir(),
        "swebench 4 and swesmith are not installed in {}: run make setup, or pip install --no-deps \
         --target {0}/older -r \
         rollout-image/grader/requirements-tables.txt",
        site.display()
    );
    GraderWorker::new(world::grader_worker(), site)
}

async fn complete(format: &str, row: &Value) -> Result<Map<String, Value>, (String, String)> {
    match worker().complete("a", format, row).await {
        Ok(row) => Ok(row),
        Err(WorkerError::Row { field, what, .. }) => Err((field, what)),
        Err(error) => panic!("{error}"),
    }
}

async fn load(rows: &[Value], format: RowFormat) -> TaskSet {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.jsonl");
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    load_file(file, format).await
}

async fn load_file(file: PathBuf, format: RowFormat) -> TaskSet {
    let selection = Selection {
        format,
        ..Selection::default()
    };
    tasks::load(
        "train",
        &selection,
        &[file],
        &Default::default(),
        &worker(),
        &Images(vec!["pytest"]),
    )
    .await
    .unwrap()
}

/// Prints swebench 4.1.0's official specs, a line of JSON for each repository and version. Leaves out the environment's
/// packages, which would need the network.
const OFFICIAL: &str = r#"
import json, sys, types
from unittest.mock import MagicMock
site, patch = sys.argv[1], sys.argv[2]
sys.path.insert(0, site)
sys.path.insert(0, site + "/older")
for name in ("requests", "datasets", "dotenv", "tqdm", "docker"):
    sys.modules[name] = MagicMock()
for name in ("swebench", "swebench.harness"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [site + "/older/" + name.replace(".", "/")]
from swebench.harness.test_spec import test_spec
from swebench.harness.log_parsers import MAP_REPO_TO_PARSER
test_spec.make_env_script_list = lambda *_: []
for repo, versions in test_spec.MAP_REPO_VERSION_TO_SPECS.items():
    for version in versions:
        row = {"instance_id": "Owner__name-1", "repo": repo, "version": version, "base_commit": "abc",
               "test_patch": patch, "problem_statement": "fix", "FAIL_TO_PASS": "[\"t.py::a\"]", "PASS_TO_PASS": "[]"}
        if "test_cmd" not in versions[version] or repo not in MAP_REPO_TO_PARSER:
            continue
        spec = test_spec.make_test_spec(row, namespace="swebench")
        print(json.dumps([repo, version, spec.eval_script, spec.instance_image_key, MAP_REPO_TO_PARSER[repo].__name__]))
"#;

fn python(script: &str, arguments: &[&str]) -> String {
    let out = Command::new("python3")
        .args(["-c", script])
        .args(arguments)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[tokio::test]
async fn classic_rows_get_the_official_script_image_and_parser_for_every_repository_and_version() {
    let worker = worker();
    let specs = python(OFFICIAL, &[world::grader_site().to_str().unwrap(), TEST_PATCH]);
    let (mut compared, mut refused) = (0, Vec::new());
    for line in specs.lines() {
        let (repo, version, script, image, parser): (String, String, String, String, String) =
            serde_json::from_str(line).unwrap();
        match worker.complete("a", "SweBench", &classic(&repo, &version)).await {
            Ok(row) => {
                let got = ["eval_script", "image", "log_parser"].map(|field| row[field].as_str().unwrap());
                assert_eq!(
                    got,
                    [script.as_str(), &format!("docker.io/{image}"), &parser],
                    "{repo} {version}"
                );
                compared += 1;
            }
            Err(WorkerError::Row { field, .. }) => refused.push((repo, version, field)),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(compared > 400, "{compared}");
    // swebench 5 has no such parsers.
    assert!(refused.iter().all(|(_, _, field)| field == "log_parser"), "{refused:?}");
}

#[tokio::test]
async fn a_row_that_cannot_be_completed_names_the_field_and_the_cause() {
    let mut without_patch = classic("django/django", "3.0");
    without_patch["test_patch"] = Value::Null;
    let v2 = with(&rebench(), json!({"language": "go", "image_name": "i"}));
    let mut no_command = rebench();
    no_command["install_config"]["test_cmd"] = Value::Null;
    let mut other_parser = rebench();
    other_parser["install_config"]["log_parser"] = json!("parse_log_of_nobody");
    let mut no_marker = gym();
    no_marker["eval_script"] = json!("#!/bin/bash\nset -exo pipefail\npytest\n");
    for (format, row, field, cause) in [
        (
            "SweBench",
            classic("owner/name", "1"),
            "repo",
            "no test command for owner/name",
        ),
        (
            "SweBench",
            classic("django/django", "99"),
            "version",
            "version 99 of django/django",
        ),
        ("SweBench", without_patch, "test_patch", "missing"),
        (
            "SweGym",
            classic("getmoto/moto", "4.1"),
            "eval_script",
            "SWE-Gym-Subset",
        ),
        ("SweGym", no_marker, "eval_script", "no test command"),
        (
            "SweGym",
            with(&gym(), json!({"repo": "pydantic/pydantic"})),
            "repo",
            "parser of its own",
        ),
        (
            "R2E",
            with(&r2e(json!({})), json!({"expected_output_json": "{"})),
            "expected_output_json",
            "not JSON",
        ),
        ("R2E", r2e(json!({})), "expected_output_json", "no test in it"),
        (
            "SweSmith",
            with(&smith("x"), json!({"repo": "swesmith/o__n.1"})),
            "repo",
            "no profile of swesmith/o__n.1",
        ),
        ("SweSmith", smith(""), "patch", "empty"),
        ("SweRebench", v2, "(row)", "SWE-rebench-V2"),
        ("SweRebench", no_command, "install_config", "not a command"),
        ("SweRebench", other_parser, "log_parser", "parse_log_of_nobody"),
    ] {
        let (refused, what) = complete(format, &row).await.unwrap_err();
        assert!(refused == field && what.contains(cause), "{format}: {refused}: {what}");
    }
}

#[tokio::test]
async fn a_script_of_swe_gym_runs_to_its_end_and_marks_its_test_output() {
    let row = complete("SweGym", &gym()).await.unwrap();
    let script = row["eval_script"].as_str().unwrap();
    let tests =
        ": '>>>>> Start Test Output'\npytest -n0 -rA tests/test_a.py\n: '>>>>> End Test Output'\ngit checkout abc";
    assert!(script.contains(tests) && !script.contains("-exo"), "{script}");
    assert_eq!(
        row["image"],
        "docker.io/xingyaoww/sweb.eval.x86_64.owner_s_name-1:latest"
    );
}

#[tokio::test]
async fn a_set_of_many_formats_is_read_and_each_row_is_a_task_with_its_own_image_and_environment() {
    let mut unknown = classic("owner/name", "1");
    unknown["instance_id"] = json!("unknown");
    let inside = with(&classic("sympy/sympy", "1.4"), json!({"instance_id": "s"}));
    let nested = json!({"text": "fix", "metadata": {"instance": inside, "data_source": "princeton-nlp/SWE-bench"}});
    let rows = [
        with(
            &classic("django/django", "3.0"),
            json!({"instance_id": "django__django-1"}),
        ),
        nested,
        with(&gym(), json!({"instance_id": "getmoto__moto-1"})),
        r2e(json!({"A.b": "PASSED"})),
        smith(TEST_PATCH),
        rebench(),
        unknown,
    ];
    let set = load(&rows, RowFormat::Auto).await;
    let conda = Some(". /opt/miniconda3/bin/activate && conda activate testbed");
    let found: Vec<_> = set
        .tasks
        .iter()
        .map(|task| {
            (
                task.instance.as_str(),
                task.image.as_str(),
                task.environment.activation.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            (
                "django__django-1",
                "docker.io/swebench/sweb.eval.x86_64.django_1776_django-1:latest",
                conda
            ),
            ("s", "docker.io/swebench/sweb.eval.x86_64.s:latest", conda),
            (
                "getmoto__moto-1",
                "docker.io/xingyaoww/sweb.eval.x86_64.getmoto_s_moto-1:latest",
                conda
            ),
            (
                "sympy__abc",
                "namanjain12/sympy_final:abc",
                Some(". /testbed/.venv/bin/activate")
            ),
            (
                "oauthlib__oauthlib.1fd52536.lm_rewrite__1",
                "swebench/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
                conda
            ),
            ("Owner__name-1", "swerebench/sweb.eval.x86_64.owner_1776_name-1", conda),
        ]
    );
    assert!(
        tasks::report::message(&set.report, false)
            .unwrap()
            .contains("1 skipped: unknown (field repo: ")
    );
    assert_eq!(set.tasks[3].row["problem_statement"], "fix");
    for task in &set.tasks {
        let shown = format!("{:?}", task.variables());
        for secret in ["gold", "the answer", "diff --git", "t.py::a", "A.b"] {
            assert!(!shown.contains(secret), "{}: {shown}", task.instance);
        }
    }
}

#[tokio::test]
async fn rows_of_every_format_are_the_same_tasks_from_parquet() {
    let dir = tempfile::tempdir().unwrap();
    let instance = classic("sympy/sympy", "1.4");
    let nested = json!({"input": "fix", "metadata": {"instance": instance, "data_source": "SWE-bench"}});
    for (format, row) in [
        (RowFormat::SweBench, classic("django/django", "3.0")),
        (RowFormat::SweGym, gym()),
        (RowFormat::R2E, r2e(json!({"A.b": "PASSED"}))),
        (RowFormat::SweSmith, smith(TEST_PATCH)),
        (RowFormat::SweRebench, rebench()),
        (RowFormat::SweRebenchV2, rebench_v2("parse_log_gotest")),
        (RowFormat::Auto, rebench_v2("parse_log_gotest")),
        (RowFormat::SweBenchLive, live()),
        (RowFormat::KodCode, kod_code()),
        (RowFormat::Auto, kod_code()),
        (RowFormat::Auto, nested),
    ] {
        let file = dir.path().join("rows.parquet");
        write_parquet(&file, &row);
        let lines = load(&[row], format).await;
        let columns = load_file(file, format).await;
        assert_eq!(lines.tasks[0].row, columns.tasks[0].row, "{format:?}");
        assert_eq!(lines.tasks[0].environment, columns.tasks[0].environment, "{format:?}");
        assert_eq!(lines.report.rows, columns.report.rows, "{format:?}");
    }
}

async fn verdict(row: &Map<String, Value>, log: &str) -> (String, bool) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log");
    std::fs::write(&file, log).unwrap();
    let row = Value::Object(row.clone());
    let report = worker().judge("a", &row, "diff", &file).await.unwrap();
    (report.status, report.resolved)
}

#[tokio::test]
async fn r2e_wants_the_same_tests_with_the_same_statuses() {
    let expected = json!({"\u{1b}[1mA.b\u{1b}[0m": "PASSED", "A.c - because": "FAILED"});
    let row = complete("R2E", &r2e(expected)).await.unwrap();
    assert!(
        row["eval_script"]
            .as_str()
            .unwrap()
            .contains("run_tests.sh || test $? -eq 1")
    );
    let log = |summary: &str| {
        format!(
            "+ : '>>>>> Start Test Output'\nPASSED here\n=== short test summary info ===\n{summary}\n\
             + : '>>>>> End Test Output'\n>>>>> Test Exit Code: 0\n"
        )
    };
    let judged = |resolved| ("Judged".to_owned(), resolved);
    for (summary, resolved) in [
        ("PASSED r/t.py::A::b\nFAILED r/t.py::A::c - AssertionError", true),
        ("PASSED r/t.py::A::\u{1b}[1mb\u{1b}[0m\nFAILED r/t.py::A::c", true),
        ("PASSED r/t.py::A::b\nPASSED r/t.py::A::c", false),
        ("PASSED r/t.py::A::b", false),
        ("PASSED r/t.py::A::b\nFAILED r/t.py::A::c\nPASSED r/t.py::A::d", false),
        ("PASSED r/t.py::A::b\nFAILED r/t.py::A::c\nERROR r/t.py", false),
    ] {
        assert_eq!(verdict(&row, &log(summary)).await, judged(resolved), "{summary}");
    }
    assert_eq!(verdict(&row, &log("no tests ran")).await.0, "NoReport");
    let passing = complete("R2E", &r2e(json!({"A.b": "PASSED"}))).await.unwrap();
    assert!(!passing["eval_script"].as_str().unwrap().contains("test $?"));
}

/// The verdict of swesmith's own grader on a log.
const OFFICIAL_SMITH: &str = r#"
import json, sys, types
from unittest.mock import MagicMock
site, log = sys.argv[1], sys.argv[3]
sys.path.insert(0, site)
sys.path.insert(0, site + "/older")
for name in ("requests", "datasets", "dotenv", "tqdm", "docker", "docker.models", "docker.models.containers", "ghapi",
             "ghapi.all"):
    sys.modules[name] = MagicMock()
for name in ("swebench", "swebench.harness", "swesmith", "swesmith.harness"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [site + "/older/" + name.replace(".", "/")]
from swesmith.harness.grading import get_eval_report
print(get_eval_report({"model_patch": "diff"}, json.loads(sys.argv[2]), log)["resolved"])
"#;

#[tokio::test]
async fn verdicts_on_swe_smith_are_those_of_its_own_package() {
    let row = smith(TEST_PATCH);
    let completed = complete("SweSmith", &row).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (tests, code, resolved) in [
        ("tests/t.py::a PASSED [ 50%]\ntests/t.py::b PASSED [100%]", 0, true),
        ("tests/t.py::a PASSED [ 50%]\ntests/t.py::b FAILED [100%]", 1, false),
        ("tests/t.py::a FAILED [ 50%]\ntests/t.py::b PASSED [100%]", 1, false),
        ("tests/t.py::b PASSED [100%]", 0, false),
        (
            "tests/t.py::a XFAIL [ 50%]\ntests/t.py::b PASSED [100%]\ntests/t.py::c FAILED",
            1,
            true,
        ),
    ] {
        let log = format!(
            "+ : '>>>>> Start Test Output'\n{tests}\n+ SWEBENCH_TEST_EXIT_CODE={code}\n+ : '>>>>> End Test Output'\n\
             >>>>> Test Exit Code: {code}\n"
        );
        let file = dir.path().join("log");
        std::fs::write(&file, &log).unwrap();
        let site = world::grader_site();
        let official = python(
            OFFICIAL_SMITH,
            &[site.to_str().unwrap(), &row.to_string(), file.to_str().unwrap()],
        );
        assert_eq!(official.trim() == "True", resolved, "{tests}");
        assert_eq!(verdict(&completed, &log).await.1, resolved, "{tests}");
    }
}

fn git(dir: &Path, script: &str) -> String {
    let identity = "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a \
        GIT_COMMITTER_EMAIL=a";
    let out = Command::new("bash")
        .args(["-ec", &format!("{identity}\n{script}")])
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn the_setup_of_swe_smith_leaves_the_bug_and_nothing_to_undo_it_with() {
    let dir = tempfile::tempdir().unwrap();
    git(
        dir.path(),
        "git init -q testbed; cd testbed; echo good > a.py; git add -A; git commit -qm 'Initial commit'; git branch other; \
         git tag t",
    );
    let bug = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-good\n+bad\n";
    let row = complete("SweSmith", &smith(bug)).await.unwrap();
    let heads = ["one", "two"].map(|copy| {
        git(dir.path(), &format!("cp -a testbed {copy}"));
        let folder = dir.path().join(copy);
        let setup = row["setup"]
            .as_str()
            .unwrap()
            .replace("/testbed", folder.to_str().unwrap());
        git(dir.path(), &setup);
        assert_eq!(git(&folder, "cat a.py; git status --porcelain"), "bad");
        let objects = git(
            &folder,
            "git cat-file --batch-all-objects --batch-check='%(objecttype)' | sort | uniq -c | xargs",
        );
        assert_eq!(objects, "1 blob 1 commit 1 tree");
        git(&folder, "git rev-parse HEAD")
    });
    assert_eq!(heads[0], heads[1], "a patch is taken and applied against one commit");
}

#[tokio::test]
async fn the_script_of_swe_smith_restores_every_test_file_that_it_can_and_no_file_of_the_bug() {
    let dir = tempfile::tempdir().unwrap();
    let (tests, others) = (
        "tests/test_a.py pkg/test/helper.js src/a.test.js src/ATest.java",
        "src/test/bug.py src/latest.py",
    );
    git(
        dir.path(),
        &format!(
            "git init -q testbed; cd testbed; mkdir -p tests pkg/test src/test; for f in {tests} {others}; do echo theirs > $f; done; \
             git add -A; git commit -qm base; for f in {tests} {others}; do echo policy > $f; done; rm tests/test_a.py"
        ),
    );
    let bug = "diff --git a/src/test/bug.py b/src/test/bug.py\n--- a/src/test/bug.py\n+++ b/src/test/bug.py\n@@ -1 +1 @@\n-good\n+bad\n";
    // git does not know the second file.
    let names = json!({"FAIL_TO_PASS": ["tests/test_a.py::a"], "PASS_TO_PASS": ["../dev/tests/test_b.py::b"]});
    let row = complete("SweSmith", &with(&smith(bug), names)).await.unwrap();
    let script = row["eval_script"].as_str().unwrap().lines();
    let restores = script.filter(|line| line.starts_with("git checkout "));
    let restores: String = restores.map(|line| format!("{line} || true\n")).collect();
    let folder = dir.path().join("testbed");
    git(&folder, &restores);
    assert_eq!(git(&folder, &format!("cat {tests} | uniq")), "theirs");
    assert_eq!(git(&folder, &format!("cat {others} | uniq")), "policy");
}
