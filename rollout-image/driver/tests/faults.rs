//! Faults of a driver's surroundings cost time only. What only looks like such a fault, and is the policy's doing,
//! counts against the policy.

use crate::world::{self, Engine, Silence, World};
use axum::Json;
use axum::Router;
use axum::routing::get;
use grpo_crds::grpo_run::Mode;
use grpo_driver::config::Settings;
use grpo_driver::fault::DriverError;
use grpo_driver::replicas::Endpoints;
use grpo_driver::trainer::TrainerClient;
use grpo_records::{
    EpisodeEnd, EpisodeKey, EpisodeScope, Outcome, StepPhase, StepRequest, StepState, TrainerPhase, VoidReason, paths,
};
use grpo_sandbox_protocol::{Priority, SandboxCause};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// One iteration without evaluations.
fn one_iteration(world: &World) -> Settings {
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    settings
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_for_a_while_costs_time_and_no_episode() {
    let world = World::new(1).await;
    world.gateway.state.lock().unwrap().no_image_for = 6;
    world.go(one_iteration(&world), 1).await.unwrap();
    assert_eq!(world.gateway.state.lock().unwrap().no_image_for, 0);
    assert!(world.state().await.voids.is_empty());
    assert!(world.metas().await.iter().all(|meta| meta.outcome.is_verdict()));
}

#[tokio::test]
async fn an_image_that_can_never_be_pulled_ends_the_run_after_its_patience_and_is_named_meanwhile() {
    let world = World::new(1).await;
    world.gateway.state.lock().unwrap().no_image_for = u32::MAX;
    let mut settings = one_iteration(&world);
    settings.patience.images = Duration::from_millis(300);
    settings.patience.void_retries = 1;
    let run = world.start(settings, 1).await.unwrap();
    let mut seen = run.board.watch();
    let (ended, named) = tokio::join!(run.go(), async {
        let names = |said: &String| said.contains("image img/task-0:1 cannot be pulled");
        let named = seen.wait_for(|progress| progress.message.as_ref().is_some_and(names));
        matches!(tokio::time::timeout(Duration::from_secs(300), named).await, Ok(Ok(_)))
    });
    assert!(named);
    let ended = ended.unwrap_err();
    assert!(
        matches!(&ended, DriverError::Terminal(fault) if fault.reason == "NoValidEpisodes"),
        "{ended}"
    );
    let voids = world.metas().await;
    let reason = VoidReason::ImageUnavailable;
    assert!(voids.iter().all(|meta| meta.outcome == Outcome::void(reason)));
}

#[tokio::test]
async fn an_evaluation_without_a_verdict_is_not_written_down_and_the_next_driver_measures_it() {
    let world = World::new(1).await;
    let outage = Arc::new(AtomicBool::new(true));
    let down = outage.clone();
    *world.gateway.hook.lock().unwrap() = Some(Box::new(move |_, _, _| {
        down.load(Ordering::Relaxed)
            .then(|| world::lost(SandboxCause::NodeLost))
    }));
    let mut settings = world.settings();
    settings.iterations = 1;
    for attempt in 1..=3 {
        let ended = world.go(settings.clone(), attempt).await.unwrap_err();
        assert!(
            matches!(&ended, DriverError::Terminal(fault) if fault.reason == "NoValidEpisodes"),
            "{ended}"
        );
        assert!(world.state().await.evaluations.is_empty());
    }
    let voids: u64 = world.state().await.voids.values().sum();
    assert_eq!(
        voids, 9,
        "each driver tries three times: what an earlier one saw is not counted"
    );
    outage.store(false, Ordering::Relaxed);
    world.go(settings, 4).await.unwrap();
    let measured = world.state().await.evaluations;
    assert!(measured.len() == 2 && measured.values().all(|set| set.episodes == 1));
}

/// A world with a second engine, and the settings of one iteration with both.
async fn with_another_engine(world: &World) -> (Arc<Engine>, Settings) {
    let (other, address) = Engine::start("other").await;
    let mut settings = one_iteration(world);
    settings.engines = Endpoints::Fixed(vec![world.engine_address, address]);
    (other, settings)
}

#[tokio::test]
async fn the_turns_of_an_episode_go_to_the_replica_that_has_its_prefix() {
    let world = World::new(1).await;
    let (other, settings) = with_another_engine(&world).await;
    world.go(settings, 1).await.unwrap();
    for engine in [&world.engine, &other] {
        let sampled = engine.sampled.lock().unwrap();
        let opening = sampled.iter().map(|(prompt, _)| prompt.len()).min().unwrap();
        for (prompt, _) in sampled.iter().filter(|(prompt, _)| prompt.len() > opening) {
            let mut before = sampled.iter().map(|(prompt, ids)| [&prompt[..], &ids[..]].concat());
            assert!(
                before.any(|before| prompt.starts_with(&before)),
                "it was answered elsewhere"
            );
        }
    }
}

#[tokio::test]
async fn a_replica_that_boots_does_not_starve_the_others() {
    let world = World::new(1).await;
    let (other, settings) = with_another_engine(&world).await;
    let (booting, asked) = (other.clone(), AtomicU32::new(0));
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, seed| {
        let asked = asked.fetch_add(1, Ordering::Relaxed);
        *booting.booting.lock().unwrap() = asked < 10;
        world::half_right(prompt, seed)
    });
    world.go(settings, 1).await.unwrap();
    assert!(world.metas().await.iter().all(|meta| meta.outcome.is_verdict()));
    let refused = *other.refused.lock().unwrap();
    assert!(
        refused <= 4,
        "{refused}: no more than were under way when it began to boot"
    );
}

