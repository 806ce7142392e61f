//! A driver whose orders are refused, because a later attempt of the run's driver gives them.

use crate::world::{World, fenced};
use grpo_driver::config::Settings;
use grpo_driver::fault::DriverError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Runs attempt 1 and checks that it ends because of attempt 2.
async fn ends_as_superseded(world: &World, settings: Settings) {
    let ended = tokio::time::timeout(Duration::from_secs(120), world.go(settings, 1));
    let ended = ended.await.expect("it does not end").unwrap_err();
    assert!(
        matches!(ended, DriverError::Superseded { epoch: 1, newer: 2 }),
        "{ended}"
    );
    assert!(world.state().await.finished.is_none(), "the run is not to blame");
}

#[tokio::test]
async fn a_driver_whose_weights_an_agent_refuses_for_a_later_driver_ends() {
    let world = World::new(1).await;
    fenced::hears_of(&world.engine.fence, 2);
    ends_as_superseded(&world, world.settings()).await;
    assert!(world.engine.orders.lock().unwrap().is_empty());
    assert!(world.engine.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_driver_whose_order_to_sleep_is_refused_for_a_later_driver_ends_and_gives_no_devices() {
    let world = World::new(1).await;
    fenced::hears_of(&world.engine.fence, 2);
    ends_as_superseded(&world, world.colocated()).await;
    assert_eq!(world.engine.sleeps.load(Ordering::Relaxed), 0);
    assert_eq!(*world.trainer.together.lock().unwrap(), [""; 0]);
    assert!(world.trainer.steps_run.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_driver_whose_step_the_trainer_refuses_for_a_later_driver_ends() {
    let world = World::new(1).await;
    fenced::hears_of(&world.trainer.fence, 2);
    ends_as_superseded(&world, world.settings()).await;
    assert!(world.trainer.steps_run.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_driver_whose_grant_of_devices_the_trainer_refuses_for_a_later_driver_ends() {
    let world = World::new(1).await;
    fenced::hears_of(&world.trainer.fence, 2);
    ends_as_superseded(&world, world.colocated()).await;
    // It had put the engine to sleep; the later driver wakes it up.
    assert_eq!(world.engine.sleeps.load(Ordering::Relaxed), 1);
    assert!(world.trainer.steps_run.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_engine_that_an_earlier_driver_put_to_sleep_counts_only_after_an_order_of_this_one() {
    let world = World::new(1).await;
    let mut settings = world.colocated();
    settings.patience.weights = Duration::from_secs(2);
    *world.engine.asleep.lock().unwrap() = true;
    *world.engine.sleepless.lock().unwrap() = true;
    let ended = world.go(settings.clone(), 2).await.unwrap_err().to_string();
    assert!(ended.contains("1 of 1 engines did not sleep"), "{ended}");
    *world.engine.sleepless.lock().unwrap() = false;
    settings.patience.weights = Duration::from_secs(60);
    world.go(settings, 3).await.unwrap();
    assert_eq!(*world.trainer.together.lock().unwrap(), [""; 0]);
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2]);
}
