//! Single attempts at an episode: the remains of an earlier driver, and concurrent writes of another one.

use crate::world::{self, Silence, World};
use grpo_crds::grpo_run::OnSync;
use grpo_driver::config::Settings;
use grpo_driver::episode::EpisodePlan;
use grpo_driver::fault::DriverError;
use grpo_driver::iterate::Run;
use grpo_driver::rollout::Tally;
use grpo_records::reward::changed_lines;
use grpo_records::{
    DropReason, EndedEpisode, EpisodeEnd, EpisodeKey, EpisodeMeta, EpisodeRecord, EpisodeScope, Event, JournalError,
    Outcome, VoidReason, paths, rows,
};
use grpo_sandbox_protocol::{ExecResult, Killed, Priority, SandboxCause};
use std::sync::Arc;
use std::time::Duration;

async fn driver(world: &World, epoch: u32) -> (Arc<Run>, EpisodePlan) {
    driver_with(world, world.settings(), epoch).await
}

async fn driver_with(world: &World, settings: Settings, epoch: u32) -> (Arc<Run>, EpisodePlan) {
    let run = world.start(settings, epoch).await.unwrap();
    let plan = EpisodePlan {
        key: EpisodeKey {
            scope: EpisodeScope::Iteration { iteration: 1 },
            instance: "task-0".into(),
            group: 0,
            sample: 0,
        },
        task: run.train_tasks[0].clone(),
        seed: 7,
        sampling: run.settings.sampling,
        weights: run.wanted.subscribe(),
        on_sync: OnSync::Drain,
        stop: Default::default(),
    };
    (run, plan)
}

async fn attempt(world: &World, epoch: u32, resume: bool) -> Result<Option<EpisodeMeta>, DriverError> {
    let (run, plan) = driver(world, epoch).await;
    run.rollouts.episodes.attempt(&plan, 1, resume).await
}

fn folder() -> String {
    "rollouts/iter-000001/task-0__g0__i0".into()
}

fn lose_the_sandbox_in_turn_1(world: &World) {
    *world.gateway.hook.lock().unwrap() = Some(Box::new(|_, priority, request| {
        let second = priority == Priority::Agent && request.id.starts_with("t1-");
        second.then(|| world::lost(SandboxCause::Preempted))
    }));
}

#[tokio::test]
async fn a_void_whose_driver_died_before_its_verdict_is_the_same_void_afterwards() {
    let world = World::new(1).await;
    lose_the_sandbox_in_turn_1(&world);
    let first = attempt(&world, 1, false).await.unwrap().unwrap();
    assert_eq!((first.end, first.turns), (EpisodeEnd::Aborted, 1));
    world.store().delete(&paths::meta(&folder())).await.unwrap();

    let again = attempt(&world, 2, true).await.unwrap().unwrap();
    assert_eq!(
        (again.outcome, again.reward),
        (Outcome::void(VoidReason::SandboxLost), None)
    );
    assert_eq!((again.message, again.end), (first.message, EpisodeEnd::Aborted));
}

/// A task that cannot be judged, in a sandbox that failed tests at a full disk: their log looks like a verdict.
#[tokio::test]
async fn a_void_whose_driver_died_before_its_record_leaves_no_log_that_the_next_driver_would_judge() {
    let world = World::new(1).await;
    *world.engine.policy.lock().unwrap() = Box::new(|_, _| "```bash\nsed -i 's/a - b/a + b/' $F\n```".into());
    let failed = ">>>>> Start Test Output\nFAILED t.py::add\nPASSED t.py::other\n>>>>> End Test Output\n\
        >>>>> Test Exit Code: 1\n";
    let eval = |output: &str| ExecResult {
        id: "eval".into(),
        exit_code: Some(1),
        signal: None,
        timed_out: false,
        output: output.into(),
        omitted_bytes: 0,
        duration_millis: 1,
        killed: Some(Killed::DiskFull),
    };
    // Twice with the patch, then twice without.
    world.gateway.state.lock().unwrap().failures = vec![eval(failed), eval(failed), eval(""), eval("")];
    let record = world.dir().join(paths::meta(&folder()));
    let (run, plan) = driver(&world, 1).await;
    std::fs::create_dir_all(&record).unwrap();
    run.rollouts.episodes.attempt(&plan, 1, false).await.unwrap_err();
    assert!(world.gateway.state.lock().unwrap().failures.is_empty(), "it was a void");
    std::fs::remove_dir(&record).unwrap();

    let again = attempt(&world, 2, true).await.unwrap().unwrap();
    assert_eq!(again.outcome, Outcome::Resolved);
}

