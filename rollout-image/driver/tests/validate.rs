//! Mode Validate: tasks with real repositories, commands and the official grader; each unfit task is named.

use crate::world::{self, World, row};
use grpo_crds::grpo_run::{Mode, TaskOrder};
use grpo_driver::config::Settings;
use grpo_records::validation::{Finding, TaskValidation};
use grpo_records::{SCHEMA, Writer, paths};
use grpo_sandbox_protocol::{Priority, SandboxCause};
use serde_json::{Value, json};

const GOLD: &str = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n";

/// A row with its gold patch; `change` makes it unfit.
fn with(base: &str, id: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut row = row(id, base);
    row["patch"] = GOLD.into();
    change(&mut row);
    row
}

fn script(row: &mut Value, commands: &str) {
    row["eval_script"] = format!(
        "#!/bin/bash\nset -uxo pipefail\ncd /testbed\necho '>>>>> Start Test Output'\n{commands}\necho '>>>>> End Test Output'\n"
    )
    .into();
}

const PASSES: &str = "echo PASSED t.py::add; echo PASSED t.py::other";

/// Three fit tasks, and one of each unfit kind.
fn rows(base: &str, scratch: &std::path::Path) -> Vec<Value> {
    let counter = scratch.join("counter");
    vec![
        with(base, "good-0", |_| {}),
        with(base, "flaky", |row| {
            let commands = format!(
                "n=$(cat {0} 2> /dev/null || echo 0); echo $((n + 1)) > {0}\nif grep -q 'a + b' a.py && [ $((n % 4)) = 0 ]; then {PASSES}; else echo FAILED t.py::add; echo PASSED t.py::other; fi",
                counter.display()
            );
            script(row, &commands);
        }),
        with(base, "hanging", |row| script(row, "sleep 30")),
        with(base, "gold-fails", |row| {
            row["patch"] = GOLD.replace("a + b", "a * b").into()
        }),
        with(base, "empty-passes", |row| script(row, PASSES)),
        with(base, "gold-refused", |row| {
            row["patch"] = GOLD
                .replace("def add(a, b)", "def sub(a, b)")
                .replace("a - b", "b - a")
                .into()
        }),
        with(base, "wrong-base", |row| row["base_commit"] = "1".repeat(40).into()),
        with(base, "good-1", |_| {}),
        with(base, "good-without-gold", |row| {
            drop(row.as_object_mut().unwrap().remove("patch"))
        }),
    ]
}

async fn world(files: &str) -> (World, Settings, tempfile::TempDir) {
    let scratch = tempfile::tempdir().unwrap();
    let world = World::of(files, |base| rows(base, scratch.path())).await;
    let mut settings = world.settings();
    settings.mode = Mode::Validate;
    settings.train.as_mut().unwrap().order = TaskOrder::InOrder;
    settings.evaluate.clear();
    settings.reward.grade_timeout = std::time::Duration::from_secs(5);
    (world, settings, scratch)
}

const FILES: &str = "printf 'def add(a, b):\\n    return a - b\\n' > a.py";

async fn of(world: &World, instance: &str) -> Vec<Finding> {
    let path = paths::validation("train", instance);
    let one: TaskValidation = world.store().read(&path).await.unwrap();
    one.findings
}

#[tokio::test]
async fn each_unfit_task_is_named_with_its_cause_and_no_good_one_is() {
    let (world, settings, _scratch) = world(FILES).await;
    world.go(settings, 1).await.unwrap();
    for good in ["good-0", "good-1", "good-without-gold"] {
        assert_eq!(of(&world, good).await, [], "{good}");
    }
    assert!(matches!(of(&world, "flaky").await[..], [Finding::Flaky { .. }]));
    assert!(matches!(
        of(&world, "hanging").await[..],
        [Finding::Hangs { .. }, Finding::Hangs { .. }]
    ));
    assert_eq!(of(&world, "gold-fails").await, [Finding::GoldFails { trials: 3 }]);
    assert_eq!(of(&world, "empty-passes").await, [Finding::EmptyPasses { trials: 3 }]);
    assert_eq!(of(&world, "gold-refused").await, [Finding::GoldDoesNotApply]);
    assert!(matches!(
        of(&world, "wrong-base").await[..],
        [Finding::BaseMissing { .. }, ..]
    ));
    let list = world.store().bytes(&paths::validated_ids("train")).await.unwrap();
    let list = String::from_utf8(list.to_vec()).unwrap();
    let fit: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(fit, ["good-0", "good-1", "good-without-gold"], "{list}");
    assert!(world.state().await.finished.unwrap().succeeded);
    assert!(world.gateway.state.lock().unwrap().leases.is_empty());
}

