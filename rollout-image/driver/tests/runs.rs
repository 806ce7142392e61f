//! Whole runs against surroundings on real sockets, with real repositories, commands and the official grader.

use crate::world::{self, World};
use axum::http::StatusCode;
use grpo_driver::agent::AgentKind;
use grpo_driver::agent::bash::Prompts;
use grpo_driver::fault::DriverError;
use grpo_records::folder::counting;
use grpo_records::{EpisodeMeta, Outcome, TrainerPhase, VoidReason, paths};
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, Priority, SandboxCause};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};

#[tokio::test]
async fn a_run_learns_from_every_episode_and_everything_it_claims_can_be_recomputed() {
    let world = World::new(3).await;
    world.go(world.settings(), 1).await.unwrap();

    let folder = world.verified().await;
    assert_eq!(world::rows_of_steps(&folder), [8, 8]);
    let first = grpo_records::EpisodeScope::Iteration { iteration: 1 };
    let first = counting(folder.episodes(&first).unwrap());
    assert!(first.len() == 8 && first.iter().all(|episode| episode.meta.outcome.is_verdict()));
    let resolved = first
        .iter()
        .filter(|episode| episode.meta.outcome == Outcome::Resolved)
        .count();
    assert!(
        resolved > 0 && resolved < 8,
        "{resolved} of 8: half of the seeds are even"
    );
    let evaluated = ["a-v0", "a-v2"].map(|weights| ("fixed".to_owned(), weights.to_owned()));
    assert_eq!(folder.evaluations(), evaluated);

    let state = world.state().await;
    assert!(state.finished.unwrap().succeeded);
    assert_eq!(state.promoted.unwrap().weights, "a-v2");
    assert_eq!(state.verdicts.len(), 16 + 6);
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2]);
    let ordered: Vec<String> = world
        .engine
        .orders
        .lock()
        .unwrap()
        .iter()
        .map(|o| o.version.clone())
        .collect();
    assert_eq!(ordered, ["a-v0", "a-v1", "a-v2"]);
    // Strictly on-policy: the tokens of iteration k are from the weights of step k - 1.
    for meta in world.metas().await {
        if let grpo_records::EpisodeScope::Iteration { iteration } = meta.key.scope {
            assert_eq!(meta.weights, [format!("a-v{}", iteration - 1)]);
        }
    }
    world.nothing_ran_twice();
    assert!(
        world.gateway.state.lock().unwrap().leases.is_empty(),
        "every sandbox was given back"
    );
}

#[tokio::test]
async fn the_same_weights_and_seeds_give_the_same_answers_before_and_after() {
    let world = World::new(2).await;
    world.go(world.settings(), 1).await.unwrap();
    world.verified().await;
    // The simulated engine's answers depend on prompt and seed alone.
    let store = world.store();
    for name in ["task-0__g0__i0", "task-1__g1__i0"] {
        let mut tokens = Vec::new();
        for weights in ["a-v0", "a-v2"] {
            let path = paths::rows(&format!("evaluations/fixed/{weights}/{name}"));
            let rows = grpo_records::rows::decode(&store.bytes(&path).await.unwrap()).unwrap();
            tokens.push(rows[0].tokens.clone());
        }
        assert_eq!(tokens[0], tokens[1]);
    }
}

#[tokio::test]
async fn a_finished_run_that_is_started_again_does_nothing_twice() {
    let world = World::new(2).await;
    world.go(world.settings(), 1).await.unwrap();
    let asked = world.engine.asked.lock().unwrap().len();
    let evaluated = world.gateway.state.lock().unwrap().evaluations;
    world.go(world.settings(), 2).await.unwrap();
    assert_eq!(
        world.engine.asked.lock().unwrap().len(),
        asked,
        "a set is never evaluated twice for one weights version"
    );
    assert_eq!(world.gateway.state.lock().unwrap().evaluations, evaluated);
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2]);
    let journal = world.store().files_below(paths::JOURNAL).await.unwrap().len();
    world.go(world.settings(), 3).await.unwrap();
    // A driver began, had no decision to make, and finished the run again: trackers show it as running in between.
    assert_eq!(
        world.store().files_below(paths::JOURNAL).await.unwrap().len(),
        journal + 2
    );
}

