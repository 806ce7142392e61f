//! Mode Finetune with real surroundings: rows from a file, batches in the store, steps over HTTP.

use crate::world::{World, model};
use grpo_crds::grpo_run::Overlong;
use grpo_driver::config::Checkpoint;
use grpo_driver::downloads::Downloads;
use grpo_driver::fault::DriverError;
use grpo_driver::finetune::{Finetune, FinetuneSettings, HeldOut};
use grpo_driver::live;
use grpo_driver::progress::Board;
use grpo_driver::start::Process;
use grpo_driver::tasks::source::Source;
use grpo_records::supervised::AUTHOR;
use grpo_records::{Batch, paths};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// Rows whose second token is their position.
fn dataset(world: &World, name: &str, rows: u32) -> Source {
    let file = world.mount.path().join(name);
    let lines: Vec<String> = (0..rows)
        .map(|at| json!({"tokens": [3, at, 5, 6], "mask": [0, 1, 0, 1]}).to_string())
        .collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    Source::File(file)
}

/// Seven rows, two epochs, three rows a step: five steps, the last one with two rows.
fn settings(world: &World) -> FinetuneSettings {
    FinetuneSettings {
        namespace: "ns".into(),
        name: "run".into(),
        uid: "uid-1".into(),
        resume: Default::default(),
        seed: 7,
        store_path: "ns/run".into(),
        model: model(),
        dataset: dataset(world, "rows.jsonl", 7),
        resolved_only: true,
        epochs: 2,
        batch: 3,
        max_tokens: 64,
        overlong: Overlong::Refuse,
        thinking: true,
        held_out: Some(HeldOut {
            dataset: dataset(world, "held-out.jsonl", 2),
            every: 2,
        }),
        checkpoint: Checkpoint { every: 2, keep: 1 },
        trainer: world.trainer_url.clone(),
        patience: Duration::from_secs(20),
    }
}

async fn start(world: &World, settings: FinetuneSettings, attempt: u32) -> Result<(Finetune, Board), DriverError> {
    let process = Process {
        attempt,
        grader_worker: PathBuf::new(),
        grader_site: PathBuf::new(),
        tokens: world.mount.path().join("tokens"),
        hub: world.hub.clone(),
        sessions: world.sessions.clone(),
        changes: live::Source::Fixed,
    };
    let (store, board) = (world.store(), Board::new(&settings.uid, 10));
    let downloads = Downloads {
        settings: world.hub.clone(),
        store: &store,
        cache: PathBuf::new(),
        board: &board,
    };
    let run = Finetune::start(settings, &process, store.clone(), board.clone(), &downloads).await?;
    Ok((run, board.clone()))
}

async fn batches(world: &World) -> Vec<Batch> {
    let store = world.store();
    let mut batches = Vec::new();
    for step in 1..=5 {
        let mut batch: Batch = store.read(&paths::batch(step)).await.unwrap();
        let dir = world.dir();
        batch.fill(|path| std::fs::read(dir.join(path))).unwrap();
        batches.push(batch);
    }
    batches
}

