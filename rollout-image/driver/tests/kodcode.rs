//! Runs on rows of KodCode: files that every sandbox writes, an image that is asked for its modules, graders with a
//! real pytest.

use crate::world::{self, World};
use grpo_crds::grpo_run::RowFormat;
use grpo_driver::config::Settings;
use grpo_driver::fault::DriverError;
use grpo_records::{Outcome, paths};
use grpo_sandbox_protocol::{Priority, SandboxCause};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn row(id: u32, import: &str) -> Value {
    let file = |path: &str, content: String| json!({"path": path, "content": content});
    let code = format!("{import}def add(a, b):\n    return a - b\n");
    let tests = format!("from solution import add\n\n\ndef test_add():\n    assert add({id}, 1) == {id} + 1\n");
    json!({
        "task_id": id, "problem_statement": "Find the bug.", "prompt": "[]",
        "extra_info": {
            "task_name": "t", "entrypoint": "python -m pytest -s test.py",
            "files": [file("solution.py", code), file("test.py", tests)],
        },
    })
}

/// Looks, fixes the program if the seed is even, submits.
fn half_right(prompt: &str, seed: u64) -> String {
    let command = match prompt.matches("assistant\n").count() {
        1 => "cat solution.py".to_owned(),
        2 if seed.is_multiple_of(2) => "sed -i 's/a - b/a + b/' solution.py".to_owned(),
        2 => format!("echo '# {seed}' >> solution.py; echo 'def test_add(): pass' > test.py"),
        _ => "echo SUBMIT".to_owned(),
    };
    format!("Go.\n```bash\n{command}\n```")
}

/// A world with pytest in its sandboxes, and settings of one iteration on these rows.
async fn world_of(rows: &[Value]) -> (World, Settings) {
    let world = World::new(1).await;
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(&world.tasks, lines.join("\n")).unwrap();
    world.gateway.state.lock().unwrap().programs = Some(world::pytest());
    *world.engine.policy.lock().unwrap() = Box::new(half_right);
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    let tasks = &mut settings.train.as_mut().unwrap().tasks;
    tasks.format = RowFormat::KodCode;
    tasks.image = Some("img/kod:1".to_owned());
    (world, settings)
}

#[tokio::test]
async fn a_run_learns_from_programs_and_their_tests_and_its_verdicts_can_be_judged_again() {
    let rows = [row(1, ""), row(2, "import no_such_module\n"), row(3, "import json\n")];
    let (world, settings) = world_of(&rows).await;
    let lost = AtomicU32::new(0);
    *world.gateway.hook.lock().unwrap() = Some(Box::new(move |lease, priority, request| {
        let is_probe = request.id == "modules" && priority == Priority::Grader && lease.image == "img/kod:1";
        (is_probe && lost.fetch_add(1, Ordering::Relaxed) < 2).then(|| world::lost(SandboxCause::NodeLost))
    }));
    let run = world.start(settings, 1).await.unwrap();
    let names: Vec<&str> = run.train_tasks.iter().map(|task| task.instance.as_str()).collect();
    assert_eq!(names, ["1", "3"]);
    run.go().await.unwrap();
    let asked = world.gateway.state.lock().unwrap().ran.clone();
    assert_eq!(
        asked.keys().filter(|(_, id)| id == "modules").count(),
        1,
        "lost probes are not verdicts"
    );

    let metas = world.metas().await;
    let resolved = metas.iter().filter(|meta| meta.outcome == Outcome::Resolved).count();
    assert!(resolved > 0 && resolved < metas.len(), "{resolved} of {}", metas.len());
    assert!(metas.iter().all(|meta| meta.outcome.is_verdict()), "{metas:?}");
    let report: Value = world.store().read_json(&paths::task_report("train")).await.unwrap();
    assert_eq!(report["rows"], json!({"KodCode": 2}));
    let cause = report["skipped"][0]["cause"].as_str().unwrap();
    assert!(
        cause.starts_with("field imports: image img/kod:1 lacks no_such_module; "),
        "{cause}"
    );
    let checks = grpo_verify::text(&world.recomputed().await.1);
    world.verified().await;
    let judged = checks.lines().find(|line| line.contains("graders' logs")).unwrap();
    assert!(!judged.contains(" 0 looked at"), "{judged}");
}

#[tokio::test]
async fn an_image_that_cannot_be_asked_ends_the_attempt_and_skips_no_row() {
    let (world, mut settings) = world_of(&[row(1, "")]).await;
    settings.patience.grading = Duration::from_millis(300);
    *world.gateway.hook.lock().unwrap() = Some(Box::new(|_, _, request| {
        (request.id == "modules").then(|| world::lost(SandboxCause::NodeLost))
    }));
    let ended = world.start(settings, 1).await.err();
    let Some(DriverError::Other(message)) = ended else {
        panic!("{ended:?}");
    };
    assert!(message.contains("image img/kod:1 did not say within"), "{message}");
}

#[tokio::test]
async fn a_set_without_an_image_is_refused_with_the_field_to_set() {
    let (world, mut settings) = world_of(&[row(1, "")]).await;
    settings.train.as_mut().unwrap().tasks.image = None;
    let ended = world.start(settings, 1).await.err();
    let Some(DriverError::Terminal(fault)) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(fault.reason, "NoTasks");
    assert!(fault.message.contains("set image beside format: KodCode"), "{fault}");
}
