//! Changes of a running run: which apply, when, and how a restarted driver handles them.

use crate::world::{self, World};
use grpo_contracts::RunConfig;
use grpo_driver::config::Settings;
use grpo_driver::fault::DriverError;
use grpo_driver::live::Source;
use grpo_driver::replicas::Endpoints;
use grpo_records::settings::LiveSettings;
use grpo_records::{CheckpointOrder, EpisodeRecord, EpisodeScope, Event, JournalEntry, paths};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// The `run.json` of a world; tests change it.
struct File {
    path: PathBuf,
    content: Value,
}

impl File {
    fn new(world: &World) -> Self {
        let dataset = json!({"image": {"reference": "d:1", "path": "train.jsonl"}});
        let content = json!({
            "name": "run", "namespace": "ns", "uid": "uid-1", "storePath": "ns/run", "modelPath": world::model(),
            "datasets": [{"path": world.mount.path(), "image": "d:1"}],
            "endpoints": {
                "gateway": world.gateway_url, "trainer": world.trainer_url, "driver": "http://driver:8070",
                "enginesHost": world.engine_address.ip().to_string(), "enginesPort": world.engine_address.port(),
            },
            "spec": {
                "seed": 7,
                "model": {"image": {"reference": "m:1"}},
                "tasks": {
                    "train": {"dataset": dataset},
                    "evaluate": [{"name": "fixed", "dataset": dataset, "atEnd": false}],
                },
                "agent": {
                    "bash": {"system": "s", "task": "{{ task.problem_statement }}", "observation": "{{ output }}", "submitSentinel": "SUBMIT"},
                    "limits": {"turns": 6, "contextTokens": 1024},
                },
                "rollout": {"iterations": 2, "prompts": 1, "samples": 2, "concurrency": 1, "sampling": {"maxTokensPerCall": 256}},
                "checkpoint": {"every": 10, "keep": 2},
                "trainer": {"nodes": 1},
                "inference": {"poolRef": {"name": "p"}},
                "sandboxes": {"poolRef": {"name": "p"}},
                "store": {"persistentVolumeClaim": {"claimName": "c"}},
            },
        });
        let path = world.mount.path().join("run.json");
        std::fs::write(&path, content.to_string()).unwrap();
        Self { path, content }
    }

    /// The content with other values at JSON pointers.
    fn with(&self, changes: &[(&str, Value)]) -> String {
        let mut content = self.content.clone();
        for (at, value) in changes {
            *content.pointer_mut(at).unwrap_or_else(|| panic!("no {at}")) = value.clone();
        }
        content.to_string()
    }

    fn config(&self) -> RunConfig {
        serde_json::from_value(self.content.clone()).unwrap()
    }

    /// The settings of a driver that starts now.
    fn settings(&self, world: &World) -> Settings {
        let now: RunConfig = serde_json::from_slice(&std::fs::read(&self.path).unwrap()).unwrap();
        Settings {
            store: (world.mount.path().to_owned(), "ns/run".into()),
            engines: Endpoints::Fixed(vec![world.engine_address]),
            patience: world.settings().patience,
            ..Settings::of(&now).unwrap()
        }
    }

    fn source(&self) -> Source {
        Source::File {
            path: self.path.clone(),
            started_with: Box::new(self.config()),
        }
    }
}

/// Writes `content` into the file at the first engine request of the iteration that follows on `weights`.
fn change_while_sampling(world: &World, file: &File, weights: &'static str, content: String) {
    let (engine, path, asked) = (world.engine.clone(), file.path.clone(), AtomicU32::new(0));
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, seed| {
        let now = engine.serving.lock().unwrap().clone();
        if now == weights && asked.fetch_add(1, Ordering::Relaxed) == 0 {
            std::fs::write(&path, &content).unwrap();
        }
        world::half_right(prompt, seed)
    });
}

/// Temperatures of the episodes below a scope.
async fn temperatures(world: &World, scope: &EpisodeScope) -> Vec<f32> {
    let store = world.store();
    let mut found = Vec::new();
    for path in store.files_below(&paths::scope(scope)).await.unwrap() {
        if path.ends_with("/traj.json") {
            found.push(store.read::<EpisodeRecord>(&path).await.unwrap().temperature);
        }
    }
    found
}