#[tokio::test]
async fn an_attempt_that_was_about_to_be_given_up_is_followed_by_another() {
    let world = World::new(1).await;
    lose_the_sandbox_in_turn_1(&world);
    attempt(&world, 1, false).await.unwrap().unwrap();
    let (store, folder) = (world.store(), folder());
    let record: EpisodeRecord = store.read(&paths::trajectory(&folder)).await.unwrap();
    let ended = EndedEpisode::of(record, &store.bytes(&paths::rows(&folder)).await.unwrap()).unwrap();
    for turn in ended.turns().unwrap() {
        store.create(&paths::turn(&folder, turn.turn), &turn).await.unwrap();
    }
    for written_later in [paths::trajectory(&folder), paths::meta(&folder)] {
        store.delete(&written_later).await.unwrap();
    }
    assert_eq!(attempt(&world, 2, true).await.unwrap(), None);
}

/// An attempt whose time ends within an answer, and whose driver dies between the patch and the record. Returns the
/// settings.
async fn stopped_before_the_record(world: &World) -> Settings {
    let (engine, record) = (world.engine.clone(), world.dir().join(paths::trajectory(&folder())));
    let blocked = record.clone();
    *world.engine.policy.lock().unwrap() = Box::new(move |_, _| {
        *engine.silence.lock().unwrap() = Some(Silence::SamplesLong);
        std::fs::create_dir_all(blocked.parent().unwrap()).unwrap();
        std::fs::write(&blocked, "{\"schema\":3}").unwrap();
        "```bash\nsed -i 's/a - b/a + b/' $F\n```".into()
    });
    let mut settings = world.settings();
    settings.agent.limits.episode_timeout = Duration::from_secs(3);
    settings.patience.engines.request = Duration::from_millis(200);
    settings.patience.engines.total = Duration::from_millis(500);
    let (run, plan) = driver_with(world, settings.clone(), 1).await;
    let stopped = run.rollouts.episodes.attempt(&plan, 1, false).await.unwrap_err();
    assert!(
        matches!(&stopped, DriverError::OtherDriver { path, .. } if path.ends_with("traj.json")),
        "{stopped}"
    );
    assert!(world.store().exists(&paths::patch(&folder())).await.unwrap());
    std::fs::remove_file(&record).unwrap();
    *world.engine.silence.lock().unwrap() = None;
    *world.engine.policy.lock().unwrap() = Box::new(world::half_right);
    settings
}

#[tokio::test]
async fn an_end_that_no_turn_carries_survives_a_driver_that_dies_between_patch_and_record() {
    let world = World::new(1).await;
    let settings = stopped_before_the_record(&world).await;
    let (run, plan) = driver_with(&world, settings, 2).await;
    let meta = run.rollouts.episodes.attempt(&plan, 1, true).await.unwrap().unwrap();
    assert_eq!(
        (meta.outcome, meta.end, meta.truncated),
        (Outcome::Resolved, EpisodeEnd::EpisodeTimeout, true)
    );
    let store = world.store();
    let record: EpisodeRecord = store.read(&paths::trajectory(&folder())).await.unwrap();
    assert_eq!((record.end, record.aborted), (EpisodeEnd::EpisodeTimeout, None));
    let kept = store.exists(&paths::agent_end(&folder())).await.unwrap();
    assert!(!kept, "it goes with the turns' files");
}

#[tokio::test]
async fn a_patch_of_an_older_driver_that_kept_no_end_is_followed_by_another_attempt() {
    let world = World::new(1).await;
    let settings = stopped_before_the_record(&world).await;
    world.store().delete(&paths::agent_end(&folder())).await.unwrap();
    let (run, plan) = driver_with(&world, settings, 2).await;
    assert_eq!(run.rollouts.episodes.attempt(&plan, 1, true).await.unwrap(), None);
}

#[tokio::test]
async fn an_episode_that_has_ended_holds_its_ids_once_and_is_graded_after_a_restart() {
    let world = World::new(1).await;
    let first = attempt(&world, 1, false).await.unwrap().unwrap();
    let (store, folder) = (world.store(), folder());
    let (turns, _) = store.names_in(&paths::turns(&folder)).await.unwrap();
    assert_eq!(turns, Vec::<String>::new());
    let rows = rows::decode(&store.bytes(&paths::rows(&folder)).await.unwrap()).unwrap();
    assert_eq!((rows.len(), rows[0].tokens.len()), (1, first.tokens));
    let asked = world.engine.asked.lock().unwrap().len();
    store.delete(&paths::meta(&folder)).await.unwrap();

    let again = attempt(&world, 2, true).await.unwrap().unwrap();
    assert_eq!((&again.outcome, again.tokens), (&first.outcome, first.tokens));
    assert_eq!(again.patch_sha256, first.patch_sha256);
    assert_eq!(world.engine.asked.lock().unwrap().len(), asked);
}

