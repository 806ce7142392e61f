//! A store that does not answer when a step begins.

use crate::common::process::{Attempt, Run, checksum};
use crate::common::silenced;
use grpo_records::paths;
use grpo_records::trainer::TrainerPhase;

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