/// Defect 17.
#[tokio::test]
async fn a_lost_grader_is_replaced_and_the_verdict_is_that_of_the_one_that_finished() {
    let world = World::new(1).await;
    let lost = AtomicU32::new(0);
    *world.gateway.hook.lock().unwrap() = Some(Box::new(move |_, priority, request| {
        let is_evaluation = priority == Priority::Grader && request.id == "eval";
        (is_evaluation && lost.fetch_add(1, Ordering::Relaxed) < 3).then(|| world::lost(SandboxCause::NodeLost))
    }));
    let mut settings = world.settings();
    settings.iterations = 1;
    world.go(settings, 1).await.unwrap();
    let metas = world.metas().await;
    assert!(metas.iter().all(|meta| meta.outcome.is_verdict()));
    let tries: u32 = metas
        .iter()
        .filter_map(|m| m.grade.as_ref())
        .map(|g| g.tries)
        .max()
        .unwrap();
    assert!(tries > 1);
    world.verified().await;
}

#[tokio::test]
async fn a_sandbox_that_is_taken_away_voids_the_try_and_the_next_one_counts() {
    let world = World::new(1).await;
    let taken = AtomicU32::new(0);
    *world.gateway.hook.lock().unwrap() = Some(Box::new(move |_, priority, request| {
        let second_turn = priority == Priority::Agent && request.id.starts_with("t1-");
        (second_turn && taken.fetch_add(1, Ordering::Relaxed) == 0).then(|| world::lost(SandboxCause::Preempted))
    }));
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    world.go(settings, 1).await.unwrap();
    let metas = world.metas().await;
    let voids: Vec<_> = metas.iter().filter(|m| !m.outcome.is_verdict()).collect();
    assert_eq!(voids.len(), 1);
    assert_eq!(
        (voids[0].outcome.clone(), voids[0].reward),
        (Outcome::void(VoidReason::SandboxLost), None)
    );
    assert_eq!(metas.len(), 9, "eight verdicts and the void");
    let state = world.state().await;
    assert_eq!((state.verdicts.len(), state.voids[&VoidReason::SandboxLost]), (8, 1));
    assert!(state.voided_tokens > 0);
    assert_eq!(world::rows_of_steps(&world.verified().await), [8]);
}

#[tokio::test]
async fn a_sandbox_killed_for_its_own_memory_is_the_policys_fault() {
    let world = World::new(1).await;
    *world.gateway.hook.lock().unwrap() = Some(Box::new(|_, priority, request| {
        (priority == Priority::Agent && request.id.starts_with("t1-")).then(|| world::lost(SandboxCause::OutOfMemory))
    }));
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    world.go(settings, 1).await.unwrap();
    for meta in world.metas().await {
        assert_eq!(
            (meta.outcome, meta.end),
            (Outcome::Unresolved, grpo_records::EpisodeEnd::SandboxExhausted)
        );
    }
    assert_eq!(world.gateway.state.lock().unwrap().evaluations, 0);
    world.verified().await;
}

#[tokio::test]
async fn a_command_that_cannot_be_run_is_an_observation_and_not_a_void() {
    let world = World::new(1).await;
    *world.gateway.hook.lock().unwrap() = Some(Box::new(|_, priority, request| {
        let zero = || ErrorBody::new(ErrorCode::BadRequest, FaultOrigin::Client, "a zero byte in argv");
        // A wait for a place that the policy holds would end in a void.
        let full = || ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Workload, "32 commands run already");
        match (priority, request.id.split_once('-')?.0) {
            (Priority::Agent, "t0") => Some((StatusCode::BAD_REQUEST, zero())),
            (Priority::Agent, "t1") => Some((StatusCode::SERVICE_UNAVAILABLE, full())),
            _ => None,
        }
    }));
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    world.go(settings, 1).await.unwrap();
    assert!(
        world
            .metas()
            .await
            .iter()
            .all(|meta| meta.outcome.is_verdict() && meta.turns == 3)
    );
}