/// An attempt whose policy repairs the task and runs this command in its first turn, and whose driver is replaced
/// before the second turn is stored. The policy then submits.
async fn stopped_after(world: &World, command: &str) {
    let turn = world.dir().join(paths::turn(&folder(), 1));
    let (at, command) = (turn.clone(), format!("sed -i 's/a - b/a + b/' $F && {command}"));
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, _| {
        let command = match prompt.matches("assistant\n").count() {
            1 => command.as_str(),
            _ => {
                std::fs::write(&at, "{\"schema\":3}").unwrap();
                "echo SUBMIT"
            }
        };
        format!("Go.\n```bash\n{command}\n```")
    });
    let stopped = attempt(world, 1, false).await.unwrap_err();
    assert!(matches!(&stopped, DriverError::OtherDriver { .. }), "{stopped}");
    std::fs::remove_file(&turn).unwrap();
    *world.engine.policy.lock().unwrap() = Box::new(|_, _| "Done.\n```bash\necho SUBMIT\n```".to_owned());
}

#[tokio::test]
async fn a_resumed_episode_takes_its_patch_against_the_commit_that_it_began_with_though_the_policy_has_committed() {
    let world = World::new(1).await;
    let mut row = world.rows["task-0"].clone();
    row.as_object_mut().unwrap().remove("base_commit");
    std::fs::write(&world.tasks, row.to_string()).unwrap();
    let commit = "git -c user.name=p -c user.email=p@p commit -qam mine";
    stopped_after(&world, &format!("cd $(dirname $F) && {commit}")).await;
    let meta = attempt(&world, 2, true).await.unwrap().unwrap();
    assert_eq!((meta.outcome, meta.turns), (grpo_records::Outcome::Resolved, 2));
    assert!(meta.patch_bytes > 0);
}

/// A world whose image changes files after the base commit.
async fn with_image_changes() -> World {
    let world = World::new(1).await;
    let mut row = world.rows["task-0"].clone();
    row["setup"] = "cd /testbed\necho '# baked' >> a.py\necho extra > extra.txt\n".into();
    std::fs::write(&world.tasks, row.to_string()).unwrap();
    world
}

async fn patch_of(folder: &str, world: &World) -> String {
    let patch = world.store().bytes(&paths::patch(folder)).await.unwrap();
    String::from_utf8_lossy(&patch).into_owned()
}

#[tokio::test]
async fn an_episode_that_changes_nothing_has_an_empty_patch_though_its_image_changed_files() {
    let world = with_image_changes().await;
    *world.engine.policy.lock().unwrap() = Box::new(|_, _| "Done.\n```bash\necho SUBMIT\n```".to_owned());
    let (run, plan) = driver(&world, 1).await;
    // The first one looks for the task, the second one for itself.
    for sample in 0..2 {
        let key = EpisodeKey {
            sample,
            ..plan.key.clone()
        };
        let plan = EpisodePlan { key, ..plan.clone() };
        let meta = run.rollouts.episodes.attempt(&plan, 1, false).await.unwrap().unwrap();
        assert_eq!((meta.outcome, meta.patch_bytes), (Outcome::Unresolved, 0));
        assert_eq!(meta.grade.unwrap().status, "EmptyPatch");
    }
    assert_eq!(world.gateway.state.lock().unwrap().evaluations, 0);
}

fn write_a_patch_beyond_the_limit(world: &World) {
    *world.engine.policy.lock().unwrap() = Box::new(|prompt, _| {
        let command = match prompt.matches("assistant\n").count() {
            1 => "head -c 9000000 /dev/zero | tr '\\0' x > big.txt",
            _ => "echo SUBMIT",
        };
        format!("Go.\n```bash\n{command}\n```")
    });
}

#[tokio::test]
async fn a_patch_beyond_the_limit_is_unresolved_and_its_grade_says_so() {
    let world = World::new(1).await;
    write_a_patch_beyond_the_limit(&world);
    let meta = attempt(&world, 1, false).await.unwrap().unwrap();
    assert_eq!(
        (meta.outcome, meta.end, meta.patch_bytes),
        (Outcome::Unresolved, EpisodeEnd::Submitted, 0)
    );
    assert_eq!(meta.grade.unwrap().status, "PatchTooLarge");
}

