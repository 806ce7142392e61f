//! Task sets of a run: prepared sandboxes, skipped rows, reports.

use crate::rows::samples::{classic, with};
use crate::world::{self, World};
use grpo_driver::config::Settings;
use grpo_driver::fault::DriverError;
use grpo_driver::iterate::Run;
use grpo_records::store::sha256_hex;
use grpo_records::{Event, Journal, JournalEntry, Writer, paths};
use serde_json::{Value, json};

#[tokio::test]
async fn a_task_sets_every_sandbox_up_and_what_it_hides_is_there_for_the_grader_alone() {
    let world = World::new(1).await;
    let mut row = world.rows["task-0"].clone();
    let tests = "cd /testbed\necho '/hidden-tests' >> .git/info/exclude\necho secret > hidden-tests\n";
    row["setup"] = json!(tests);
    row["hide"] = json!(["/testbed/hidden-tests"]);
    let script = row["eval_script"].as_str().unwrap();
    row["eval_script"] = json!(script.replace(
        "cd /testbed\n",
        "cd /testbed\ntest \"$(cat hidden-tests)\" = secret || exit 1\n"
    ));
    std::fs::write(&world.tasks, row.to_string()).unwrap();
    *world.engine.policy.lock().unwrap() = Box::new(|prompt, seed| match prompt.matches("assistant\n").count() {
        1 => "Look.\n```bash\nls -a . /tmp/grpo\n```".to_owned(),
        _ => world::half_right(prompt, seed),
    });
    world.go(world.settings(), 1).await.unwrap();
    let metas = world.metas().await;
    assert!(metas.iter().all(|meta| meta.outcome.is_verdict()), "{metas:?}");
    assert!(metas.iter().any(|meta| meta.outcome == grpo_records::Outcome::Resolved));
    let store = world.store();
    for meta in metas {
        let trajectory: Value = store.read_json(&paths::trajectory(&meta.key.dir(1))).await.unwrap();
        let seen = trajectory.to_string();
        assert!(
            seen.contains("a.py") && !seen.contains("hidden-tests") && !seen.contains("setup.sh"),
            "{seen}"
        );
    }
    world.verified().await;
}

#[tokio::test]
async fn skipped_rows_are_shown_and_kept_in_the_store_and_the_store_goes_on_without_them() {
    let world = World::new(3).await;
    let mut rows: Vec<Value> = ["task-0", "task-1", "task-2"]
        .map(|name| world.rows[name].clone())
        .into();
    let classic = with(&classic("django/django", "3.0"), json!({"instance_id": "classic"}));
    rows.push(classic);
    rows[1]["log_parser"] = json!("parse_log_of_nobody");
    let write = |rows: &[Value]| {
        let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
        std::fs::write(&world.tasks, lines.join("\n")).unwrap();
    };
    write(&rows);
    let run = world.start(world.settings(), 1).await.unwrap();
    let names: Vec<_> = run.train_tasks.iter().map(|task| task.instance.as_str()).collect();
    assert_eq!(names, ["task-0", "task-2", "classic"]);
    let message = run.board.now().message.unwrap();
    let wanted = "tasks.train: 2 Compiled rows, 1 SweBench rows; 1 skipped: task-1 (field log_parser: ";
    assert!(
        message.contains(wanted) && message.contains("tasks.evaluate.fixed: "),
        "{message}"
    );
    let report: Value = world.store().read_json(&paths::task_report("train")).await.unwrap();
    assert_eq!(
        (&report["tasks"], &report["rows"]),
        (&json!(3), &json!({"Compiled": 2, "SweBench": 1}))
    );
    assert_eq!(report["skipped"][0]["place"], "train.jsonl line 2");
    let kept = world.store().bytes(&paths::task_rows("train")).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&kept).lines().count(), 3);
    // Removing its row leaves the same tasks.
    rows.remove(1);
    write(&rows);
    world.start(world.settings(), 2).await.unwrap();
}