#[tokio::test]
async fn a_replica_that_hangs_costs_time_and_another_one_answers() {
    let world = World::new(1).await;
    let (other, mut settings) = with_another_engine(&world).await;
    settings.patience.engines.request = Duration::from_millis(200);
    *other.silence.lock().unwrap() = Some(Silence::Hangs);
    world.go(settings, 1).await.unwrap();
    assert!(world.state().await.voids.is_empty());
    for meta in world.metas().await {
        assert!(
            meta.outcome.is_verdict() && meta.end == EpisodeEnd::Submitted,
            "{:?}",
            meta.end
        );
    }
}

#[tokio::test]
async fn a_run_whose_engines_load_no_weights_ends_with_a_reason_instead_of_waiting_for_ever() {
    let world = World::new(1).await;
    *world.engine.stuck.lock().unwrap() = true;
    let mut settings = one_iteration(&world);
    settings.patience.weights = Duration::from_secs(2);
    let ended = world.go(settings, 1).await.unwrap_err();
    assert!(
        matches!(&ended, DriverError::Terminal(fault) if fault.reason == "WeightsNotServed"),
        "{ended}"
    );
    assert!(ended.to_string().contains("serves Some(\"base\")"), "{ended}");
}

#[tokio::test]
async fn an_episode_past_its_whole_limit_gives_its_sandbox_back() {
    let world = World::new(1).await;
    *world.engine.silence.lock().unwrap() = Some(Silence::Hangs);
    let mut settings = world.settings();
    settings.mode = Mode::Evaluate;
    settings.agent.limits.episode_timeout = Duration::from_secs(1);
    // Long enough for a sandbox on a busy machine, and shorter than the time limit of an engine's answer.
    settings.patience.waiting = Duration::from_secs(6);
    settings.patience.void_retries = 0;
    world.go(settings, 1).await.unwrap_err();
    let metas = world.metas().await;
    let deadline = Outcome::void(VoidReason::DeadlineInfrastructure);
    assert_eq!(metas.iter().map(|meta| &meta.outcome).collect::<Vec<_>>(), [&deadline]);
    let state = world.gateway.state.lock().unwrap();
    assert!(
        state.leases.is_empty() && state.released.len() == 1,
        "{:?}",
        state.released
    );
}

#[tokio::test]
async fn an_answer_that_outlasts_the_policys_time_is_the_policys_and_not_a_void() {
    let world = World::new(1).await;
    let engine = world.engine.clone();
    *world.engine.policy.lock().unwrap() = Box::new(move |_, _| {
        *engine.silence.lock().unwrap() = Some(Silence::SamplesLong);
        "```bash\nsed -i 's/a - b/a + b/' $F\n```".into()
    });
    let mut settings = world.settings();
    settings.mode = Mode::Evaluate;
    settings.agent.limits.episode_timeout = Duration::from_secs(3);
    settings.patience.engines.request = Duration::from_millis(200);
    settings.patience.engines.total = Duration::from_millis(500);
    world.go(settings, 1).await.unwrap();
    let metas = world.metas().await;
    assert_eq!(metas.len(), 1);
    assert_eq!(
        (metas[0].outcome.clone(), metas[0].end),
        (Outcome::Resolved, EpisodeEnd::EpisodeTimeout),
        "what was done before it counts"
    );
    assert!(metas[0].agent_millis >= 2900, "it is billed: {}", metas[0].agent_millis);
    world.verified().await;
}