#[tokio::test]
async fn a_patch_beyond_the_limit_has_the_same_grade_if_the_driver_died_before_its_verdict() {
    let world = World::new(1).await;
    write_a_patch_beyond_the_limit(&world);
    let first = attempt(&world, 1, false).await.unwrap().unwrap();
    let (store, folder) = (world.store(), folder());
    store.delete(&paths::meta(&folder)).await.unwrap();

    let again = attempt(&world, 2, true).await.unwrap().unwrap();
    assert_eq!((&again.outcome, &again.grade), (&first.outcome, &first.grade));
    assert_eq!(again.grade.unwrap().status, "PatchTooLarge");

    // The record of an older driver, which did not keep the reason.
    let path = paths::trajectory(&folder);
    let mut record: serde_json::Value = serde_json::from_slice(&store.bytes(&path).await.unwrap()).unwrap();
    let removed = record.as_object_mut().unwrap().remove("patchTooLarge");
    assert_eq!(removed, Some(serde_json::Value::Bool(true)));
    store.replace(&path, record.to_string().into()).await.unwrap();
    store.delete(&paths::meta(&folder)).await.unwrap();
    let older = attempt(&world, 3, true).await.unwrap().unwrap();
    assert_eq!(
        (older.outcome, older.grade.unwrap().status.as_str()),
        (first.outcome, "NoPatch")
    );
}

#[tokio::test]
async fn a_tree_without_changes_of_its_image_is_looked_at_once_for_all_episodes_of_the_task() {
    let world = World::new(1).await;
    let (run, plan) = driver(&world, 1).await;
    for sample in 0..3 {
        let key = EpisodeKey {
            sample,
            ..plan.key.clone()
        };
        let plan = EpisodePlan { key, ..plan.clone() };
        let meta = run.rollouts.episodes.attempt(&plan, 1, false).await.unwrap().unwrap();
        assert!(meta.outcome.is_verdict() && meta.patch_bytes > 0);
    }
    let state = world.gateway.state.lock().unwrap();
    let looks = state.ran.keys().filter(|(_, id)| id.starts_with("start-"));
    assert_eq!(looks.count(), 1);
}

#[tokio::test]
async fn a_resumed_episode_takes_its_patch_against_the_tree_that_it_began_with() {
    let world = with_image_changes().await;
    stopped_after(&world, "git gc -q --prune=now").await;
    let meta = attempt(&world, 2, true).await.unwrap().unwrap();
    assert_eq!((meta.outcome, meta.turns), (Outcome::Resolved, 2));
    let patch = patch_of(&folder(), &world).await;
    assert_eq!(changed_lines(patch.as_bytes()), 2, "{patch}");
    assert!(
        patch.contains("\n # baked\n") && !patch.contains("extra.txt"),
        "{patch}"
    );
    let (left, _) = world.store().names_in(&paths::starts(&folder())).await.unwrap();
    assert_eq!(left, Vec::<String>::new(), "they go with the turns' files");
}

/// Defect 19: an engine may answer differently, and a command that ran without a record left its effects in the
/// sandbox.
#[tokio::test]
async fn a_command_that_ran_and_was_not_recorded_is_the_one_that_a_later_driver_records() {
    let world = World::new(1).await;
    let turn = world.dir().join(paths::turn(&folder(), 1));
    let says = |at: Option<std::path::PathBuf>, word: &'static str| {
        move |prompt: &str, _: u64| {
            let command = match prompt.matches("assistant\n").count() {
                1 => "cat $F".to_owned(),
                2 => format!("echo '# {word}' >> $F"),
                _ => "echo SUBMIT".to_owned(),
            };
            if let (true, Some(at)) = (command.contains(word), &at) {
                std::fs::write(at, "{\"schema\":3}").unwrap();
            }
            format!("Go.\n```bash\n{command}\n```")
        }
    };
    *world.engine.policy.lock().unwrap() = Box::new(says(Some(turn.clone()), "first"));
    let stopped = attempt(&world, 1, false).await.unwrap_err();
    assert!(matches!(&stopped, DriverError::OtherDriver { .. }), "{stopped}");
    std::fs::remove_file(&turn).unwrap();

    *world.engine.policy.lock().unwrap() = Box::new(says(None, "second"));
    let meta = attempt(&world, 2, true).await.unwrap().unwrap();
    assert_eq!((meta.end, meta.turns), (EpisodeEnd::Submitted, 3));
    let store = world.store();
    let record: EpisodeRecord = store.read(&paths::trajectory(&folder())).await.unwrap();
    assert!(record.turns[1].text.contains("first"), "{}", record.turns[1].text);
    let patch = store.bytes(&paths::patch(&folder())).await.unwrap();
    let patch = String::from_utf8_lossy(&patch);
    assert!(patch.contains("+# first") && !patch.contains("second"), "{patch}");
    world.nothing_ran_twice();
    let (left, _) = store.names_in(&paths::intents(&folder())).await.unwrap();
    assert_eq!(left, Vec::<String>::new(), "they go with the turns' files");
}

