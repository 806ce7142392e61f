//! A driver that ends between two journal entries, alone or with the trainer, and one that continues: the same run as
//! without an end.

use crate::world::{self, World};
use futures::StreamExt;
use grpo_driver::config::Settings;
use grpo_driver::dynamic::Dynamic;
use grpo_driver::fault::DriverError;
use grpo_records::store::sha256_hex;
use grpo_records::{Batch, Event, JournalEntry, JournalError, TrainerPhase, WeightsManifest, paths};
use grpo_sandbox_protocol::{Priority, SandboxCause};
use std::sync::Mutex;

const ITERATIONS: u32 = 2;

#[derive(Clone, Copy)]
struct Shape {
    max_staleness: u32,
    evaluates: bool,
    /// Groups without a signal are replaced.
    dynamic: bool,
    /// The trainer is killed with the driver.
    kills_trainer: bool,
    /// Trainer and engine share their devices.
    colocated: bool,
}

/// Results that must not depend on where drivers ended.
#[derive(Debug, PartialEq)]
struct Told {
    journal: Vec<Event>,
    steps: Vec<u32>,
    /// (episode, weights, outcome) of all finished episodes.
    episodes: Vec<String>,
    rewards: Vec<Vec<f32>>,
}

/// Changes the file in one turn, as the seed decides, and submits in the next.
fn quick(prompt: &str, seed: u64) -> String {
    let command = match prompt.matches("assistant\n").count() {
        1 if seed.is_multiple_of(2) => "sed -i 's/a - b/a + b/' $F",
        1 => "echo '# no' >> $F",
        _ => "echo SUBMIT",
    };
    format!("Go.\n```bash\n{command}\n```")
}

impl Shape {
    async fn world(self) -> (World, Settings) {
        let world = World::new(if self.dynamic { 3 } else { 1 }).await;
        *world.engine.policy.lock().unwrap() = Box::new(move |prompt, seed| match self.dynamic {
            // One task is never resolved.
            true if prompt.contains("Fix task-0") => quick(prompt, 1),
            _ => quick(prompt, seed),
        });
        let mut settings = match self.colocated {
            true => world.colocated(),
            false => world.settings(),
        };
        settings.iterations = ITERATIONS;
        settings.prompts = 1;
        settings.samples = 2;
        settings.concurrency = Some(1);
        settings.max_staleness = self.max_staleness;
        settings.dynamic = self.dynamic.then_some(Dynamic {
            over_sample: 1.0,
            limit: 4.0,
            band: Some((0.5, 1.0)),
        });
        for set in &mut settings.evaluate {
            (set.at_start, set.at_end) = (self.evaluates, false);
            set.every = self.evaluates.then_some(1);
        }
        if self.max_staleness > 0 {
            // The next rollout overlaps the whole step, so that its weights are known.
            let overlaps = (1..ITERATIONS).map(|k| (k, paths::batch(k + 1)));
            world.trainer.waits_for.lock().unwrap().extend(overlaps);
        }
        (world, settings)
    }

    /// The results of a run whose first driver ends instead of writing this entry.
    async fn told_after_an_end_at(self, number: u64) -> Told {
        let (world, settings) = self.world().await;
        let run = world.start(settings.clone(), 1).await.unwrap();
        let file = world.mount.path().join("ns/run").join(paths::journal_entry(number));
        if file.exists() {
            // Written before any work began.
            drop(run);
            for later in number.. {
                if std::fs::remove_file(world.mount.path().join("ns/run").join(paths::journal_entry(later))).is_err() {
                    break;
                }
            }
        } else {
            std::fs::write(&file, "another driver's").unwrap();
            let ended = run.go().await.unwrap_err();
            assert!(
                matches!(&ended, DriverError::Journal(JournalError::Fenced { sequence, .. }) if *sequence == number),
                "{ended}"
            );
            drop(run);
            std::fs::remove_file(&file).unwrap();
        }
        if self.kills_trainer {
            world.trainer.dies().await;
        }
        world.go(settings, 2).await.unwrap();
        assert_eq!(
            *world.trainer.together.lock().unwrap(),
            [""; 0],
            "after an end at entry {number}"
        );
        self.told(&world).await
    }

    /// A step and the rollout beside it record their entries in any order.
    async fn told(self, world: &World) -> Told {
        let mut told = told(world).await;
        if self.max_staleness > 0 {
            told.journal.sort_by_key(|event| format!("{event:?}"));
        }
        told
    }
}