async fn of_iteration(world: &World, iteration: u32) -> Vec<f32> {
    temperatures(world, &EpisodeScope::Iteration { iteration }).await
}

async fn taken(world: &World) -> Vec<LiveSettings> {
    let mut found = Vec::new();
    for path in world.store().files_below(paths::JOURNAL).await.unwrap() {
        let entry: JournalEntry = world.store().read(&path).await.unwrap();
        if let Event::SettingsTaken { settings } = entry.event {
            found.push(settings);
        }
    }
    found
}

#[tokio::test]
async fn what_may_change_is_taken_over_between_iterations_and_written_down() {
    let world = World::new(1).await;
    let file = File::new(&world);
    let newer = file.with(&[
        ("/spec/rollout/iterations", json!(3)),
        (
            "/spec/rollout/sampling",
            json!({"maxTokensPerCall": 256, "temperature": 0.5}),
        ),
        ("/spec/checkpoint", json!({"every": 2, "keep": 5})),
        ("/spec/tasks/evaluate/0/atEnd", json!(true)),
        // Must not change.
        ("/spec/rollout/prompts", json!(7)),
    ]);
    change_while_sampling(&world, &file, "a-v0", newer);
    let run = world.start_with(file.settings(&world), 1, file.source()).await.unwrap();
    run.go().await.unwrap();

    assert_eq!(
        of_iteration(&world, 1).await,
        [1.0, 1.0],
        "an iteration keeps the settings that it began with"
    );
    assert_eq!(of_iteration(&world, 2).await, [0.5, 0.5]);
    assert_eq!(of_iteration(&world, 3).await, [0.5, 0.5]);
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2, 3]);
    let kept: Vec<CheckpointOrder> = world.trainer.kept.lock().unwrap().iter().flatten().copied().collect();
    let order = |write, keep| CheckpointOrder { write, keep };
    assert_eq!(
        kept,
        [order(false, 5), order(true, 5), order(true, 5)],
        "every second, and the last"
    );
    assert_eq!(
        world.state().await.evaluations.keys().collect::<Vec<_>>(),
        [&("fixed".to_owned(), "a-v3".to_owned())]
    );
    let taken = taken(&world).await;
    assert_eq!((taken.len(), taken[0].iterations, taken[1].iterations), (2, 2, 3));
    let shown = run.board.now();
    assert_eq!((shown.iterations, shown.message), (Some(3), None));
    world.verified().await;
}

#[tokio::test]
async fn fewer_iterations_end_the_run_after_the_one_that_runs_with_its_last_evaluation() {
    let world = World::new(1).await;
    let mut file = File::new(&world);
    for (at, value) in [
        ("/spec/rollout/iterations", json!(5)),
        ("/spec/tasks/evaluate/0/atEnd", json!(true)),
    ] {
        *file.content.pointer_mut(at).unwrap() = value;
    }
    std::fs::write(&file.path, file.content.to_string()).unwrap();
    change_while_sampling(
        &world,
        &file,
        "a-v1",
        file.with(&[("/spec/rollout/iterations", json!(1))]),
    );
    let run = world.start_with(file.settings(&world), 1, file.source()).await.unwrap();
    run.go().await.unwrap();
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2]);
    assert!(
        world
            .state()
            .await
            .evaluations
            .contains_key(&("fixed".to_owned(), "a-v2".to_owned()))
    );
    let kept = world.trainer.kept.lock().unwrap();
    assert!(kept.last().unwrap().unwrap().write, "the last step writes a checkpoint");
}

/// The set is due after the last step only, and another one is measured after each.
#[tokio::test]
async fn a_set_that_becomes_due_while_another_is_measured_is_measured_too() {
    let world = World::new(1).await;
    let mut file = File::new(&world);
    let mut each = file.content["spec"]["tasks"]["evaluate"][0].clone();
    each["name"] = json!("each");
    each["every"] = json!(1);
    each["atStart"] = json!(false);
    let sets = file.content.pointer_mut("/spec/tasks/evaluate").unwrap();
    sets[0]["atEnd"] = json!(true);
    sets[0]["atStart"] = json!(false);
    let at_end = sets[0].clone();
    *sets = json!([each, at_end]);
    *file.content.pointer_mut("/spec/rollout/iterations").unwrap() = json!(5);
    std::fs::write(&file.path, file.content.to_string()).unwrap();
    // The rollout of iteration 2 has this version too, but the evaluation before it asks first.
    change_while_sampling(
        &world,
        &file,
        "a-v1",
        file.with(&[("/spec/rollout/iterations", json!(1))]),
    );
    let run = world.start_with(file.settings(&world), 1, file.source()).await.unwrap();
    run.go().await.unwrap();
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1]);
    let measured = ["each", "fixed"].map(|set| (set.to_owned(), "a-v1".to_owned()));
    assert_eq!(
        world.state().await.evaluations.into_keys().collect::<Vec<_>>(),
        measured
    );
}