#[tokio::test]
async fn a_gateway_and_a_trainer_that_are_away_for_a_while_cost_time_and_nothing_else() {
    let world = World::new(1).await;
    world.gateway.state.lock().unwrap().away_for = 6;
    *world.trainer.away_for.lock().unwrap() = 3;
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    world.go(settings, 1).await.unwrap();
    assert!(world.metas().await.iter().all(|meta| meta.outcome.is_verdict()));
    assert!(world.state().await.voids.is_empty());
    world.nothing_ran_twice();
}

#[tokio::test]
async fn identical_patches_of_a_task_are_graded_once_and_the_others_name_their_source() {
    let world = World::new(1).await;
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    settings.samples = 8;
    settings.prompts = 1;
    world.go(settings, 1).await.unwrap();
    let metas = world.metas().await;
    let patches: HashSet<_> = metas.iter().filter_map(|m| m.patch_sha256.clone()).collect();
    let fixed = metas.iter().filter(|m| m.outcome == Outcome::Resolved).count();
    assert!(fixed > 1, "several episodes find the same fix");
    assert_eq!(world.gateway.state.lock().unwrap().evaluations as usize, patches.len());
    let is_reused = |meta: &&EpisodeMeta| meta.grade.as_ref().is_some_and(|grade| grade.reused_from.is_some());
    assert_eq!(metas.iter().filter(is_reused).count(), metas.len() - patches.len());
    world.verified().await;
}

#[tokio::test]
async fn an_empty_patch_is_unresolved_and_costs_no_grader() {
    let world = World::new(1).await;
    *world.engine.policy.lock().unwrap() = Box::new(|_, _| "```bash\necho SUBMIT\n```".into());
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    world.go(settings, 1).await.unwrap();
    for meta in world.metas().await {
        assert_eq!(
            (meta.outcome, meta.grade.unwrap().status.as_str()),
            (Outcome::Unresolved, "EmptyPatch")
        );
    }
    assert_eq!(world.gateway.state.lock().unwrap().evaluations, 0);
}

/// Defect 13.
#[tokio::test]
async fn an_episode_that_runs_out_of_turns_keeps_its_patch_and_is_marked_truncated() {
    let world = World::new(1).await;
    *world.engine.policy.lock().unwrap() = Box::new(|_, _| "```bash\nsed -i 's/a - b/a + b/' $F\n```".into());
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    world.go(settings, 1).await.unwrap();
    for meta in world.metas().await {
        assert_eq!(
            (meta.outcome, meta.end, meta.turns),
            (Outcome::Resolved, grpo_records::EpisodeEnd::TurnLimit, 6)
        );
        assert!(meta.truncated);
    }
    assert!(
        world
            .store()
            .read::<grpo_records::Batch>(&paths::batch(1))
            .await
            .unwrap()
            .rows
            .iter()
            .all(|r| r.truncated)
    );
}

/// Defect 13: an unavailable engine is a fault of the infrastructure, not a turn limit.
#[tokio::test]
async fn an_engine_that_never_answers_is_a_void_and_says_so() {
    let world = World::new(1).await;
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    settings.patience.engines.total = std::time::Duration::from_millis(300);
    settings.patience.void_retries = 0;
    let run = world.start(settings, 1).await.unwrap();
    let engine = world.engine.clone();
    *world.engine.policy.lock().unwrap() = Box::new(move |_, _| {
        // After its first answer it serves other weights than the wanted ones, and orders do not help.
        *engine.stuck.lock().unwrap() = true;
        *engine.serving.lock().unwrap() = "elsewhere".into();
        "```bash\nls\n```".into()
    });
    let ended = run.go().await.unwrap_err();
    assert!(
        matches!(&ended, DriverError::Terminal(fault) if fault.reason == "NoValidEpisodes"),
        "{ended}"
    );
    let metas = world.metas().await;
    assert!(
        metas
            .iter()
            .all(|m| m.outcome == Outcome::void(VoidReason::EngineUnavailable))
    );
}