#[tokio::test]
async fn a_driver_that_finds_a_turn_of_another_one_stops() {
    let world = World::new(1).await;
    let turn = world.dir().join(paths::turn(&folder(), 1));
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, seed| {
        if prompt.matches("assistant\n").count() == 2 {
            std::fs::write(&turn, "{\"schema\":3}").unwrap();
        }
        world::half_right(prompt, seed)
    });
    let stopped = attempt(&world, 1, false).await.unwrap_err();
    assert!(
        matches!(&stopped, DriverError::OtherDriver { path, epoch: 1 } if path.ends_with("turns/001.json")),
        "{stopped}"
    );
}

#[tokio::test]
async fn a_driver_of_an_earlier_epoch_decides_nothing_any_more() {
    let world = World::new(1).await;
    let (first, _) = driver(&world, 1).await;
    let (_second, _) = driver(&world, 2).await;
    let dropped = Event::GroupDropped {
        iteration: 1,
        group: 0,
        valid: 0,
        reason: DropReason::TooFewValid,
    };
    let fenced = first.journal.record(dropped).await.unwrap_err();
    assert!(
        matches!(fenced, DriverError::Journal(JournalError::Fenced { epoch: 1, .. })),
        "{fenced}"
    );
    let late = world.start(world.settings(), 1).await.err().unwrap();
    assert!(matches!(late, DriverError::Superseded { epoch: 1, newer: 2 }), "{late}");
}

#[tokio::test]
async fn two_drivers_begin_no_episode_in_one_sandbox() {
    let world = World::new(1).await;
    attempt(&world, 1, false).await.unwrap().unwrap();
    let store = world.store();
    for path in store.files_below(&folder()).await.unwrap() {
        store.delete(&path).await.unwrap();
    }
    attempt(&world, 2, false).await.unwrap().unwrap();
    let released = world.gateway.state.lock().unwrap().released.clone();
    let mut agents: Vec<&String> = released.iter().filter(|lease| lease.starts_with("a-")).collect();
    agents.dedup();
    assert_eq!(agents.len(), 2, "{released:?}");
}

#[tokio::test]
async fn an_attempt_that_left_no_record_is_not_begun_again_after_a_later_one() {
    let world = World::new(1).await;
    let (run, plan) = driver(&world, 1).await;
    // The first attempt was given up before its first turn, so it has no folder.
    run.rollouts.episodes.attempt(&plan, 2, false).await.unwrap().unwrap();
    let (run, plan) = driver(&world, 2).await;
    let (tally, _) = tokio::sync::watch::channel(Tally::default());
    let scope = plan.key.scope.clone();
    let metas = run.rollouts.run(&scope, vec![plan], &tally, None).await.unwrap();
    let attempts: Vec<u32> = metas.iter().map(|meta| meta.attempt).collect();
    assert_eq!(attempts, [2]);
    assert_eq!(world.metas().await.len(), 1);
}

#[tokio::test]
async fn a_void_whose_driver_died_before_its_journal_entry_gets_one_and_is_followed_by_another_attempt() {
    let world = World::new(1).await;
    lose_the_sandbox_in_turn_1(&world);
    attempt(&world, 1, false).await.unwrap().unwrap();
    assert!(world.state().await.voided.is_empty());
    *world.gateway.hook.lock().unwrap() = None;
    for epoch in [2, 3] {
        let (run, plan) = driver(&world, epoch).await;
        let (tally, _) = tokio::sync::watch::channel(Tally::default());
        let scope = plan.key.scope.clone();
        let metas = run.rollouts.run(&scope, vec![plan], &tally, None).await.unwrap();
        assert_eq!(metas.iter().map(|meta| meta.attempt).collect::<Vec<_>>(), [2]);
        let state = world.state().await;
        assert_eq!(state.voided.into_iter().collect::<Vec<_>>(), [folder()]);
        assert_eq!(state.voids[&VoidReason::SandboxLost], 1);
    }
}
