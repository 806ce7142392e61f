//! The official grader as a worker process, and grading with it.

use crate::world::{self, World};
use grpo_driver::fault::DriverError;
use grpo_driver::grade::{Graded, Grader};
use grpo_driver::grader_worker::{GraderWorker, WorkerError};
use grpo_driver::patch;
use grpo_driver::retry::Budget;
use grpo_driver::sandbox::Gateway;
use grpo_driver::tasks::imports::NoImages;
use grpo_driver::tasks::selection::Selection;
use grpo_driver::tasks::{self, Task};
use grpo_records::{EpisodeEnd, Outcome, VoidReason};
use grpo_sandbox_protocol::{ExecResult, Killed, SandboxCause};
use serde_json::json;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn worker() -> GraderWorker {
    GraderWorker::new(world::grader_worker(), world::grader_site())
}

fn log(dir: &tempfile::TempDir, body: &str, exit: &str) -> std::path::PathBuf {
    let path = dir.path().join("log");
    std::fs::write(
        &path,
        format!(">>>>> Start Test Output\n{body}>>>>> End Test Output\n{exit}"),
    )
    .unwrap();
    path
}

/// Defects 15 and 19: the results of the required tests count, not an exit status and not a printed PASSED.
#[tokio::test]
async fn verdicts_come_from_the_tests_and_not_from_the_exit_code() {
    let (worker, dir) = (worker(), tempfile::tempdir().unwrap());
    let row = world::row("a", "b");
    let verdict = async |body: &str, exit: &str| {
        let report = worker.judge("a", &row, "diff", &log(&dir, body, exit)).await.unwrap();
        (report.status, report.resolved)
    };
    let zero = ">>>>> Test Exit Code: 0\n";
    let one = ">>>>> Test Exit Code: 1\n";
    let judged = |resolved| ("Judged".to_owned(), resolved);
    assert_eq!(
        verdict("PASSED t.py::add\nPASSED t.py::other\n", zero).await,
        judged(true)
    );
    assert_eq!(
        verdict("FAILED t.py::add\nPASSED t.py::other\n", zero).await,
        judged(false)
    );
    assert_eq!(
        verdict("PASSED t.py::add\nFAILED t.py::other\n", one).await,
        judged(false)
    );
    assert_eq!(
        verdict("PASSED t.py::add\n", zero).await,
        judged(false),
        "a test that did not run has not passed"
    );
    assert_eq!(
        verdict("SKIPPED t.py::add\nPASSED t.py::other\n", zero).await,
        judged(false)
    );
    let forged = verdict("PASSED t.py::add\nPASSED t.py::other\n", one).await;
    assert_eq!(forged, ("NoReport".to_owned(), false));
    assert_eq!(verdict("nothing\n", zero).await, ("NoReport".to_owned(), false));
}

#[tokio::test]
async fn the_evaluation_script_records_the_tests_own_exit_code() {
    let script = worker().eval_script("a", &world::row("a", "b")).await.unwrap();
    assert!(script.contains("SWEBENCH_TEST_EXIT_CODE=$?"));
    assert!(script.starts_with("#!/bin/bash\nset -uxo pipefail\n"));
}

#[tokio::test]
async fn a_row_that_cannot_be_graded_names_its_field() {
    let mut row = world::row("a", "b");
    row["log_parser"] = json!("parse_log_of_nobody");
    let refused = worker().eval_script("a", &row).await.unwrap_err();
    assert!(matches!(refused, WorkerError::Row { field, .. } if field == "log_parser"));
}