#[tokio::test]
async fn an_engine_that_restarts_with_its_base_weights_is_told_again() {
    let world = World::new(1).await;
    let restarts = AtomicU32::new(0);
    let engine = world.engine.clone();
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, seed| {
        if restarts.fetch_add(1, Ordering::Relaxed) == 4 {
            *engine.instance.lock().unwrap() = "two".into();
            *engine.serving.lock().unwrap() = "base".into();
        }
        world::half_right(prompt, seed)
    });
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    world.go(settings, 1).await.unwrap();
    let ordered: Vec<String> = world
        .engine
        .orders
        .lock()
        .unwrap()
        .iter()
        .map(|o| o.version.clone())
        .collect();
    assert_eq!(ordered, ["a-v0", "a-v0", "a-v1"]);
    assert!(world.metas().await.iter().all(|meta| meta.weights == ["a-v0"]));
}

#[tokio::test]
async fn a_trainer_that_comes_back_with_another_lineage_is_followed() {
    let world = World::new(1).await;
    let mut settings = world.settings();
    settings.evaluate.clear();
    settings.iterations = 1;
    world.go(settings.clone(), 1).await.unwrap();
    // It replays step 1 and gets other bits: a new lineage begins.
    *world.trainer.lineage.lock().unwrap() = "b".into();
    world.trainer.publish(1).await;
    *world.trainer.phase.lock().unwrap() = TrainerPhase::Idle;
    settings.iterations = 2;
    world.go(settings, 2).await.unwrap();
    let second: Vec<_> = world
        .metas()
        .await
        .into_iter()
        .filter(|m| m.key.scope == grpo_records::EpisodeScope::Iteration { iteration: 2 })
        .collect();
    assert!(second.iter().all(|meta| meta.weights == ["b-v1"]));
    assert_eq!(world.state().await.promoted.unwrap().weights, "b-v2");
}

#[tokio::test]
async fn with_staleness_one_the_next_rollout_overlaps_the_step_and_no_token_is_older_than_that() {
    let world = World::new(2).await;
    let mut settings = world.settings();
    settings.max_staleness = 1;
    settings.iterations = 3;
    world.go(settings, 1).await.unwrap();
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2, 3]);
    assert_eq!(world::rows_of_steps(&world.verified().await).len(), 3);
    for meta in world.metas().await {
        if let grpo_records::EpisodeScope::Iteration { iteration } = meta.key.scope {
            for version in &meta.weights {
                let sampled = paths::step_of_weights(version).unwrap();
                assert!(iteration - 1 - sampled <= 1, "{version} in iteration {iteration}");
            }
        }
    }
}

#[tokio::test]
async fn another_runs_store_is_refused_when_the_run_says_never() {
    let world = World::new(1).await;
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    world.go(settings.clone(), 1).await.unwrap();
    settings.uid = "uid-2".into();
    settings.resume = grpo_crds::grpo_run::Resume::Never;
    let refused = world.go(settings, 1).await.unwrap_err();
    assert!(
        matches!(&refused, DriverError::Terminal(fault) if fault.reason == "StoreNotEmpty"),
        "{refused}"
    );
}

#[tokio::test]
async fn other_tasks_under_the_same_path_are_noticed() {
    let world = World::new(2).await;
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    world.go(settings.clone(), 1).await.unwrap();
    settings.train.as_mut().unwrap().tasks.limit = Some(1);
    let refused = world.go(settings, 2).await.unwrap_err();
    assert!(
        matches!(&refused, DriverError::Terminal(fault) if fault.reason == "TasksChanged"),
        "{refused}"
    );
}

