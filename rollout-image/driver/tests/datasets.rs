//! Rows from the hub: pinned when a run begins, and read again by every later driver.

use crate::world::World;
use grpo_driver::config::Settings;
use grpo_driver::fault::{DriverError, TerminalFault};
use grpo_driver::tasks::source::{HubSplit, Source};
use grpo_hub::played::{Content, Damage, PlayedHub};
use grpo_hub::{HubSettings, Repository};
use std::collections::BTreeMap;

const CARD: &str =
    "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: test\n    path: data/test-*\n---\n";

fn repository() -> Repository {
    Repository::dataset("owner/tasks")
}

/// The rows as the split `test`, in two files.
fn push(played: &PlayedHub, rows: &[String]) {
    let half = |rows: &[String]| Content::Large(rows.join("\n").into());
    let (first, second) = rows.split_at(rows.len() / 2);
    let files = [
        ("README.md", Content::Small(CARD.into())),
        ("data/test-00000-of-00002.jsonl", half(first)),
        ("data/test-00001-of-00002.jsonl", half(second)),
        ("data/train-00000-of-00001.jsonl", Content::Large("{}".into())),
    ];
    let files: BTreeMap<_, _> = files.map(|(path, content)| (path.to_owned(), content)).into();
    played.push(&repository(), "main", files);
}

/// A run that trains on the split and evaluates on it.
fn of_the_hub(world: &World) -> (Settings, HubSplit) {
    let split = HubSplit {
        repository: "owner/tasks".into(),
        config: None,
        split: "test".into(),
        revision: None,
        token: None,
    };
    let mut settings = world.settings();
    let train = settings.train.as_mut().unwrap();
    train.tasks.source = Source::Hub(split.clone());
    settings.evaluate[0].tasks = train.tasks.clone();
    (settings, split)
}

async fn hub(world: &mut World) -> (PlayedHub, Vec<String>) {
    let played = PlayedHub::start().await.unwrap();
    world.hub = HubSettings {
        endpoint: Some(played.endpoint.clone()),
        ..HubSettings::default()
    };
    let rows: Vec<String> = std::fs::read_to_string(&world.tasks)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    push(&played, &rows);
    (played, rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_run_reads_the_rows_it_began_with_though_the_branch_moved_and_the_hub_is_away() {
    let mut world = World::new(4).await;
    let (played, rows) = hub(&mut world).await;
    let (settings, _) = of_the_hub(&world);
    let names = |run: &grpo_driver::iterate::Run| {
        let tasks = run.train_tasks.iter().chain(run.evaluation_tasks.iter().flatten());
        tasks.map(|task| task.instance.clone()).collect::<Vec<_>>()
    };
    let run = world.start(settings.clone(), 1).await.unwrap();
    let began_with = names(&run);
    let all = ["task-0", "task-1", "task-2", "task-3"];
    assert_eq!(began_with, [all, all].concat());
    let asked = played.requests().len();
    push(&played, &rows[..2]);
    let run = world.start(settings.clone(), 2).await.unwrap();
    assert_eq!((names(&run), played.requests().len()), (began_with.clone(), asked));
    drop(played);
    let run = world.start(settings, 3).await.unwrap();
    assert_eq!(names(&run), began_with);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gated_dataset_ends_the_run_with_the_remedy_unless_there_is_a_token() {
    let mut world = World::new(2).await;
    let (played, _) = hub(&mut world).await;
    played.gate(&repository(), "secret");
    let (mut settings, mut split) = of_the_hub(&world);
    let fault = |error: Result<_, DriverError>| match error.map(drop) {
        Err(DriverError::Terminal(TerminalFault { reason, message })) => (reason, message),
        other => panic!("{other:?}"),
    };
    let (reason, message) = fault(world.start(settings.clone(), 1).await);
    assert_eq!(reason, "DatasetUnavailable");
    assert!(
        message.contains("owner/tasks") && message.contains("tokenSecretRef"),
        "{message}"
    );
    let token = world.mount.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    split.token = Some(token);
    settings.train.as_mut().unwrap().tasks.source = Source::Hub(split.clone());
    settings.evaluate[0].tasks.source = Source::Hub(split);
    world.start(settings, 2).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_that_is_away_costs_an_attempt_and_not_the_run() {
    let mut world = World::new(2).await;
    let (played, _) = hub(&mut world).await;
    played.spoil_api([Damage::Status(503); 12]);
    let (settings, _) = of_the_hub(&world);
    let error = world.start(settings.clone(), 1).await.map(drop).unwrap_err();
    assert!(
        matches!(&error, DriverError::Other(message) if message.contains("owner/tasks")),
        "{error}"
    );
    world.start(settings, 2).await.unwrap();
}