#[tokio::test]
async fn a_worker_that_hangs_is_killed_and_the_next_question_gets_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let hangs_once = dir.path().join("worker.py");
    std::fs::write(
        &hangs_once,
        "import json, os, sys, time\nprint('{\"ready\": true}', flush=True)\nmark = os.path.join(os.path.dirname(__file__), 'hung')\n\
         for line in sys.stdin:\n    if not os.path.exists(mark):\n        open(mark, 'w').close(); time.sleep(600)\n\
         \x20   print(json.dumps({'id': json.loads(line)['id'], 'ok': True, 'evalScript': 'x'}), flush=True)\n",
    )
    .unwrap();
    let worker = GraderWorker::new(&hangs_once, dir.path()).with_patience(Duration::from_secs(5));
    let first = worker.eval_script("a", &json!({})).await;
    assert!(matches!(first, Err(WorkerError::NoAnswer { .. })), "{first:?}");
    assert_eq!(worker.eval_script("a", &json!({})).await.unwrap(), "x");
}

/// Answers at once, but about `slow` only after the file `go` exists.
const SLOW: &str = "import json, os, sys, time
here = os.path.dirname(__file__)
open(os.path.join(here, f'started-{os.getpid()}'), 'w').close()
print('{\"ready\": true}', flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked['row'].get('slow'):
        open(os.path.join(here, f'asked-{os.getpid()}'), 'w').close()
        while not os.path.exists(os.path.join(here, 'go')):
            time.sleep(0.01)
    print(json.dumps({'id': asked['id'], 'ok': True, 'evalScript': 'x'}), flush=True)
";

fn with_prefix(dir: &tempfile::TempDir, prefix: &str) -> usize {
    let names = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(prefix)).count()
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_slow_question_holds_no_other_up_and_workers_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("worker.py");
    std::fs::write(&script, SLOW).unwrap();
    let worker = Arc::new(GraderWorker::new(&script, dir.path()));
    let ask = |row: serde_json::Value| {
        let worker = worker.clone();
        tokio::spawn(async move { worker.eval_script("a", &row).await })
    };
    let slow = ask(json!({"slow": true}));
    until(|| with_prefix(&dir, "asked-") == 1).await;
    for _ in 0..3 {
        assert_eq!(ask(json!({})).await.unwrap().unwrap(), "x");
    }
    assert_eq!(
        with_prefix(&dir, "started-"),
        2,
        "a worker without a question is asked again"
    );
    let many: Vec<_> = (0..20).map(|_| ask(json!({"slow": true}))).collect();
    until(|| with_prefix(&dir, "asked-") >= 2).await;
    std::fs::write(dir.path().join("go"), "").unwrap();
    for one in many.into_iter().chain([slow]) {
        assert_eq!(one.await.unwrap().unwrap(), "x");
    }
    assert!(with_prefix(&dir, "started-") <= 4);
}

#[tokio::test]
async fn a_site_without_the_grader_is_an_error_that_says_what_to_install() {
    let dir = tempfile::tempdir().unwrap();
    let worker = GraderWorker::new(world::grader_worker(), dir.path());
    let refused = worker.eval_script("a", &json!({})).await.unwrap_err();
    assert!(refused.to_string().contains("requirements.txt"), "{refused}");
}

async fn grader(world: &World, timeout: Duration) -> (Grader, Task) {
    let gateway = Gateway::new(
        &world.gateway_url,
        "run",
        Duration::from_secs(10),
        Duration::from_secs(30),
    )
    .unwrap();
    let patience = Budget {
        request: Duration::from_secs(10),
        total: Duration::from_secs(1),
    };
    let (files, worker) = (std::slice::from_ref(&world.tasks), worker());
    let set = tasks::load(
        "train",
        &Selection::default(),
        files,
        &Default::default(),
        &worker,
        &NoImages,
    )
    .await
    .unwrap();
    let grader = Grader::new(gateway, worker, timeout, patience, world::PAUSES, "attempt 1").unwrap();
    (grader, set.tasks[0].clone())
}