async fn told(world: &World) -> Told {
    let store = world.store();
    let mut journal = Vec::new();
    for path in store.files_below(paths::JOURNAL).await.unwrap() {
        let mut entry: JournalEntry = store.read(&path).await.unwrap();
        match &mut entry.event {
            // One for each driver.
            Event::DriverStarted { .. } => continue,
            // Removes the number of the episode attempt.
            Event::Verdict { episode, .. } => *episode = episode.split("__").take(3).collect::<Vec<_>>().join("__"),
            // It contains the writer's epoch.
            Event::BatchWritten { sha256, .. } => sha256.clear(),
            // Each world has another base commit.
            Event::RunStarted {
                tasks_sha256,
                sets_sha256,
                ..
            } => {
                tasks_sha256.clear();
                *sets_sha256 = None;
            }
            _ => {}
        }
        journal.push(entry.event);
    }
    let metas = world.metas().await;
    let finished = metas.iter().filter(|meta| meta.outcome.is_verdict());
    let mut episodes: Vec<String> = finished
        .map(|meta| {
            format!(
                "{:?} {} {:?} {}",
                meta.key.scope,
                meta.key.name(),
                meta.weights,
                meta.outcome
            )
        })
        .collect();
    episodes.sort();
    let mut rewards = Vec::new();
    for k in 1..=ITERATIONS {
        let batch: Batch = store.read(&paths::batch(k)).await.unwrap();
        rewards.extend(batch.groups.into_iter().map(|group| group.rewards));
    }
    Told {
        journal,
        steps: world.trainer.steps_run.lock().unwrap().clone(),
        episodes,
        rewards,
    }
}