#[tokio::test]
async fn a_repository_with_commits_after_the_base_is_named() {
    let later = "git add -A; git commit -qm base; git checkout -qb fix; echo 'the fix' > fix.txt; git add -A; git commit -qm 'Add the fix'; git checkout -q -; rm -f fix.txt";
    let (world, settings, _scratch) = world(&format!("{FILES}\n{later}\nprintf x > x.txt")).await;
    world.go(settings, 1).await.unwrap();
    let found = of(&world, "good-0").await;
    assert!(
        matches!(&found[..], [Finding::LaterCommits { count: 1, newest }] if newest.ends_with("Add the fix")),
        "{found:?}"
    );
}

#[tokio::test]
async fn a_driver_that_comes_back_validates_no_task_again() {
    let (world, settings, _scratch) = world(FILES).await;
    world.go(settings.clone(), 1).await.unwrap();
    let graded = world.gateway.state.lock().unwrap().evaluations;
    world
        .store()
        .delete(&paths::validation("train", "good-1"))
        .await
        .unwrap();
    world.store().delete(&paths::validated_ids("train")).await.unwrap();
    // As if the first driver had ended before the last task.
    let journal = world.store().files_below(paths::JOURNAL).await.unwrap();
    world.store().delete(journal.last().unwrap()).await.unwrap();
    world.go(settings, 2).await.unwrap();
    let again = world.gateway.state.lock().unwrap().evaluations - graded;
    assert_eq!(again, 6, "three trials with the gold patch, three without");
    let list = world.store().bytes(&paths::validated_ids("train")).await.unwrap();
    assert!(
        String::from_utf8_lossy(&list).contains("\ngood-1\n"),
        "{}",
        json!(list.len())
    );
}

async fn list(world: &World) -> String {
    let list = world.store().bytes(&paths::validated_ids("train")).await.unwrap();
    String::from_utf8(list.to_vec()).unwrap()
}

#[tokio::test]
async fn a_task_that_the_infrastructure_lost_is_in_no_record_and_the_next_driver_tries_it_again() {
    for (id, priority, words) in [
        ("base", Priority::Agent, "# good: it has no sandbox: "),
        (
            "eval",
            Priority::Grader,
            "# good: the gold patch cannot be graded: no grader gave",
        ),
    ] {
        let world = World::of(FILES, |base| vec![with(base, "good", |_| {})]).await;
        let mut settings = world.settings();
        settings.mode = Mode::Validate;
        settings.evaluate.clear();
        settings.patience.grading = std::time::Duration::from_millis(500);
        *world.gateway.hook.lock().unwrap() = Some(Box::new(move |_, of, request| {
            (of == priority && request.id == id).then(|| world::lost(SandboxCause::NodeLost))
        }));
        world.go(settings.clone(), 1).await.unwrap();
        let path = paths::validation("train", "good");
        assert!(!world.store().exists(&path).await.unwrap(), "{id}");
        let lost = list(&world).await;
        assert!(lost.starts_with("# 0 of 1 tasks") && lost.contains(words), "{lost}");

        // Earlier drivers recorded it.
        let message = "no node".to_owned();
        let recorded = TaskValidation {
            schema: SCHEMA,
            writer: Writer::driver(1),
            set: "train".into(),
            instance: "good".into(),
            graded: None,
            findings: vec![Finding::NoSandbox { message }],
            gold: Vec::new(),
            empty: Vec::new(),
            at: 0,
        };
        world.store().create(&path, &recorded).await.unwrap();
        *world.gateway.hook.lock().unwrap() = None;
        settings.patience = world.settings().patience;
        world.go(settings, 2).await.unwrap();
        assert_eq!(of(&world, "good").await, []);
        assert!(list(&world).await.contains("\ngood\n"));
    }
}
