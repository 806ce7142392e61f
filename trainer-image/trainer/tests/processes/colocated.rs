//! A trainer that takes turns with engines on the same devices (`trainer.colocate`).

use grpo_records::paths;
use grpo_records::trainer::{StepPhase, TrainerPhase, TrainerState};

use crate::common::process::{Attempt, Run, checksum, until};
use crate::common::worlds;

/// Ranks of a run: one if a GPU is tested.
fn world() -> u32 {
    worlds([1, 2]).pop().unwrap()
}

/// Waits until rank 0 waits for its devices, and every pod is ready.
fn waits(attempt: &Attempt) {
    for pod in 0..attempt.doors.len() {
        until(|| matches!(attempt.try_ask(pod, "GET", "/readyz", ""), Some((200, _))));
    }
    assert_eq!(attempt.state().phase, TrainerPhase::Waiting);
}

/// An attempt that got its devices and takes orders.
fn started(run: &Run, number: u32, world: u32) -> Attempt {
    let mut attempt = Attempt::begin(run, number, world, 0..world);
    waits(&attempt);
    assert_eq!(attempt.grant(number).0, 202);
    attempt.wait_for_orders();
    attempt
}

/// How often a rank gave the memory of its device back.
fn returns(attempt: &Attempt) -> usize {
    let said = attempt.said.lock().unwrap();
    said.iter().filter(|line| line.contains("is given back")).count()
}

fn returned(attempt: &Attempt, times: usize) {
    // The lines come through a pipe.
    until(|| returns(attempt) >= times);
    assert_eq!(returns(attempt), times);
}

#[test]
fn a_trainer_that_shares_its_devices_waits_for_them_and_trains_as_one_with_its_own() {
    let (own, shared) = (Run::new(2), Run::colocated(2));
    let wanted = Attempt::start(&own, 1, world());
    let mut attempt = Attempt::begin(&shared, 1, world(), 0..world());
    waits(&attempt);

    // A grant of another attempt, and every order of a step.
    for other in [0, 2] {
        let (status, state) = attempt.grant(other);
        assert_eq!((status, state.attempt, state.phase), (409, 1, TrainerPhase::Waiting));
    }
    assert_eq!(attempt.order(1, &paths::batch(1), &checksum(&shared, 1)).0, 409);
    assert_eq!(attempt.ask("GET", "/v1/steps/1", "").0, 404);
    assert_eq!(attempt.state().phase, TrainerPhase::Waiting);
    assert!(shared.store.versions().unwrap().is_empty());

    let (status, state) = attempt.grant(1);
    assert_eq!((status, state.phase), (202, TrainerPhase::Starting));
    attempt.wait_for_orders();
    assert_eq!((attempt.state().step, attempt.state().phase), (0, TrainerPhase::Idle));
    let (status, state) = attempt.grant(1);
    assert_eq!((status, state.phase), (202, TrainerPhase::Idle), "a repeated grant");
    assert_eq!(attempt.grant(2).0, 409);
    for step in 1..=3 {
        let wanted = wanted.step(&own, step).metrics.unwrap();
        let found = attempt.step(&shared, step).metrics.unwrap();
        assert_eq!(found.loss.to_bits(), wanted.loss.to_bits(), "step {step}");
        assert_eq!(found.tensors_sha256, wanted.tensors_sha256, "step {step}");
    }
}

#[test]
fn every_rank_gives_memory_back_at_the_start_and_after_a_step_that_is_done_or_refused() {
    let ranks = world() as usize;
    let run = Run::colocated(50);
    let attempt = started(&run, 1, world());
    returned(&attempt, ranks);
    attempt.step(&run, 1);
    returned(&attempt, 2 * ranks);
    assert_eq!(attempt.order(2, &paths::batch(2), &checksum(&run, 3)).0, 202);
    assert_eq!(attempt.outcome(2).state, StepPhase::Failed);
    returned(&attempt, 3 * ranks);
    attempt.step(&run, 2);
    returned(&attempt, 4 * ranks);

    let own = Run::new(50);
    let attempt = Attempt::start(&own, 1, 1);
    attempt.step(&own, 1);
    assert_eq!(
        returns(&attempt),
        0,
        "a trainer with devices of its own keeps their memory"
    );
}

#[test]
fn a_trainer_that_comes_back_waits_again_and_answers_for_no_step_before_it_is_idle() {
    let run = Run::colocated(50);
    let first = started(&run, 1, world());
    for step in 1..=3 {
        first.step(&run, step);
    }
    let weights = first.state().weights;
    drop(first);

    let mut second = Attempt::begin(&run, 2, world(), 0..world());
    waits(&second);
    assert_eq!(second.grant(1).0, 409, "a grant of the attempt before");
    assert_eq!(second.ask("GET", "/v1/steps/1", "").0, 404);
    assert_eq!(second.grant(2).0, 202);
    until(|| {
        let (status, body) = second.ask("GET", "/v1/steps/1", "");
        if status == 404 {
            let state: TrainerState = serde_json::from_str(&body).unwrap();
            assert_ne!(state.phase, TrainerPhase::Failed, "{body}");
        }
        status == 200
    });
    let state = second.state();
    assert_eq!(
        (state.phase, state.step, state.weights),
        (TrainerPhase::Idle, 3, weights)
    );
    assert_eq!(second.outcome(3).state, StepPhase::Done);
    second.wait_for_orders();
    second.step(&run, 4);
}

#[test]
fn the_ranks_of_a_pod_wait_together_and_start_together() {
    let ranks = world();
    let run = Run::colocated(50);
    let mut attempt = Attempt::begin_pods(&run, 1, 1, 0..1, ranks);
    waits(&attempt);
    assert_eq!(attempt.grant(1).0, 202);
    attempt.wait_for_orders();
    assert_eq!(attempt.state().world_size, ranks);
    attempt.step(&run, 1);
}

#[test]
fn a_rank_that_waits_for_its_device_ends_with_rank_0() {
    let run = Run::colocated(50);
    let mut attempt = Attempt::begin(&run, 1, 2, 0..2);
    waits(&attempt);
    assert!(attempt.kill(0), "rank 1 did not report that it lost rank 0");
}

#[test]
fn a_damaged_model_is_refused_before_the_wait() {
    let run = Run::colocated(50);
    std::fs::write(run.root.join("model/model.safetensors"), "damaged").unwrap();
    let mut attempt = Attempt::begin(&run, 1, 1, 0..1);
    let said = attempt.takes_orders().unwrap_err();
    assert!(!said.contains("waiting for the devices"), "{said}");
    assert_eq!(attempt.ranks[0].wait().unwrap().code(), Some(1));
}

#[test]
fn a_trainer_with_devices_of_its_own_refuses_grants_and_answers_for_no_step_while_it_starts() {
    let run = Run::new(50);
    // Rank 1 is missing, so rank 0 waits for it.
    let starting = Attempt::begin(&run, 1, 2, 0..1);
    until(|| matches!(starting.try_ask(0, "GET", "/readyz", ""), Some((200, _))));
    let (status, state) = starting.grant(1);
    assert_eq!((status, state.phase), (409, TrainerPhase::Starting));
    assert_eq!(starting.ask("GET", "/v1/steps/1", "").0, 404);
    drop(starting);

    let attempt = Attempt::start(&run, 2, 1);
    let (status, state) = attempt.grant(2);
    assert_eq!((status, state.attempt, state.phase), (409, 2, TrainerPhase::Idle));
    attempt.step(&run, 1);
}