/// Ends a driver before each entry of the journal.
async fn ends_anywhere(shape: Shape) {
    let (world, settings) = shape.world().await;
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    let undisturbed = shape.told(&world).await;
    let entries = world.store().files_below(paths::JOURNAL).await.unwrap().len() as u64;
    let ended = futures::stream::iter(1..=entries)
        .map(|number| async move { (number, shape.told_after_an_end_at(number).await) })
        .buffered(4);
    let ended: Vec<_> = ended.collect().await;
    for (number, told) in ended {
        for (at, (event, as_it_was)) in told.journal.iter().zip(&undisturbed.journal).enumerate() {
            assert_eq!(event, as_it_was, "entry {} after an end at entry {number}", at + 1);
        }
        assert_eq!(told, undisturbed, "after an end at entry {number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_may_end_at_any_entry() {
    let shape = Shape {
        max_staleness: 0,
        evaluates: false,
        dynamic: false,
        kills_trainer: false,
        colocated: false,
    };
    ends_anywhere(shape).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_and_trainer_may_end_at_any_entry() {
    let shape = Shape {
        max_staleness: 0,
        evaluates: false,
        dynamic: false,
        kills_trainer: true,
        colocated: false,
    };
    ends_anywhere(shape).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_may_end_at_any_entry_and_a_due_evaluation_is_measured() {
    let shape = Shape {
        max_staleness: 0,
        evaluates: true,
        dynamic: false,
        kills_trainer: false,
        colocated: false,
    };
    ends_anywhere(shape).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_and_trainer_may_end_at_any_entry_and_a_due_evaluation_is_measured() {
    let shape = Shape {
        max_staleness: 0,
        evaluates: true,
        dynamic: false,
        kills_trainer: true,
        colocated: false,
    };
    ends_anywhere(shape).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_may_end_at_any_entry_while_a_rollout_overlaps_a_step() {
    let shape = Shape {
        max_staleness: 1,
        evaluates: false,
        dynamic: false,
        kills_trainer: false,
        colocated: false,
    };
    ends_anywhere(shape).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_and_trainer_may_end_at_any_entry_while_a_rollout_overlaps_a_step() {
    let shape = Shape {
        max_staleness: 1,
        evaluates: false,
        dynamic: false,
        kills_trainer: true,
        colocated: false,
    };
    ends_anywhere(shape).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_may_end_at_any_entry_while_a_rollout_overlaps_a_step_and_a_due_evaluation_is_measured() {
    let shape = Shape {
        max_staleness: 1,
        evaluates: true,
        dynamic: false,
        kills_trainer: false,
        colocated: false,
    };
    ends_anywhere(shape).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_and_trainer_may_end_at_any_entry_while_a_rollout_overlaps_a_step_and_a_due_evaluation_is_measured() {
    let shape = Shape {
        max_staleness: 1,
        evaluates: true,
        dynamic: false,
        kills_trainer: true,
        colocated: false,
    };
    ends_anywhere(shape).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_may_end_at_any_entry_of_an_iteration_that_replaces_groups() {
    let shape = Shape {
        max_staleness: 0,
        evaluates: false,
        dynamic: true,
        kills_trainer: false,
        colocated: false,
    };
    ends_anywhere(shape).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_may_end_at_any_entry_and_engine_and_trainer_never_have_their_devices_at_once() {
    let shape = Shape {
        max_staleness: 0,
        evaluates: true,
        dynamic: false,
        kills_trainer: false,
        colocated: true,
    };
    ends_anywhere(shape).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_and_trainer_may_end_at_any_entry_and_engine_and_trainer_never_have_their_devices_at_once() {
    let shape = Shape {
        max_staleness: 0,
        evaluates: true,
        dynamic: false,
        kills_trainer: true,
        colocated: true,
    };
    ends_anywhere(shape).await;
}

#[tokio::test]
async fn a_void_without_which_a_batch_was_made_stays_one_if_the_driver_dies_before_the_entry_of_the_batch() {
    let world = World::new(1).await;
    let first = Mutex::new(None);
    *world.gateway.hook.lock().unwrap() = Some(Box::new(move |lease, priority, _| {
        let of_agent = priority == Priority::Agent;
        let is_first = of_agent && *first.lock().unwrap().get_or_insert_with(|| lease.id.clone()) == lease.id;
        is_first.then(|| world::lost(SandboxCause::NodeLost))
    }));
    let mut settings = world.settings();
    settings.evaluate.clear();
    (settings.iterations, settings.prompts, settings.samples) = (1, 1, 3);
    settings.concurrency = Some(1);
    settings.patience.void_retries = 0;
    world.go(settings.clone(), 1).await.unwrap();
    let before = world.metas().await;
    assert_eq!(before.iter().filter(|meta| !meta.outcome.is_verdict()).count(), 1);
    let store = world.store();
    let mut is_lost = false;
    for path in store.files_below(paths::JOURNAL).await.unwrap() {
        let entry: JournalEntry = store.read(&path).await.unwrap();
        is_lost |= matches!(entry.event, Event::BatchWritten { .. });
        if is_lost {
            store.delete(&path).await.unwrap();
        }
    }
    *world.gateway.hook.lock().unwrap() = None;
    world.go(settings, 2).await.unwrap();
    assert_eq!(world.metas().await, before);
    world.verified().await;
}

#[tokio::test]
async fn a_damaged_manifest_waits_for_the_trainer_and_is_promoted_as_the_trainer_publishes_it_again() {
    let world = World::new(1).await;
    let mut settings = world.settings();
    settings.evaluate.clear();
    settings.iterations = 1;
    world.go(settings.clone(), 1).await.unwrap();
    let before = world.state().await.promoted.unwrap();
    let store = world.store();
    let path = paths::weights_manifest(&before.weights);
    let mut manifest: WeightsManifest = store.read_json(&path).await.unwrap();
    store.replace(&path, "{".into()).await.unwrap();
    // The same weights, by an attempt that knows other parents.
    manifest.parent = Some("a-v7".into());
    let whole = serde_json::to_vec(&manifest).unwrap();
    *world.trainer.phase.lock().unwrap() = TrainerPhase::Starting;
    *world.trainer.away_for.lock().unwrap() = 1;
    let publishes_again = async {
        // The driver asks the trainer after it has looked at the manifest.
        while *world.trainer.away_for.lock().unwrap() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        store.replace(&path, whole.clone().into()).await.unwrap();
        *world.trainer.phase.lock().unwrap() = TrainerPhase::Idle;
    };
    settings.iterations = 2;
    let (ended, ()) = tokio::join!(world.go(settings, 2), publishes_again);
    ended.unwrap();
    let journal = told(&world).await.journal;
    let promoted: Vec<&String> = journal
        .iter()
        .filter_map(|event| match event {
            Event::Promoted {
                weights,
                manifest_sha256,
                ..
            } if *weights == before.weights => Some(manifest_sha256),
            _ => None,
        })
        .collect();
    assert_eq!(promoted, [&before.manifest_sha256, &sha256_hex(&whole)]);
    assert_eq!(world.state().await.promoted.unwrap().step, 2);
}
