//! A store that does not answer for a while: at the start, when a step begins, and when its results are written.

use crate::common::process::{Attempt, Run, checksum, until};
use crate::common::silenced;
use grpo_records::paths;
use grpo_records::trainer::{StepPhase, TrainerPhase};

/// Refusals of one step that end a run, and one more.
const ORDERS: u32 = 4;

#[test]
fn a_step_whose_batch_cannot_be_read_now_is_answered_as_an_outage_each_time_and_taken_afterwards() {
    let run = Run::new(50);
    let attempt = Attempt::start(&run, 1, 2);
    let (path, sha256) = (paths::batch(1), checksum(&run, 1));
    silenced(&run.at(&path), || {
        for _ in 0..ORDERS {
            assert_eq!(attempt.order(1, &path, &sha256).0, 202);
            let (status, answer) = attempt.ask("GET", "/v1/steps/1?waitSeconds=50", "");
            assert_eq!(status, 503, "{answer}");
            let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
            assert_eq!(answer["code"], "StoreUnavailable");
            assert_eq!(answer["fault"], "Infrastructure");
            assert!(answer["message"].as_str().unwrap().contains(&path), "{answer}");
            let state = attempt.state();
            assert_eq!((state.step, state.phase), (0, TrainerPhase::Idle));
        }
    });
    attempt.step(&run, 1);
    assert_eq!(attempt.state().weights, "l1-v1");
}

/// Waits until the trainer reports that it waits for the store because of this path.
fn until_it_waits(attempt: &Attempt, path: &str) {
    until(|| {
        let answer = attempt.try_ask(0, "GET", "/v1/state", "");
        answer.is_some_and(|(_, state)| state.contains("waits for the store") && state.contains(path))
    });
}

#[test]
fn a_replay_waits_for_a_store_that_does_not_answer_and_is_ready_meanwhile() {
    let run = Run::new(50);
    let first = Attempt::start(&run, 1, 2);
    for step in 1..=2 {
        first.step(&run, step);
    }
    drop(first);
    let batch = paths::batch(2);
    let mut second = silenced(&run.at(&batch), || {
        let attempt = Attempt::begin(&run, 2, 2, 0..2);
        until_it_waits(&attempt, &batch);
        assert_eq!(attempt.state().phase, TrainerPhase::Starting);
        let (status, said) = attempt.ask("GET", "/readyz", "");
        assert!(status == 200 && said.contains("waits for the store"), "{status} {said}");
        let metrics = attempt.ask("GET", "/metrics", "").1;
        assert!(metrics.contains("grpo_trainer_waits_for_store 1"), "{metrics}");
        attempt
    });
    second.wait_for_orders();
    let state = second.state();
    assert_eq!((state.step, state.weights.as_str(), state.error), (2, "l1-v2", None));
    assert!(
        second
            .ask("GET", "/metrics", "")
            .1
            .contains("grpo_trainer_waits_for_store 0")
    );
}

#[test]
fn a_step_whose_weights_cannot_be_written_now_is_done_once_the_store_answers() {
    let run = Run::new(50);
    let attempt = Attempt::start(&run, 1, 2);
    silenced(&run.at(paths::WEIGHTS), || {
        assert_eq!(attempt.order(1, &paths::batch(1), &checksum(&run, 1)).0, 202);
        until_it_waits(&attempt, paths::WEIGHTS);
        assert_eq!(attempt.state().phase, TrainerPhase::Stepping);
    });
    assert_eq!(attempt.outcome(1).state, StepPhase::Done);
    assert_eq!(
        (attempt.state().weights.as_str(), attempt.state().error),
        ("l1-v1", None)
    );
    assert_eq!(run.store.versions().unwrap().len(), 2);
}

#[test]
fn a_checkpoint_that_cannot_be_written_now_is_written_once_the_store_answers() {
    let run = Run::new(1);
    let attempt = Attempt::start(&run, 1, 2);
    std::fs::create_dir_all(run.at(paths::CHECKPOINTS)).unwrap();
    silenced(&run.at(paths::CHECKPOINTS), || {
        attempt.step(&run, 1);
        until_it_waits(&attempt, paths::CHECKPOINTS);
    });
    until(|| attempt.state().checkpoint_step == 1);
    assert_eq!(run.store.checkpoints().unwrap().len(), 1);
}