/// A patch that hangs the evaluation is graded once more; then the empty patch shows that the task is sound.
#[tokio::test]
async fn a_patch_that_hangs_its_evaluation_is_unresolved_and_never_a_void() {
    let world = World::new(1).await;
    let mut row = world.rows["task-0"].clone();
    row["eval_script"] = json!(
        "#!/bin/bash\nset -uxo pipefail\ncd /testbed\nif [ -f hang ]; then sleep 60; fi\necho '>>>>> Start Test Output'\necho FAILED t.py::add\nfalse\necho '>>>>> End Test Output'\n"
    );
    std::fs::write(&world.tasks, row.to_string()).unwrap();
    let (grader, task) = grader(&world, Duration::from_secs(3)).await;
    let patch = "diff --git a/hang b/hang\nnew file mode 100644\nindex 0000000..7898192\n--- /dev/null\n+++ b/hang\n@@ -0,0 +1 @@\n+a\n";
    let graded = grader
        .grade(&task, "dir", EpisodeEnd::Submitted, Some(&patch.into()), kept)
        .await
        .unwrap();
    assert_eq!(graded.outcome, Outcome::Unresolved);
    let record = graded.record.unwrap();
    assert_eq!((record.tries, record.status.as_str()), (2, "TimedOut"));
    assert!(
        record.notes.iter().any(|note| note.contains("Sound")),
        "{:?}",
        record.notes
    );
}

#[tokio::test]
async fn a_task_whose_empty_patch_cannot_be_judged_is_the_graders_failure() {
    let world = World::new(1).await;
    let mut row = world.rows["task-0"].clone();
    row["eval_script"] = json!("#!/bin/bash\nset -uxo pipefail\necho nothing to see\n");
    std::fs::write(&world.tasks, row.to_string()).unwrap();
    let (grader, task) = grader(&world, Duration::from_secs(20)).await;
    let patch =
        "diff --git a/x b/x\nnew file mode 100644\nindex 0000000..7898192\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n";
    let graded = grader
        .grade(&task, "dir", EpisodeEnd::Submitted, Some(&patch.into()), kept)
        .await
        .unwrap();
    assert_eq!(graded.outcome, Outcome::void(VoidReason::GraderFailed));
    assert!(graded.message.unwrap().contains("Broken"));
}

#[tokio::test]
async fn a_patch_that_does_not_apply_is_unresolved() {
    let world = World::new(1).await;
    let (grader, task) = grader(&world, Duration::from_secs(20)).await;
    let patch = "diff --git a/none b/none\n--- a/none\n+++ b/none\n@@ -1,2 +1,2 @@\n-was\n+is\n context\n";
    let graded = grader
        .grade(&task, "dir", EpisodeEnd::Submitted, Some(&patch.into()), kept)
        .await
        .unwrap();
    assert_eq!(
        (graded.outcome, graded.record.unwrap().status.as_str()),
        (Outcome::Unresolved, "PatchRefused")
    );
}

/// What sandboxd reports of a command that failed while the sandbox met a limit.
fn at_a_limit(id: &str, exit_code: i32, output: &str) -> ExecResult {
    ExecResult {
        id: id.to_owned(),
        exit_code: Some(exit_code),
        signal: None,
        timed_out: false,
        output: output.to_owned(),
        omitted_bytes: 0,
        duration_millis: 1,
        killed: Some(Killed::DiskFull),
    }
}

/// A full disk of a node may be a neighbour's work.
#[tokio::test]
async fn a_patch_that_failed_at_a_limit_of_its_graders_is_graded_again() {
    let failed = ">>>>> Start Test Output\nFAILED t.py::add\nPASSED t.py::other\n>>>>> End Test Output\n>>>>> Test Exit Code: 1\n";
    let passed = failed.replace("FAILED", "PASSED").replace("Code: 1", "Code: 0");
    for (failure, tries) in [
        (at_a_limit("apply", patch::DOES_NOT_APPLY, "No space left on device"), 2),
        (at_a_limit("eval", 1, failed), 2),
        (at_a_limit("eval", 1, &passed), 1),
    ] {
        let world = World::new(1).await;
        let (grader, task) = grader(&world, Duration::from_secs(20)).await;
        world.gateway.state.lock().unwrap().failures.push(failure);
        let graded = grader
            .grade(&task, "dir", EpisodeEnd::Submitted, Some(&FIX.into()), kept)
            .await
            .unwrap();
        let record = graded.record.unwrap();
        assert_eq!(
            (graded.outcome, record.tries),
            (Outcome::Resolved, tries),
            "{:?}",
            record.notes
        );
    }
}

