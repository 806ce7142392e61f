//! Task sets of a run: prepared sandboxes, skipped rows, reports.

use crate::rows::samples::{classic, with};
use crate::world::{self, World};
use grpo_records::paths;
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