/// Router replay: the experts that the trainer must repeat come with the batch, for every token that an engine
/// computed.
#[tokio::test]
async fn the_experts_of_a_mixture_come_with_its_batches_and_nothing_is_reported_twice() {
    let world = World::new(2).await;
    *world.engine.reports_experts.lock().unwrap() = true;
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.replay = Some(world::experts::mixture());
    world.go(settings, 1).await.unwrap();
    let rows = world::experts::are_those_of_every_row(&world, 1).await;
    assert_eq!(rows.len(), 8);
    assert!(rows.iter().all(|row| row.experts.len() == 3), "a file for each turn");
    let asked = world.engine.experts_asked.lock().unwrap().clone();
    assert!(asked.contains(&None), "an evaluation asks for no experts");
    assert_eq!(asked.iter().filter(|from| **from == Some(0)).count(), 8, "first turns");
    world.verified().await;
    let file = world.mount.path().join("ns/run").join(&rows[0].experts[1].file);
    std::fs::write(&file, "other").unwrap();
    let (_, checks) = world.recomputed().await;
    let disagreements: Vec<String> = checks.into_iter().flat_map(|check| check.disagreements).collect();
    assert_eq!(disagreements.len(), 1);
    assert!(disagreements[0].contains(&rows[0].experts[1].file));
}

#[tokio::test]
async fn an_engine_that_reports_no_experts_ends_a_run_that_wants_them_and_says_what_to_set() {
    let world = World::new(1).await;
    let mut settings = world.settings();
    settings.replay = Some(world::experts::mixture());
    let refused = world.go(settings, 1).await.unwrap_err();
    let DriverError::Terminal(fault) = refused else {
        panic!("{refused}");
    };
    assert_eq!(fault.reason, "ExpertsNotReported");
    assert!(fault.message.contains("spec.algorithm.routerReplay: true"), "{fault}");
}

#[tokio::test]
async fn a_template_that_only_some_commands_break_is_refused_before_anything_is_sampled() {
    let world = World::new(1).await;
    for observation in ["{{ exitCode + 1 }}", "{% if exitCode == 42 %}{{ unknown }}{% endif %}"] {
        let mut settings = world.settings();
        settings.agent.kind = AgentKind::Bash(Prompts {
            observation: observation.into(),
            ..Prompts::default()
        });
        let refused = world.start(settings, 1).await.err();
        assert!(
            matches!(&refused, Some(DriverError::Terminal(fault)) if fault.reason == "PromptUnusable"),
            "{refused:?}"
        );
    }
    assert!(world.engine.asked.lock().unwrap().is_empty());
}

/// One iteration on one task, whose commands get their environment only from a script.
async fn activated_by(script: &str) -> (Result<(), DriverError>, Vec<EpisodeMeta>) {
    let world = World::new(1).await;
    let mut row = world.rows["task-0"].clone();
    row["env"] = serde_json::json!({});
    row["activate"] = script.into();
    std::fs::write(&world.tasks, row.to_string()).unwrap();
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.prompts = 1;
    settings.evaluate.clear();
    (world.go(settings, 1).await, world.metas().await)
}

#[tokio::test]
async fn commands_of_the_agent_run_in_the_environment_of_their_task() {
    let (ended, metas) = activated_by("export F=a.py").await;
    ended.unwrap();
    assert!(metas.iter().any(|meta| meta.outcome == Outcome::Resolved), "{metas:?}");
}

#[tokio::test]
async fn an_environment_that_cannot_be_activated_is_a_broken_task_and_no_reward() {
    let (ended, metas) = activated_by("echo no such environment && false").await;
    assert!(ended.is_err() && !metas.is_empty());
    for meta in metas {
        assert_eq!(meta.outcome, Outcome::void(VoidReason::TaskBroken));
        let message = meta.message.unwrap();
        assert!(
            message.contains("cannot be activated: no such environment"),
            "{message}"
        );
    }
}
