//! Rollouts beside steps: running episodes when new weights come, and how far rollouts may be ahead.

use crate::world::{self, World};
use grpo_crds::grpo_run::{OnSync, TaskOrder};
use grpo_driver::config::Settings;
use grpo_records::{EpisodeKey, EpisodeMeta, EpisodeScope, paths};
use std::collections::BTreeSet;

/// Looks, changes the file in two seconds, submits.
fn slow(prompt: &str, seed: u64) -> String {
    let changes = match seed.is_multiple_of(2) {
        true => "sed -i 's/a - b/a + b/' $F",
        false => "echo '# no' >> $F",
    };
    let command = match prompt.matches("assistant\n").count() {
        1 => "cat $F".to_owned(),
        2 => format!("sleep 2; {changes}"),
        _ => "echo SUBMIT".to_owned(),
    };
    format!("Go.\n```bash\n{command}\n```")
}

const SECOND: EpisodeScope = EpisodeScope::Iteration { iteration: 2 };

/// Two iterations of one task. Step 1 ends when an episode of iteration 2 has its first turn, so that new weights come
/// during the episode.
async fn met_by_new_weights(on_sync: OnSync) -> (World, Settings) {
    let world = World::new(1).await;
    *world.engine.policy.lock().unwrap() = Box::new(slow);
    let mut settings = world.settings();
    settings.train.as_mut().unwrap().order = TaskOrder::InOrder;
    settings.evaluate.clear();
    settings.max_staleness = 1;
    (settings.prompts, settings.samples) = (1, 2);
    settings.on_sync = on_sync;
    let first = EpisodeKey {
        scope: SECOND,
        instance: "task-0".into(),
        group: 0,
        sample: 0,
    };
    let middle = paths::turn(&first.dir(1), 0);
    world.trainer.waits_for.lock().unwrap().insert(1, middle);
    world.go(settings.clone(), 1).await.unwrap();
    (world, settings)
}

async fn of_second(world: &World) -> Vec<EpisodeMeta> {
    let metas = world.metas().await;
    metas.into_iter().filter(|meta| meta.key.scope == SECOND).collect()
}

#[tokio::test]
async fn with_continue_an_episode_goes_on_under_new_weights_and_every_token_has_its_version() {
    let (world, _) = met_by_new_weights(OnSync::Continue).await;
    let metas = of_second(&world).await;
    assert!(metas.iter().all(|meta| meta.attempt == 1), "none was begun again");
    let both = metas.iter().filter(|meta| meta.weights == ["a-v0", "a-v1"]);
    assert!(
        both.count() > 0,
        "{:?}",
        metas.iter().map(|meta| &meta.weights).collect::<Vec<_>>()
    );
    assert_eq!(
        world.engine.prefetched.lock().unwrap().first().map(String::as_str),
        Some("a-v1")
    );
    let folder = world.verified().await;
    let spans: BTreeSet<String> = folder
        .batch(2)
        .unwrap()
        .rows
        .iter()
        .map(|row| row.episode.clone())
        .collect();
    assert_eq!(spans.len(), 2);
    assert_eq!(world::rows_of_steps(&folder), [2, 2]);
}

#[tokio::test]
async fn with_abort_an_episode_begins_again_under_new_weights_and_is_no_void() {
    let (world, _) = met_by_new_weights(OnSync::Abort).await;
    let metas = of_second(&world).await;
    assert_eq!(metas.len(), 2);
    assert!(metas.iter().any(|meta| meta.attempt == 2), "one was given up");
    for meta in &metas {
        assert_eq!(meta.weights, ["a-v1"], "{}", meta.key.name());
    }
    let state = world.state().await;
    assert!(state.voids.is_empty(), "{:?}", state.voids);
    assert!(
        world.gateway.state.lock().unwrap().leases.is_empty(),
        "sandboxes are given back"
    );
    world.verified().await;
}

#[tokio::test]
async fn a_run_that_continues_is_taken_up_in_the_middle_of_an_episode_of_two_versions() {
    let (world, settings) = met_by_new_weights(OnSync::Continue).await;
    let metas = of_second(&world).await;
    world.go(settings, 2).await.unwrap();
    assert_eq!(of_second(&world).await.len(), metas.len(), "nothing is done twice");
}

#[tokio::test]
async fn with_staleness_two_so_many_batches_may_wait_for_the_trainer_and_no_token_is_older() {
    let world = World::new(2).await;
    let mut settings = world.settings();
    settings.evaluate.clear();
    settings.max_staleness = 2;
    settings.iterations = 5;
    // If fewer were allowed to wait, the run would hang.
    world.trainer.waits_for.lock().unwrap().insert(1, paths::batch(3));
    world.go(settings, 1).await.unwrap();
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2, 3, 4, 5]);
    let mut oldest = 0;
    for meta in world.metas().await {
        let EpisodeScope::Iteration { iteration } = meta.key.scope else {
            continue;
        };
        for version in &meta.weights {
            oldest = oldest.max(iteration - 1 - paths::step_of_weights(version).unwrap());
        }
    }
    assert_eq!(oldest, 2);
    world.verified().await;
}
