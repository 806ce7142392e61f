//! Dynamic sampling in whole runs: groups without a signal are replaced, and batches depend on verdicts alone.

use crate::world::World;
use grpo_crds::grpo_run::TaskOrder;
use grpo_driver::config::Settings;
use grpo_driver::dynamic::Dynamic;
use grpo_records::{Batch, DropReason, EpisodeScope, IterationRecord, paths};

const PLAIN: Dynamic = Dynamic {
    over_sample: 1.0,
    limit: 4.0,
    band: None,
};

/// The number of the task in a prompt.
fn task(prompt: &str) -> usize {
    let at = prompt.find("Fix task-").unwrap() + "Fix task-".len();
    prompt[at..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .unwrap()
}

/// An episode's answers: the first runs `command`, the next submits.
fn answer(prompt: &str, command: &str) -> String {
    match prompt.matches("assistant\n").count() {
        1 => format!("Go.\n```bash\n{command}\n```"),
        _ => "Go.\n```bash\necho SUBMIT\n```".to_owned(),
    }
}

const SOLVES: &str = "sed -i 's/a - b/a + b/' $F";
const FAILS: &str = "echo '# no' >> $F";

fn either(seed: u64) -> &'static str {
    match seed.is_multiple_of(2) {
        true => SOLVES,
        false => FAILS,
    }
}

/// A world of `tasks` tasks, in order; `policy` chooses the behaviour of a task's episode.
async fn world(tasks: usize, policy: fn(usize, u64) -> &'static str) -> (World, Settings) {
    let world = World::new(tasks).await;
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, seed| answer(prompt, policy(task(prompt), seed)));
    let mut settings = world.settings();
    settings.train.as_mut().unwrap().order = TaskOrder::InOrder;
    settings.evaluate.clear();
    settings.dynamic = Some(PLAIN);
    (world, settings)
}

async fn rewards(world: &World, step: u32) -> Vec<(u32, Vec<f32>)> {
    let batch: Batch = world.store().read(&paths::batch(step)).await.unwrap();
    batch
        .groups
        .into_iter()
        .map(|group| (group.group, group.rewards))
        .collect()
}

#[tokio::test]
async fn groups_without_signal_are_replaced_by_those_of_the_next_tasks() {
    let (world, settings) = world(
        6,
        |task, seed| if task.is_multiple_of(2) { FAILS } else { either(seed) },
    )
    .await;
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    let state = world.state().await;
    let mut next = 0;
    for (k, iteration) in &state.iterations {
        let groups = rewards(&world, *k).await;
        assert_eq!(groups.len(), 2);
        for (group, rewards) in &groups {
            assert!(rewards.iter().any(|reward| *reward != rewards[0]), "{rewards:?}");
            assert!(!iteration.tasks[*group as usize].is_multiple_of(2));
        }
        // The tasks in order, over both iterations.
        for (task, place) in iteration.tasks.iter().zip(&iteration.places) {
            assert_eq!((u64::from(*task), *place), (next % 6, next));
            next += 1;
        }
        let left_out = iteration.tasks.len() - groups.len();
        assert!(left_out >= 2, "{:?}", iteration.tasks);
        assert_eq!(iteration.dropped.len(), left_out);
        assert!(iteration.dropped.values().all(|reason| *reason == DropReason::NoSignal));
        let bytes = world.store().bytes(&paths::driver_metrics(*k)).await.unwrap();
        let record: IterationRecord = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(record.groups_without_signal as usize, left_out);
        assert_eq!(record.groups_constant, 0);
    }
    assert!(world.gateway.state.lock().unwrap().leases.is_empty());
}

#[tokio::test]
async fn a_run_without_any_signal_comes_to_its_end_within_the_limit() {
    let (world, mut settings) = world(3, |_, _| FAILS).await;
    settings.dynamic = Some(Dynamic { limit: 1.5, ..PLAIN });
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    let state = world.state().await;
    assert!(state.finished.unwrap().succeeded);
    for (k, iteration) in &state.iterations {
        assert_eq!(iteration.tasks.len(), 3);
        assert_eq!(rewards(&world, *k).await, [(0, vec![0.0; 4]), (1, vec![0.0; 4])]);
        assert_eq!(
            iteration.dropped.clone().into_iter().collect::<Vec<_>>(),
            [(2, DropReason::NoSignal)]
        );
    }
}

#[tokio::test]
async fn what_over_sampling_began_too_early_is_stopped_and_its_tasks_come_again() {
    // The first two tasks take many turns; the others hang until the command's time limit.
    let (world, mut settings) = world(6, |_, _| FAILS).await;
    *world.engine.policy.lock().unwrap() = Box::new(|prompt, seed| {
        let turn = prompt.matches("assistant\n").count();
        match (task(prompt), turn) {
            (0 | 1, 1..=3) => "Go.\n```bash\ncat $F\n```".to_owned(),
            (0 | 1, 4) => format!("Go.\n```bash\n{}\n```", either(seed)),
            (0 | 1, _) => "Go.\n```bash\necho SUBMIT\n```".to_owned(),
            _ => "Go.\n```bash\nsleep 9\n```".to_owned(),
        }
    });
    settings.iterations = 1;
    settings.concurrency = Some(24);
    settings.dynamic = Some(Dynamic {
        over_sample: 2.0,
        ..PLAIN
    });
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    let groups: Vec<u32> = rewards(&world, 1).await.into_iter().map(|(group, _)| group).collect();
    assert_eq!(groups, [0, 1]);
    let state = world.state().await;
    let iteration = &state.iterations[&1];
    let dropped: Vec<_> = iteration.dropped.clone().into_iter().collect();
    assert_eq!(dropped, [(2, DropReason::Surplus), (3, DropReason::Surplus)]);
    assert_eq!(iteration.next_place(), Some(2));
    for meta in world.metas().await {
        assert!(meta.key.group < 2, "{:?}", meta.key);
    }
    assert!(
        world.gateway.state.lock().unwrap().leases.is_empty(),
        "sandboxes are given back"
    );
    assert!(state.voids.is_empty(), "stopping is no fault");
}

#[tokio::test]
async fn a_task_outside_the_band_is_not_tried_again() {
    let (world, mut settings) = world(3, |task, seed| if task == 0 { SOLVES } else { either(seed) }).await;
    settings.prompts = 1;
    settings.iterations = 3;
    settings.dynamic = Some(Dynamic {
        band: Some((0.0, 0.9)),
        ..PLAIN
    });
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    let state = world.state().await;
    let all: Vec<u32> = state.iterations.values().flat_map(|one| one.tasks.clone()).collect();
    assert_eq!(all[0], 0);
    assert!(all.len() > 3 && !all[1..].contains(&0), "{all:?}");
    assert_eq!(state.pass_rates(2)[&0], 1.0);
    let scope = EpisodeScope::Iteration { iteration: 1 };
    assert!(
        world
            .metas()
            .await
            .iter()
            .any(|meta| meta.key.scope == scope && meta.reward == Some(1.0))
    );
}
