//! A run that is applied again under its name: a new run in a store with the results of an earlier one.

use crate::world::World;
use grpo_crds::grpo_run::Mode;
use grpo_driver::config::{Inputs, Settings};
use grpo_driver::fault::DriverError;
use grpo_records::{Event, JournalEntry, paths};

/// The settings of the run that is applied again.
fn again(settings: &Settings) -> Settings {
    Settings {
        uid: "uid-2".into(),
        ..settings.clone()
    }
}

async fn last_event(world: &World) -> Event {
    let journal = world.store().files_below(paths::JOURNAL).await.unwrap();
    let last: JournalEntry = world.store().read(journal.last().unwrap()).await.unwrap();
    last.event
}

#[tokio::test]
async fn with_more_iterations_it_continues_and_its_journal_says_again_that_it_finished() {
    let world = World::new(1).await;
    let mut settings = world.settings();
    settings.evaluate.clear();
    settings.iterations = 1;
    world.go(settings.clone(), 1).await.unwrap();
    let mut longer = again(&settings);
    longer.iterations = 2;
    let run = world.start(longer, 1).await.unwrap();
    assert_eq!(world.state().await.finished, None, "it works again");
    run.go().await.unwrap();
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2]);
    let last = last_event(&world).await;
    assert!(matches!(last, Event::RunFinished { succeeded: true, .. }), "{last:?}");
}

/// A finished evaluation of one task, and its settings.
async fn evaluated() -> (World, Settings) {
    let world = World::new(1).await;
    let mut settings = world.settings();
    settings.mode = Mode::Evaluate;
    world.go(settings.clone(), 1).await.unwrap();
    (world, settings)
}

#[tokio::test]
async fn an_evaluation_of_something_else_does_not_show_the_earlier_results_as_its_own() {
    let (world, settings) = evaluated().await;
    let changes: [(fn(&mut Settings), &str); 2] = [
        (
            |settings| settings.inputs.sha256 = "11".into(),
            "another model, another agent",
        ),
        (
            |settings| settings.sampling.temperature = 0.5,
            "another rollout.sampling",
        ),
    ];
    for (change, words) in changes {
        let mut other = again(&settings);
        change(&mut other);
        let refused = world.start(other, 1).await.err().unwrap();
        assert!(
            matches!(&refused, DriverError::Terminal(fault) if fault.reason == "TasksChanged"),
            "{refused}"
        );
        let message = refused.to_string();
        assert!(message.contains(words) && message.contains("store.path"), "{message}");
    }
    let asked = world.engine.asked.lock().unwrap().len();
    world.go(again(&settings), 1).await.unwrap();
    assert_eq!(
        world.engine.asked.lock().unwrap().len(),
        asked,
        "the same evaluation takes its results over"
    );
}

#[tokio::test]
async fn a_driver_that_comes_back_evaluates_with_the_sampling_that_its_run_changed_meanwhile() {
    let (world, mut settings) = evaluated().await;
    settings.sampling.temperature = 0.5;
    world.go(settings, 2).await.unwrap();
}

#[tokio::test]
async fn an_evaluation_in_a_store_that_does_not_say_what_was_measured_is_accepted() {
    let (world, settings) = evaluated().await;
    // As an earlier version wrote it.
    let first = world.dir().join(paths::journal_entry(1));
    let mut entry: JournalEntry = serde_json::from_slice(&std::fs::read(&first).unwrap()).unwrap();
    let Event::RunStarted { inputs_sha256, .. } = &mut entry.event else {
        panic!("{entry:?}");
    };
    assert_eq!(inputs_sha256.take(), Some(settings.inputs.sha256.clone()));
    std::fs::write(&first, serde_json::to_vec(&entry).unwrap()).unwrap();
    let mut other = again(&settings);
    other.inputs.sha256 = "11".into();
    world.go(other, 1).await.unwrap();
}

#[tokio::test]
async fn an_evaluation_in_a_store_with_the_checksum_of_an_earlier_version_is_accepted() {
    let (world, settings) = evaluated().await;
    let mut newer = again(&settings);
    newer.inputs = Inputs {
        sha256: "11".into(),
        earlier: settings.inputs.sha256.clone(),
    };
    world.go(newer, 1).await.unwrap();
}

#[tokio::test]
async fn an_evaluation_that_failed_before_it_began_may_be_corrected() {
    let world = World::new(1).await;
    let mut settings = world.settings();
    settings.mode = Mode::Evaluate;
    world.start(settings.clone(), 1).await.unwrap();
    let mut other = again(&settings);
    other.inputs.sha256 = "11".into();
    world.go(other, 1).await.unwrap();
}