/// Such as one whose tests always meet a limit: the empty patch shows that the task can be judged.
#[tokio::test]
async fn a_patch_that_always_fails_at_a_limit_is_unresolved() {
    let world = World::new(1).await;
    let (grader, task) = grader(&world, Duration::from_secs(20)).await;
    let failure = at_a_limit("apply", patch::DOES_NOT_APPLY, "No space left on device");
    world.gateway.state.lock().unwrap().failures = vec![failure.clone(), failure];
    let graded = grader
        .grade(&task, "dir", EpisodeEnd::Submitted, Some(&FIX.into()), kept)
        .await
        .unwrap();
    assert_eq!(graded.outcome, Outcome::Unresolved);
    let record = graded.record.unwrap();
    assert_eq!((record.tries, record.status.as_str()), (2, "Exhausted"));
    assert!(
        record.notes.iter().any(|note| note.contains("Sound")),
        "{:?}",
        record.notes
    );
}

/// Nodes that become slow after the empty patch of an earlier episode was judged.
#[tokio::test]
async fn a_correct_patch_on_nodes_that_became_slow_is_not_judged_by_an_older_control() {
    let world = World::new(1).await;
    let (grader, task) = grader(&world, Duration::from_secs(20)).await;
    let full = at_a_limit("apply", patch::DOES_NOT_APPLY, "No space left on device");
    let slow = ExecResult {
        exit_code: None,
        timed_out: true,
        killed: None,
        ..at_a_limit("eval", 0, "")
    };
    let grade = async |patch: &'static str, failures: &[&ExecResult]| {
        world.gateway.state.lock().unwrap().failures = failures.iter().map(|&failure| failure.clone()).collect();
        let graded = grader
            .grade(&task, "dir", EpisodeEnd::Submitted, Some(&patch.into()), kept)
            .await;
        graded.unwrap().outcome
    };
    assert_eq!(grade(HANG, &[&full, &full]).await, Outcome::Unresolved);
    assert_eq!(
        grade(FIX, &[&full, &full, &slow, &slow]).await,
        Outcome::void(VoidReason::GraderFailed)
    );
    // Nor is a task broken for ever.
    let other = "diff --git a/other b/other\nnew file mode 100644\nindex 0000000..7898192\n--- /dev/null\n+++ b/other\n@@ -0,0 +1 @@\n+a\n";
    assert_eq!(grade(other, &[&full, &full]).await, Outcome::Unresolved);
}

/// In place of a store.
async fn kept(graded: Graded) -> Result<Graded, DriverError> {
    Ok(graded)
}

const FIX: &str = "diff --git a/a.py b/a.py\nindex 7898192..6178079 100644\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n";
const HANG: &str = "diff --git a/hang b/hang\nnew file mode 100644\nindex 0000000..7898192\n--- /dev/null\n+++ b/hang\n@@ -0,0 +1 @@\n+a\n";

/// While `lost` is set, loses the evaluations with a patch, or those without one.
fn lose(world: &World, with_patch: bool, cause: SandboxCause) -> Arc<AtomicBool> {
    let lost = Arc::new(AtomicBool::new(true));
    let (losing, patched) = (lost.clone(), Mutex::new(HashSet::new()));
    *world.gateway.hook.lock().unwrap() = Some(Box::new(move |lease, _, request| {
        let mut patched = patched.lock().unwrap();
        if request.id == "apply" {
            patched.insert(lease.id.clone());
        }
        let concerned = request.id == "eval" && patched.contains(&lease.id) == with_patch;
        (concerned && losing.load(Ordering::Relaxed)).then(|| world::lost(cause))
    }));
    lost
}