/// Drain: the engines prefetch, running episodes end with their weights, the next begin with the new ones.
#[tokio::test]
async fn episodes_that_run_when_new_weights_come_end_under_the_old_ones() {
    let world = World::new(2).await;
    let mut settings = world.settings();
    settings.evaluate.clear();
    settings.max_staleness = 1;
    settings.concurrency = Some(2);
    let order = grpo_driver::tasks::selection::for_iteration(grpo_crds::grpo_run::TaskOrder::Shuffled, 7, 2, 2, 2);
    let first = EpisodeKey {
        scope: EpisodeScope::Iteration { iteration: 2 },
        instance: format!("task-{}", order[0]),
        group: 0,
        sample: 0,
    };
    // Step 1 ends in the middle of the rollout of iteration 2.
    let middle = paths::turn(&first.dir(1), 0);
    world.trainer.waits_for.lock().unwrap().insert(1, middle);
    world.go(settings, 1).await.unwrap();

    let mut sampled_by = std::collections::BTreeSet::new();
    for meta in world.metas().await {
        assert!(meta.outcome.is_verdict());
        assert_eq!(
            meta.weights.len(),
            1,
            "no episode changes its weights: {:?}",
            meta.weights
        );
        if meta.key.scope == first.scope {
            sampled_by.extend(meta.weights);
        }
    }
    // How many begin after the switch depends on timing.
    assert!(sampled_by.remove("a-v0"), "the first began before step 1 ended");
    sampled_by.remove("a-v1");
    assert!(sampled_by.is_empty(), "{sampled_by:?}");
    assert_eq!(
        world.engine.prefetched.lock().unwrap().first().map(String::as_str),
        Some("a-v1")
    );
    assert_eq!(
        *world.engine.refused.lock().unwrap(),
        0,
        "nothing was asked of weights that did not serve"
    );
    world.verified().await;
}

#[tokio::test]
async fn graders_that_are_lost_again_and_again_cost_time_and_no_episode() {
    let world = World::new(1).await;
    let lost = AtomicU32::new(0);
    *world.gateway.hook.lock().unwrap() = Some(Box::new(move |_, priority, request| {
        let is_evaluation = priority == Priority::Grader && request.id == "eval";
        (is_evaluation && lost.fetch_add(1, Ordering::Relaxed) < 16).then(|| world::lost(SandboxCause::NodeLost))
    }));
    world.go(one_iteration(&world), 1).await.unwrap();
    assert!(world.state().await.voids.is_empty());
    let metas = world.metas().await;
    assert!(metas.len() == 8 && metas.iter().all(|meta| meta.outcome.is_verdict()));
    world.nothing_ran_twice();
}

#[tokio::test]
async fn a_rollout_and_an_evaluation_beside_it_share_what_agents_may_hold() {
    let world = World::new(2).await;
    let mut settings = world.settings();
    settings.max_staleness = 1;
    settings.concurrency = None;
    settings.evaluate[0].every = Some(1);
    settings.evaluate[0].samples = 4;
    world.go(settings, 1).await.unwrap();
    let most = world.gateway.state.lock().unwrap().most_agents_at_once;
    assert!(most <= 3, "{most}: of four sandboxes one is for graders");
}

/// A trainer whose state changes with each request, up to this step.
async fn replaying(until: u32) -> TrainerClient {
    let asked = Arc::new(AtomicU32::new(0));
    let state = move || {
        let step = asked.fetch_add(1, Ordering::Relaxed).min(until);
        async move {
            Json(world::state_of(
                step,
                if step < 5 {
                    TrainerPhase::Starting
                } else {
                    TrainerPhase::Idle
                },
            ))
        }
    };
    let address = world::serve(Router::new().route("/v1/state", get(state))).await;
    TrainerClient::new(format!("http://{address}"), Duration::from_millis(1300)).unwrap()
}

#[tokio::test]
async fn a_trainer_that_replays_for_longer_than_the_patience_is_waited_for() {
    let note = watch::channel(None).0;
    let ready = replaying(5).await.ready(&note).await.unwrap();
    assert_eq!(ready.step, 5);
    let stopped = replaying(2).await.ready(&note).await.unwrap_err();
    assert!(
        matches!(&stopped, DriverError::Terminal(fault) if fault.reason == "TrainerUnavailable"),
        "{stopped}"
    );
}

