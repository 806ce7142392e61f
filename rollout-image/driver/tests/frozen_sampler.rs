//! A run whose engines never take new weights.

use crate::world::{self, World};

/// An external server that always serves the base model.
#[tokio::test]
async fn a_frozen_sampler_is_trained_on_without_being_given_weights() {
    let world = World::new(1).await;
    *world.engine.stuck.lock().unwrap() = true;
    let mut settings = world.settings();
    settings.frozen_sampler = true;
    settings.max_staleness = 1;
    world.go(settings, 1).await.unwrap();
    let folder = world.verified().await;
    assert!(world.engine.orders.lock().unwrap().is_empty());
    assert!(
        world
            .engine
            .asked
            .lock()
            .unwrap()
            .iter()
            .all(|(.., version)| version == "base")
    );
    // Both iterations have batches: tokens of the base model are not stale. The trained weights are promoted, and in
    // the store.
    assert_eq!(world::rows_of_steps(&folder), [8, 8]);
    assert_eq!(folder.state.promoted.as_ref().map(|promoted| promoted.step), Some(2));
    // The base model is measured once, however often the set is due.
    assert_eq!(folder.evaluations(), [("fixed".to_owned(), "base".to_owned())]);
}