#[tokio::test]
async fn every_row_is_learnt_once_in_each_epoch_and_the_loss_is_measured_on_others() {
    let world = World::new(1).await;
    let (run, board) = start(&world, settings(&world), 1).await.unwrap();
    run.go().await.unwrap();
    let batches = batches(&world).await;
    let positions: Vec<u32> = batches
        .iter()
        .flat_map(|batch| &batch.rows)
        .map(|row| row.task)
        .collect();
    assert_eq!(positions.len(), 14);
    for epoch in positions.chunks(7) {
        assert_eq!(epoch.iter().collect::<BTreeSet<_>>().len(), 7, "{epoch:?}");
    }
    assert_ne!(positions[..7], positions[7..], "each epoch is shuffled anew");
    for batch in &batches {
        let supervised = batch.supervised.as_ref().unwrap();
        assert_eq!(supervised.steps, 5);
        let measured = if [2, 4, 5].contains(&batch.step) { 2 } else { 0 };
        assert_eq!(supervised.held_out.len(), measured, "step {}", batch.step);
        for row in batch.rows.iter().chain(&supervised.held_out) {
            row.check().unwrap();
            assert_eq!((row.tokens[1], &row.mask[..]), (row.task, &[0, 1, 0, 1][..]));
            assert!(row.weights.iter().all(|span| span.version == AUTHOR));
        }
    }
    let kept: Vec<bool> = (world.trainer.kept.lock().unwrap().iter())
        .map(|order| order.unwrap().write)
        .collect();
    assert_eq!(kept, [false, true, false, true, true], "every second, and the last");
    let progress = board.now();
    assert_eq!((progress.iteration, progress.iterations), (Some(5), Some(5)));
    let state = world.state().await;
    assert!(state.finished.as_ref().unwrap().succeeded);
    assert_eq!(state.finished_iterations(), 5);
    assert!(
        world.gateway.state.lock().unwrap().leases.is_empty(),
        "nothing is sampled"
    );
}

#[tokio::test]
async fn a_driver_that_comes_back_asks_for_the_next_step_and_makes_the_same_batches() {
    let world = World::new(1).await;
    let (run, _) = start(&world, settings(&world), 1).await.unwrap();
    run.go().await.unwrap();
    let expected = batches(&world).await;

    let world = World::new(1).await;
    let far = paths::batch(4);
    // The third step waits for a file that is never written.
    world.trainer.waits_for.lock().unwrap().insert(3, far.clone());
    let (run, _) = start(&world, settings(&world), 1).await.unwrap();
    let stuck = tokio::time::timeout(Duration::from_secs(300), async {
        tokio::select! {
            done = run.go() => panic!("{done:?}"),
            () = async {
                while !world.store().exists(&paths::batch(3)).await.unwrap() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            } => {}
        }
    });
    stuck.await.unwrap();
    world.trainer.waits_for.lock().unwrap().clear();
    world.trainer.dies().await;
    let (run, _) = start(&world, settings(&world), 2).await.unwrap();
    run.go().await.unwrap();
    let rows = |batches: &[Batch]| batches.iter().map(|batch| batch.rows.clone()).collect::<Vec<_>>();
    assert_eq!(rows(&batches(&world).await), rows(&expected));
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_store_that_was_begun_with_other_rows_is_refused() {
    let world = World::new(1).await;
    let (run, _) = start(&world, settings(&world), 1).await.unwrap();
    run.go().await.unwrap();
    let other = FinetuneSettings {
        dataset: dataset(&world, "others.jsonl", 8),
        ..settings(&world)
    };
    let refused = start(&world, other, 2).await.map(|_| ()).unwrap_err();
    assert!(
        matches!(&refused, DriverError::Terminal(fault) if fault.reason == "TasksChanged"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_store_is_refused_to_a_run_that_validates_on_a_row_that_an_earlier_driver_trained_on() {
    let world = World::new(1).await;
    let lines = |name: &str, rows: std::ops::Range<u32>| {
        let file = world.mount.path().join(name);
        let lines = rows.map(|at| json!({"tokens": [3, at, 5, 6], "mask": [0, 1, 0, 1]}).to_string());
        std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
        Source::File(file)
    };
    let divided_at = |border: u32| FinetuneSettings {
        dataset: lines(&format!("{border}.jsonl"), 0..border),
        held_out: Some(HeldOut {
            dataset: lines(&format!("from-{border}.jsonl"), border..9),
            every: 2,
        }),
        ..settings(&world)
    };
    let (run, _) = start(&world, divided_at(7), 1).await.unwrap();
    run.go().await.unwrap();
    let refused = start(&world, divided_at(6), 2).await.map(|_| ()).unwrap_err();
    assert!(
        matches!(&refused, DriverError::Terminal(fault) if fault.reason == "TasksChanged"),
        "{refused}"
    );
    start(&world, divided_at(7), 3).await.unwrap();
}