/// Defect 8: the trainer's pods wait for a node, and the run is not to blame.
#[tokio::test]
async fn a_trainer_that_never_answers_ends_the_attempt_and_not_the_run() {
    let closed = grpo_free_port::free_port().unwrap();
    let trainer = TrainerClient::new(format!("http://127.0.0.1:{closed}"), Duration::from_millis(1300)).unwrap();
    let note = watch::channel(None).0;
    let request = StepRequest {
        batch: paths::batch(1),
        sha256: String::new(),
        checkpoint: None,
        iterations: None,
    };
    for ended in [
        trainer.ready(&note).await.map(drop),
        trainer.step(1, &request, &note).await.map(drop),
    ] {
        let ended = ended.unwrap_err();
        assert!(
            matches!(&ended, DriverError::Other(message) if message.contains("does not answer")),
            "{ended}"
        );
    }
}

/// Defect 8: the trainer's own deadlines limit the time of a step.
#[tokio::test]
async fn a_step_that_runs_for_longer_than_the_patience_is_waited_for() {
    let polled = Arc::new(AtomicU32::new(0));
    let state = || async { Json(world::state_of(0, TrainerPhase::Stepping)) };
    let polls = polled.clone();
    let step = move || {
        let done = polls.fetch_add(1, Ordering::Relaxed) >= 4;
        async move {
            Json(StepState {
                step: 1,
                state: if done { StepPhase::Done } else { StepPhase::Running },
                weights: None,
                manifest_sha256: None,
                metrics: None,
                error: None,
            })
        }
    };
    let order = || async { axum::http::StatusCode::ACCEPTED };
    let router = Router::new()
        .route("/v1/state", get(state))
        .route("/v1/steps/{k}", get(step).put(order));
    let address = world::serve(router).await;
    // Shorter than the pauses between the five requests.
    let trainer = TrainerClient::new(format!("http://{address}"), Duration::from_millis(1300)).unwrap();
    let request = StepRequest {
        batch: paths::batch(1),
        sha256: String::new(),
        checkpoint: None,
        iterations: None,
    };
    let done = trainer.step(1, &request, &watch::channel(None).0).await.unwrap();
    assert_eq!(done.state, StepPhase::Done);
    assert!(polled.load(Ordering::Relaxed) >= 5);
}

/// Defect 11: tokens recorded under a version were sampled by it.
#[tokio::test]
async fn an_evaluation_that_another_lineage_interrupts_is_measured_under_that_one() {
    let world = World::new(3).await;
    // The lineage of the restarted trainer.
    *world.trainer.lineage.lock().unwrap() = "b".into();
    world.trainer.publish(1).await;
    *world.trainer.lineage.lock().unwrap() = "a".into();
    *world.trainer.step.lock().unwrap() = 0;
    let answers = Arc::new(tokio::sync::Semaphore::new(0));
    // After its first answer the last evaluation is held.
    let (engine, trainer, held) = (world.engine.clone(), world.trainer.clone(), answers.clone());
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, seed| {
        if *engine.serving.lock().unwrap() == "a-v1" && *trainer.lineage.lock().unwrap() == "a" {
            *trainer.lineage.lock().unwrap() = "b".into();
            *engine.held.lock().unwrap() = Some(held.clone());
        }
        world::half_right(prompt, seed)
    });
    let mut settings = world.settings();
    (settings.iterations, settings.prompts, settings.concurrency) = (1, 1, Some(1));
    let comes = || world.engine.prefetched.lock().unwrap().contains(&"b-v1".to_owned());
    let switched = || *world.engine.serving.lock().unwrap() == "b-v1";
    // The last evaluation goes one answer further for each look of the driver, so that, on a slow machine too,
    // the driver switches before the evaluation ends.
    let go_on = async {
        let (mut allowed, mut looked) = (0, 0);
        while !switched() {
            let looks = world.engine.looks.load(Ordering::Relaxed);
            if comes() && (allowed == 0 || looks > looked) {
                (allowed, looked) = (allowed + 1, looks);
                answers.add_permits(1);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        answers.add_permits(1000);
    };
    let (ended, came) = tokio::join!(
        world.go(settings, 1),
        tokio::time::timeout(Duration::from_secs(300), go_on)
    );
    came.unwrap();
    ended.unwrap();
    let measured = world.state().await.evaluations;
    let versions: Vec<&str> = measured.keys().map(|(_, weights)| weights.as_str()).collect();
    assert_eq!(versions, ["a-v0", "b-v1"]);
    assert!(measured.values().all(|set| set.episodes == 3));
    for meta in world.metas().await {
        if let EpisodeScope::Evaluation { weights, .. } = &meta.key.scope {
            assert_eq!(&meta.weights, std::slice::from_ref(weights));
        }
    }
}