#[tokio::test]
async fn a_control_whose_graders_were_lost_is_asked_again_and_not_remembered_as_broken() {
    let world = World::new(1).await;
    let mut row = world.rows["task-0"].clone();
    row["eval_script"] = json!(
        "#!/bin/bash\nset -uxo pipefail\ncd /testbed\nif [ -f hang ]; then sleep 60; fi\necho '>>>>> Start Test Output'\necho FAILED t.py::add\nfalse\necho '>>>>> End Test Output'\n"
    );
    std::fs::write(&world.tasks, row.to_string()).unwrap();
    let (grader, task) = grader(&world, Duration::from_secs(3)).await;
    let lost = lose(&world, false, SandboxCause::NodeLost);
    let grade = async || {
        let graded = grader
            .grade(&task, "dir", EpisodeEnd::Submitted, Some(&HANG.into()), kept)
            .await;
        graded.unwrap().outcome
    };
    assert_eq!(grade().await, Outcome::void(VoidReason::SandboxLost));
    lost.store(false, Ordering::Relaxed);
    assert_eq!(grade().await, Outcome::Unresolved);
}

#[tokio::test]
async fn a_patch_that_silences_its_graders_is_unresolved_and_never_a_void() {
    let world = World::new(1).await;
    let (grader, task) = grader(&world, Duration::from_secs(20)).await;
    let _lost = lose(&world, true, SandboxCause::Unknown);
    let graded = grader
        .grade(&task, "dir", EpisodeEnd::Submitted, Some(&HANG.into()), kept)
        .await;
    let graded = graded.unwrap();
    assert_eq!(graded.outcome, Outcome::Unresolved);
    assert_eq!(graded.record.unwrap().status, "Silent");
}

/// Grades a patch that resolves nothing; the package index does not answer the first `no_packages_for` times.
async fn graded_without_packages(script_begins: &str, no_packages_for: u32) -> (Outcome, u32, u32) {
    let world = World::new(1).await;
    let mut row = world.rows["task-0"].clone();
    row["eval_script"] = json!(format!(
        "#!/bin/bash\nset -uxo pipefail\n{script_begins}\necho '>>>>> Start Test Output'\necho FAILED t.py::add\nfalse\necho '>>>>> End Test Output'\n"
    ));
    std::fs::write(&world.tasks, row.to_string()).unwrap();
    world.gateway.state.lock().unwrap().no_packages_for = no_packages_for;
    let (grader, task) = grader(&world, Duration::from_secs(20)).await;
    let graded = grader
        .grade(&task, "dir", EpisodeEnd::Submitted, Some(&HANG.into()), kept)
        .await
        .unwrap();
    let state = world.gateway.state.lock().unwrap();
    (graded.outcome, state.evaluations, state.packages_asked)
}

/// A test machine must not install anything.
const INSTALLS: &str = "pip() { false; }\npip install -e .";

#[tokio::test]
async fn a_failure_while_the_package_index_is_away_says_nothing_and_is_graded_again() {
    assert_eq!(graded_without_packages(INSTALLS, 1).await, (Outcome::Unresolved, 2, 2));
}

#[tokio::test]
async fn a_package_index_that_stays_away_is_a_void_and_never_a_verdict() {
    let (outcome, evaluations, _) = graded_without_packages(INSTALLS, u32::MAX).await;
    assert_eq!(outcome, Outcome::void(VoidReason::SandboxUnavailable));
    assert!(evaluations > 1);
}

#[tokio::test]
async fn the_verdict_on_a_script_that_installs_nothing_does_not_wait_for_the_package_index() {
    assert_eq!(
        graded_without_packages("true", u32::MAX).await,
        (Outcome::Unresolved, 1, 0)
    );
}