#[tokio::test]
async fn iterations_added_while_the_last_step_is_evaluated_run_also_if_rollouts_overlap_steps() {
    let world = World::new(1).await;
    let mut file = File::new(&world);
    *file.content.pointer_mut("/spec/tasks/evaluate/0/atEnd").unwrap() = json!(true);
    std::fs::write(&file.path, file.content.to_string()).unwrap();
    let more = file.with(&[("/spec/rollout/iterations", json!(4))]);
    // No rollout follows on the weights of the last step: its evaluation asks first.
    change_while_sampling(&world, &file, "a-v2", more);
    let settings = Settings {
        max_staleness: 1,
        ..file.settings(&world)
    };
    let run = world.start_with(settings, 1, file.source()).await.unwrap();
    run.go().await.unwrap();
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2, 3, 4]);
    let evaluated = ["a-v2", "a-v4"].map(|weights| ("fixed".to_owned(), weights.to_owned()));
    let state = world.state().await;
    assert_eq!(state.evaluations.keys().cloned().collect::<Vec<_>>(), evaluated);
    assert!(state.finished.unwrap().succeeded);
    world.verified().await;
}

#[tokio::test]
async fn a_file_that_is_torn_or_a_namesakes_or_asks_for_too_much_changes_nothing_and_is_said() {
    let world = World::new(1).await;
    let file = File::new(&world);
    let unsupported = json!({"maxTokensPerCall": 256, "minP": 0.5});
    for (attempt, content, words) in [
        (1, "{".to_owned(), "is no run.json"),
        (
            2,
            file.with(&[("/uid", json!("uid-2")), ("/spec/rollout/iterations", json!(9))]),
            "uid-2",
        ),
        (3, file.with(&[("/spec/rollout/sampling", unsupported)]), "minP"),
    ] {
        std::fs::write(&file.path, file.content.to_string()).unwrap();
        let run = world
            .start_with(file.settings(&world), attempt, file.source())
            .await
            .unwrap();
        std::fs::write(&file.path, content).unwrap();
        run.go().await.unwrap();
        let message = run.board.now().message.unwrap();
        assert!(message.contains(words) && message.contains("as they were"), "{message}");
    }
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2]);
    assert_eq!(taken(&world).await.len(), 1);
}

#[tokio::test]
async fn a_driver_that_comes_back_goes_on_sampling_as_the_iteration_was_begun() {
    let world = World::new(1).await;
    let file = File::new(&world);
    let newer = file.with(&[(
        "/spec/rollout/sampling",
        json!({"maxTokensPerCall": 256, "temperature": 0.5}),
    )]);
    change_while_sampling(&world, &file, "a-v0", newer);
    let run = world.start_with(file.settings(&world), 1, file.source()).await.unwrap();
    // Until the first verdict of iteration 1: the second episode remains.
    let one_verdict = async {
        while world.state().await.verdicts.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        ended = run.go() => panic!("{:?}", ended.map_err(|error: DriverError| error.to_string())),
        () = one_verdict => {}
    }
    drop(run);
    assert_eq!(
        file.settings(&world).sampling.temperature,
        0.5,
        "it is started with the newer file"
    );
    let run = world.start_with(file.settings(&world), 2, file.source()).await.unwrap();
    run.go().await.unwrap();
    let first = of_iteration(&world, 1).await;
    assert!(first.iter().all(|temperature| *temperature == 1.0), "{first:?}");
    let second = of_iteration(&world, 2).await;
    assert!(second.iter().all(|temperature| *temperature == 0.5), "{second:?}");
    world.verified().await;
}
