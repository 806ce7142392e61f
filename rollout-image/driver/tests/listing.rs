//! `grpo-driver tasks`: the tasks that a run would have, over a socket.

use crate::process;
use crate::rows::samples::{classic, with};
use crate::world::{self, World};
use grpo_contracts::RunConfig;
use grpo_contracts::task_sets::{ROUTE, SetReport, TasksLine, TasksQuestion};
use grpo_driver::tasks::listing::{self, Lister};
use grpo_hub::HubSettings;
use grpo_records::paths;
use serde_json::{Value, json};

fn question(world: &World, sets: &[&str]) -> TasksQuestion {
    let file = process::config(world, 1);
    let config: RunConfig = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    TasksQuestion {
        config,
        sets: sets.iter().map(|name| (*name).to_owned()).collect(),
    }
}

async fn answered(world: &World, question: &TasksQuestion) -> Vec<TasksLine> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{ROUTE}", listener.local_addr().unwrap());
    let lister = Lister {
        grader_worker: world::grader_worker(),
        grader_site: world::grader_site(),
        hub: HubSettings::default(),
        scratch: world.mount.path().join("scratch"),
    };
    tokio::spawn(async move { axum::serve(listener, listing::router(lister)).await.unwrap() });
    let answer = reqwest::Client::new().post(url).json(question).send().await.unwrap();
    let text = answer.text().await.unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.filter(|line| !matches!(line, TasksLine::Progress(_))).collect()
}

/// Three complete rows, one of them ungradable, and one row of another format.
async fn world() -> World {
    let world = World::new(3).await;
    let mut rows: Vec<Value> = ["task-0", "task-1", "task-2"]
        .map(|name| world.rows[name].clone())
        .into();
    rows[1]["log_parser"] = json!("parse_log_that_is_not_there");
    rows.push(with(
        &classic("django/django", "3.0"),
        json!({"instance_id": "classic"}),
    ));
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(&world.tasks, lines.join("\n")).unwrap();
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_is_what_a_run_keeps_in_its_store() {
    let world = world().await;
    world.start(world.settings(), 1).await.unwrap();
    let report: SetReport = world.store().read_json(&paths::task_report("train")).await.unwrap();
    let rows = world.store().bytes(&paths::task_rows("train")).await.unwrap();
    let rows = String::from_utf8_lossy(&rows).into_owned();
    let lines = answered(&world, &question(&world, &["train"])).await;
    assert_eq!(lines[0], TasksLine::Set(report));
    let answered: Vec<String> = lines[1..lines.len() - 1]
        .iter()
        .map(|line| match line {
            TasksLine::Row(row) => row.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(answered, rows.lines().collect::<Vec<_>>());
    assert_eq!(lines.last(), Some(&TasksLine::Done));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_sets_are_answered_one_after_the_other_unless_some_are_named() {
    let world = world().await;
    let sets = |lines: Vec<TasksLine>| {
        let names = lines.into_iter().filter_map(|line| match line {
            TasksLine::Set(report) => Some(report.set),
            _ => None,
        });
        names.collect::<Vec<_>>()
    };
    assert_eq!(
        sets(answered(&world, &question(&world, &[])).await),
        ["train", "evaluate.fixed"]
    );
    let named = question(&world, &["evaluate.fixed"]);
    assert_eq!(sets(answered(&world, &named).await), ["evaluate.fixed"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_would_end_the_run_ends_the_answer() {
    let world = world().await;
    let fault = |mut lines: Vec<TasksLine>| match lines.pop() {
        Some(TasksLine::Fault { reason, message }) => (reason, message),
        other => panic!("{other:?}"),
    };
    let mut asked = question(&world, &[]);
    asked.config.datasets.clear();
    assert_eq!(fault(answered(&world, &asked).await).0, "DatasetNotMounted");
    std::fs::write(&world.tasks, "{\n").unwrap();
    let (reason, message) = fault(answered(&world, &question(&world, &[])).await);
    assert!(
        reason == "TaskRowInvalid" && message.contains("line 1"),
        "{reason}: {message}"
    );
}
