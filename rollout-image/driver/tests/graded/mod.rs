//! Rows as their publishers define them, completed by `tasks::load`, and graded: setup, patch and evaluation script
//! really run, with a real pytest, and the official package judges the log.

mod commands_in_rows;
mod projects;
mod publishers;
mod sandbox;
mod tampering;

use self::publishers::{Case, Publisher, ROWS};
use self::sandbox::Folder;
use crate::world::{self, Images};
use grpo_driver::grader_worker::GraderWorker;
use grpo_driver::tasks::{self, Task, TaskSet, selection::Selection};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

fn worker() -> GraderWorker {
    GraderWorker::new(world::grader_worker(), world::grader_site())
}

async fn load(publisher: &Publisher, rows: &[Value], worker: &GraderWorker) -> TaskSet {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.jsonl");
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    let selection = Selection {
        format: publisher.format,
        image: Some("registry.example.com/python:1".to_owned()),
        ..Selection::default()
    };
    let images = Images(vec!["pytest"]);
    let set = tasks::load("train", &selection, &[file], &Default::default(), worker, &images).await;
    set.unwrap_or_else(|error| panic!("{}: {error}", publisher.name))
}

/// Counts of one publisher's graded rows.
#[derive(Default)]
struct Figures {
    completed: usize,
    resolved_by_gold: usize,
    resolved_by_nothing: usize,
    skipped: usize,
    accepted: usize,
}

async fn verdict(worker: &GraderWorker, folder: &Path, task: &Task, patch: &str, log: &str) -> bool {
    let file = folder.join(format!("{}-{}", task.instance, patch.len()));
    std::fs::write(&file, log).unwrap();
    let report = worker.judge(&task.instance, &task.row, patch, &file).await.unwrap();
    assert_eq!(report.status, "Judged", "{}: {log}", task.instance);
    report.resolved
}

async fn figures(publisher: &Publisher, worker: &Arc<GraderWorker>, cores: &Arc<Semaphore>) -> Figures {
    let make = publisher.case;
    let made = (0..ROWS).map(|n| tokio::task::spawn_blocking(move || make(n)));
    let mut cases: Vec<Case> = Vec::new();
    for case in made.collect::<Vec<_>>() {
        cases.push(case.await.unwrap());
    }
    let rows: Vec<Value> = cases.iter().map(|case| case.row.clone()).collect();
    let set = load(publisher, &rows, worker).await;
    assert_eq!(set.report.skipped, [], "{}", publisher.name);
    let mut figures = Figures {
        completed: set.tasks.len(),
        ..Figures::default()
    };
    let mut runs = JoinSet::new();
    for (case, task) in cases.into_iter().zip(set.tasks) {
        for patch in [case.gold, String::new()] {
            let (worker, cores, task, image) = (worker.clone(), cores.clone(), task.clone(), case.image.clone());
            runs.spawn(async move {
                let script = worker.eval_script(&task.instance, &task.row).await.unwrap();
                let place = cores.acquire_owned().await.unwrap();
                let evaluated = tokio::task::spawn_blocking(move || {
                    let log = Folder::new(&image).evaluate(&task, &patch, &script);
                    drop(place);
                    (task, patch, log)
                });
                let (task, patch, log) = evaluated.await.unwrap();
                let logs = tempfile::tempdir().unwrap();
                let resolved = verdict(&worker, logs.path(), &task, &patch, &log).await;
                assert_eq!(resolved, !patch.is_empty(), "{}, patch {patch:?}: {log}", task.instance);
                (!patch.is_empty(), resolved)
            });
        }
    }
    while let Some(run) = runs.join_next().await {
        let (with_gold, resolved) = run.unwrap();
        figures.resolved_by_gold += usize::from(with_gold && resolved);
        figures.resolved_by_nothing += usize::from(!with_gold && resolved);
    }
    figures
}

/// Ungradable rows beside a gradable one.
async fn skipped(publisher: &Publisher, worker: &GraderWorker) -> (usize, usize) {
    let (mut rows, fields): (Vec<Value>, Vec<&str>) = (publisher.spoilt)().into_iter().unzip();
    rows.push((publisher.case)(ROWS - 1).row);
    let set = load(publisher, &rows, worker).await;
    let causes: Vec<&str> = set.report.skipped.iter().map(|row| row.cause.as_str()).collect();
    assert_eq!(causes.len(), fields.len(), "{}: {causes:?}", publisher.name);
    for (cause, field) in causes.iter().zip(&fields) {
        assert!(
            cause.starts_with(&format!("field {field}: ")),
            "{}: {cause}, not {field}",
            publisher.name
        );
    }
    (causes.len(), set.tasks.len() - 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_rows_of_each_publisher_are_resolved_by_their_gold_patch_and_by_nothing_else() {
    let worker = Arc::new(worker());
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let cores = Arc::new(Semaphore::new(cores));
    let mut table = Vec::new();
    for publisher in publishers::all().into_iter().chain(commands_in_rows::all()) {
        let mut figures = figures(&publisher, &worker, &cores).await;
        (figures.skipped, figures.accepted) = skipped(&publisher, &worker).await;
        assert!(figures.skipped >= 3, "{}", publisher.name);
        let Figures {
            completed,
            resolved_by_gold,
            resolved_by_nothing,
            skipped,
            accepted,
        } = figures;
        assert_eq!(
            (completed, resolved_by_gold, resolved_by_nothing, accepted),
            (ROWS, ROWS, 0, 0),
            "{}",
            publisher.name
        );
        table.push(format!(
            "{:<20}{completed:>10}{resolved_by_gold:>10}{resolved_by_nothing:>10}{skipped:>10}{accepted:>10}",
            publisher.name
        ));
    }
    println!(
        "{:<20}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "rows", "completed", "gold", "empty", "skipped", "accepted"
    );
    println!("{}", table.join("\n"));
}