/// A task with the same name but another script, image or limit is another task.
#[tokio::test]
async fn a_changed_task_takes_over_no_verdict_script_or_control_of_the_old_one() {
    let world = World::new(1).await;
    let (grader, task) = grader(&world, Duration::from_secs(20)).await;
    let reused = async |task: &Task, dir: &str| {
        let graded = grader
            .grade(task, dir, EpisodeEnd::Submitted, Some(&HANG.into()), kept)
            .await;
        graded.unwrap().record.unwrap().reused_from
    };
    assert_eq!(reused(&task, "first").await, None);
    assert_eq!(reused(&task, "second").await.as_deref(), Some("first"));
    let image = Task {
        image: "img/task-0:2".into(),
        ..task.clone()
    };
    assert_eq!(reused(&image, "third").await, None);
    let mut row = (*task.row).clone();
    let script = row["eval_script"].as_str().unwrap().replace("'a + b'", "'a'");
    row["eval_script"] = json!(script);
    let changed = Task {
        graded_sha256: grpo_records::graded::row_sha256(&row),
        row: Arc::new(row),
        ..task.clone()
    };
    assert_eq!(reused(&changed, "fourth").await, None);
    assert!(
        world.gateway.state.lock().unwrap().evaluations >= 3,
        "each of the three was evaluated"
    );
}

/// Defect 20: with this file, every test passes.
const FLIPS: &str = "diff --git a/conftest.py b/conftest.py\nnew file mode 100644\nindex 0000000..7898192\n--- /dev/null\n+++ b/conftest.py\n@@ -0,0 +1 @@\n+a\n";

/// A world whose tests obey a conftest.py of the tree.
async fn with_setup(fix: &str) -> (World, Grader, Task) {
    let world = World::new(1).await;
    let mut row = world.rows["task-0"].clone();
    row["patch"] = json!(fix);
    row["eval_script"] = json!(
        "#!/bin/bash\nset -uxo pipefail\ncd /testbed\necho '>>>>> Start Test Output'\nif [ -f conftest.py ]; then echo PASSED t.py::add; echo PASSED t.py::other; else echo FAILED t.py::add; false; fi\necho '>>>>> End Test Output'\n"
    );
    std::fs::write(&world.tasks, row.to_string()).unwrap();
    let (grader, task) = grader(&world, Duration::from_secs(20)).await;
    (world, grader, task)
}

#[tokio::test]
async fn a_policys_conftest_does_not_change_its_grading_and_the_record_names_it() {
    let (world, grader, task) = with_setup("").await;
    let grade = async |patch: String| {
        let graded = grader
            .grade(&task, "dir", EpisodeEnd::Submitted, Some(&patch.into()), kept)
            .await;
        let graded = graded.unwrap();
        (graded.outcome, graded.record.unwrap())
    };
    let (outcome, record) = grade([FLIPS, HANG].concat()).await;
    assert_eq!((outcome, record.status.as_str()), (Outcome::Unresolved, "Judged"));
    assert!(record.notes[0].contains("conftest.py"), "{:?}", record.notes);
    let (outcome, record) = grade(FLIPS.into()).await;
    assert_eq!((outcome, record.status.as_str()), (Outcome::Unresolved, "EmptyPatch"));
    assert_eq!(world.gateway.state.lock().unwrap().evaluations, 1);
}

#[tokio::test]
async fn a_conftest_that_the_fix_of_the_task_changes_is_the_policys_to_change() {
    let (_world, grader, task) = with_setup("--- /dev/null\n+++ b/conftest.py\n@@ -0,0 +1 @@\n+a\n").await;
    let graded = grader
        .grade(&task, "dir", EpisodeEnd::Submitted, Some(&FLIPS.into()), kept)
        .await;
    assert_eq!(graded.unwrap().outcome, Outcome::Resolved);
}