#[tokio::test]
async fn tasks_with_long_prompts_are_left_out_of_every_set_and_named_in_its_report() {
    let world = World::new(3).await;
    let mut rows: Vec<Value> = ["task-0", "task-1", "task-2"]
        .map(|name| world.rows[name].clone())
        .into();
    rows[1]["problem_statement"] = json!("Fix everything. ".repeat(200));
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(&world.tasks, lines.join("\n")).unwrap();
    let mut settings = world.settings();
    settings.agent.limits.prompt_tokens = Some(200);
    let run = world.start(settings.clone(), 1).await.unwrap();
    for tasks in [&run.train_tasks, &run.evaluation_tasks[0]] {
        let named: Vec<_> = tasks.iter().map(|task| (task.index, task.instance.as_str())).collect();
        assert_eq!(named, [(0, "task-0"), (1, "task-2")]);
    }
    let message = run.board.now().message.unwrap();
    let wanted = "1 skipped: task-1 (its prompt has ";
    assert_eq!(message.matches(wanted).count(), 2, "{message}");
    assert!(
        message.contains("tokens, agent.limits.promptTokens is 200)"),
        "{message}"
    );
    let report: Value = world.store().read_json(&paths::task_report("train")).await.unwrap();
    assert_eq!(report["tasks"], 2);
    assert_eq!(report["skipped"][0]["place"], "task 2 of the selection");
    run.go().await.unwrap();
    world.verified().await;

    settings.agent.limits.prompt_tokens = Some(5);
    let fault = world.start(settings, 2).await.err().unwrap().to_string();
    assert!(
        fault.contains("tasks.train: no task is left, every prompt is too long: 3 skipped"),
        "{fault}"
    );
}

/// A run on these tasks of a world.
fn on(world: &World, train: &[&str], evaluated: &[&str]) -> Settings {
    let names = |of: &[&str]| of.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut settings = world.settings();
    settings.train.as_mut().unwrap().tasks.instances = names(train);
    settings.evaluate[0].tasks.instances = names(evaluated);
    settings.evaluate[0].at_start = false;
    settings
}

/// Makes the journal's first entry that of an earlier driver: it has a checksum over the rows alone, which is the same
/// now, so that a driver can be rolled back.
fn as_before(world: &World, run: &Run) {
    let tasks = run.train_tasks.iter().chain(run.evaluation_tasks.iter().flatten());
    let rows: String = tasks.map(|task| task.sha256.as_str()).collect();
    let first = world.dir().join(paths::journal_entry(1));
    let mut entry: JournalEntry = serde_json::from_slice(&std::fs::read(&first).unwrap()).unwrap();
    let Event::RunStarted {
        tasks_sha256,
        sets_sha256,
        ..
    } = &mut entry.event
    else {
        panic!("{entry:?}");
    };
    assert_eq!(*tasks_sha256, sha256_hex(rows.as_bytes()));
    *sets_sha256 = None;
    std::fs::write(&first, serde_json::to_vec(&entry).unwrap()).unwrap();
}

fn is_about_other_tasks(ended: &DriverError) -> bool {
    matches!(ended, DriverError::Terminal(fault) if fault.reason == "TasksChanged")
}

#[tokio::test]
async fn a_row_that_moves_from_one_set_to_another_makes_other_tasks() {
    let world = World::new(3).await;
    let settings = on(&world, &["task-0", "task-1"], &["task-2"]);
    let run = world.start(settings.clone(), 1).await.unwrap();
    let moved = on(&world, &["task-0"], &["task-1", "task-2"]);
    let refused = world.start(moved, 2).await.err().unwrap();
    assert!(is_about_other_tasks(&refused), "{refused}");
    as_before(&world, &run);
    world.start(settings, 3).await.unwrap();
}

#[tokio::test]
async fn a_group_on_a_task_that_its_set_does_not_have_ends_the_run_with_a_fault() {
    let world = World::new(3).await;
    let settings = on(&world, &["task-0", "task-1"], &["task-2"]);
    let run = world.start(settings, 1).await.unwrap();
    // The checksum of earlier drivers does not show that a row moved.
    as_before(&world, &run);
    let (mut journal, mut state) = Journal::open(world.store(), Writer::driver(1)).await.unwrap();
    let begun = Event::IterationStarted {
        iteration: 1,
        weights: "a-v0".into(),
        tasks: vec![0, 1],
        dynamic: None,
    };
    journal.append(begun, &mut state).await.unwrap();
    let moved = on(&world, &["task-0"], &["task-1", "task-2"]);
    let ended = world.go(moved, 2).await.unwrap_err();
    assert!(is_about_other_tasks(&ended), "{ended}");
    assert!(
        ended
            .to_string()
            .contains("group 1 of rollouts/iter-000001 is about task 1"),
        "{ended}"
    );
    assert!(world.metas().await.is_empty(), "nothing was sampled");
}
