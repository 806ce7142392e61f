//! Runs whose engines and trainer take turns on the same devices.

use crate::world::{Engine, World};
use grpo_driver::config::ColocatedEngines;
use grpo_driver::fault::DriverError;
use grpo_driver::replicas::Endpoints;
use grpo_records::{Event, JournalEntry, paths};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Polls until `holds`.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let polls = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), polls).await.expect(what);
}

/// The path of a file that the test makes when step 1 may end.
const MAY_END: &str = "may-end.json";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_and_trainer_take_turns_and_the_run_is_that_of_separate_devices() {
    let world = World::new(1).await;
    world.go(world.colocated(), 1).await.unwrap();
    world.verified().await;
    assert_eq!(*world.trainer.together.lock().unwrap(), [""; 0]);
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2]);
    // Before the trainer starts, and before each step.
    assert_eq!(world.engine.sleeps.load(Ordering::Relaxed), 3);
    let apart = World::new(1).await;
    apart.go(apart.settings(), 1).await.unwrap();
    assert_eq!(apart.engine.sleeps.load(Ordering::Relaxed), 0);
    assert_eq!(entries(&world).await, entries(&apart).await);
}

/// The kinds of the journal's entries, in order, without those whose order depends on which episode ends first.
async fn entries(world: &World) -> Vec<String> {
    let store = world.store();
    let mut kinds = Vec::new();
    for path in store.files_below(paths::JOURNAL).await.unwrap() {
        let entry: JournalEntry = store.read(&path).await.unwrap();
        if !matches!(entry.event, Event::Verdict { .. }) {
            kinds.push(format!("{:?}", std::mem::discriminant(&entry.event)));
        }
    }
    kinds
}

/// A run in step 1, which ends once [`MAY_END`] exists. The engine sleeps.
async fn in_step_1(world: &World) -> JoinHandle<Result<(), DriverError>> {
    world.trainer.waits_for.lock().unwrap().insert(1, MAY_END.to_owned());
    let run = world.start(world.colocated(), 1).await.unwrap();
    let run = tokio::spawn(async move { run.go().await });
    let batch = world.dir().join(paths::batch(1));
    until("the first batch", || batch.exists()).await;
    until("the engine sleeps", || *world.engine.asleep.lock().unwrap()).await;
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trainer_that_restarts_in_a_step_gets_the_devices_again_while_the_engine_sleeps() {
    let world = World::new(1).await;
    let run = in_step_1(&world).await;
    world.trainer.dies().await;
    world.store().create(MAY_END, &serde_json::json!({})).await.unwrap();
    run.await.unwrap().unwrap();
    assert_eq!(*world.trainer.together.lock().unwrap(), [""; 0]);
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2]);
    world.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_starts_again_in_a_step_is_put_to_sleep_again() {
    let world = World::new(1).await;
    let run = in_step_1(&world).await;
    *world.engine.instance.lock().unwrap() = "two".into();
    *world.engine.asleep.lock().unwrap() = false;
    until("the new engine sleeps", || *world.engine.asleep.lock().unwrap()).await;
    world.store().create(MAY_END, &serde_json::json!({})).await.unwrap();
    run.await.unwrap().unwrap();
    world.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trainer_gets_no_devices_while_one_of_two_engines_does_not_sleep() {
    let world = World::new(1).await;
    let (other, address) = Engine::start("other").await;
    let mut settings = world.colocated();
    world.trainer.shares_with.lock().unwrap().push(other.clone());
    settings.engines = Endpoints::Fixed(vec![world.engine_address, address]);
    settings.colocated = Some(ColocatedEngines { replicas: 2 });
    settings.patience.weights = Duration::from_secs(2);
    *other.sleepless.lock().unwrap() = true;
    let ended = world.go(settings.clone(), 1).await.unwrap_err();
    let said = ended.to_string();
    assert!(
        matches!(ended, DriverError::Other(_)),
        "another attempt may succeed: {said}"
    );
    assert!(
        said.contains("1 of 2 engines did not sleep") && said.contains(&address.to_string()),
        "{said}"
    );
    *other.sleepless.lock().unwrap() = false;
    settings.patience.weights = Duration::from_secs(60);
    world.go(settings, 2).await.unwrap();
    assert_eq!(*world.trainer.together.lock().unwrap(), [""; 0]);
    world.verified().await;
}

#[tokio::test]
async fn a_run_with_devices_of_its_own_says_that_its_trainer_waits_for_shared_ones() {
    let world = World::new(1).await;
    world.trainer.shares_with.lock().unwrap().push(world.engine.clone());
    let mut settings = world.settings();
    settings.patience.trainer = Duration::from_millis(300);
    let said = world.go(settings, 1).await.unwrap_err().to_string();
    assert!(
        said.contains("set trainer.colocate, or use another trainer.image"),
        "{said}"
    );
}
