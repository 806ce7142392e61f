//! Kills trainers at random instants, many times: a restarted trainer continues with the same bits, and no checkpoint
//! is incomplete.
//!
//! 10 kills; `make test-trainer-kills` has 200, and `make test-gpu` 5 of a trainer on a GPU.

use std::time::Instant;

use crate::common::process::{Attempt, Run, STEPS, checksum};
use crate::common::worlds;
use grpo_records::paths;
use grpo_records::trainer::{StepPhase, StepState, TrainerState};
use grpo_records::weights::WeightsManifest;
use grpo_trainer::state::sha256;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Ranks of a run: one if a GPU is tested.
fn world() -> u32 {
    worlds([1, 2]).pop().unwrap()
}

fn kills() -> u32 {
    let asked = std::env::var("GRPO_KILLS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// Loss and weights of every step, from the store.
fn sequence(run: &Run) -> Vec<(u64, String)> {
    (1..=STEPS)
        .map(|step| {
            let metrics = run.metrics(step);
            (metrics.loss.to_bits(), metrics.tensors_sha256)
        })
        .collect()
}

/// Orders steps until the trainer is gone (`None`) or all are done.
fn drive(attempt: &Attempt, run: &Run) -> Option<()> {
    let body = attempt.try_ask(0, "GET", "/v1/state", "")?.1;
    let state: TrainerState = serde_json::from_str(&body).ok()?;
    for step in state.step + 1..=STEPS {
        let order = serde_json::json!({"batch": paths::batch(step), "sha256": checksum(run, step)});
        attempt.try_ask(0, "PUT", &format!("/v1/steps/{step}"), &order.to_string())?;
        let answer = attempt
            .try_ask(0, "GET", &format!("/v1/steps/{step}?waitSeconds=50"), "")?
            .1;
        let outcome: StepState = serde_json::from_str(&answer).ok()?;
        assert_eq!(outcome.state, StepPhase::Done, "{outcome:?}");
    }
    Some(())
}

/// Checks that every checkpoint and version with a manifest has all files of the manifest.
fn none_is_half(run: &Run) {
    for version in run.store.versions().unwrap() {
        for file in &version.files {
            let path = format!("{}/{}", paths::weights(&version.version), file.name);
            let bytes = run.store.read(&path).unwrap();
            assert_eq!(sha256(&bytes), file.sha256, "{path}");
        }
    }
    for checkpoint in run.store.checkpoints().unwrap() {
        let folder = paths::checkpoint(&checkpoint.lineage, checkpoint.step);
        for (name, checksum) in &checkpoint.files {
            let bytes = run.store.read(&format!("{folder}/{name}")).unwrap();
            assert_eq!(sha256(&bytes), *checksum, "{folder}/{name}");
        }
    }
}

/// Figure 7.
#[test]
fn a_trainer_that_is_killed_at_any_instant_goes_on_with_the_same_bits() {
    let (straight, began) = (Run::new(1), Instant::now());
    drive(&Attempt::start(&straight, 1, world()), &straight).unwrap();
    let (wanted, whole) = (sequence(&straight), began.elapsed());

    let (mut random, mut killed, mut finished) = (StdRng::seed_from_u64(7), 0, 0);
    while killed < kills() {
        let run = Run::new(1);
        for number in 1.. {
            let mut attempt = Attempt::begin(&run, number, world(), 0..world());
            // Lives get longer, so that the test ends even if the machine became slower.
            let life = (whole / 2).mul_f64(random.random_range(0.0..2.0 + f64::from(number) / 8.0));
            let killer = attempt.kill_at(random.random_range(0..world()) as usize, Instant::now() + life);
            let is_done = attempt.takes_orders().is_ok() && drive(&attempt, &run).is_some();
            if is_done {
                killer.spare();
                finished += 1;
                break;
            }
            killer.wait();
            killed += 1;
            drop(attempt);
            none_is_half(&run);
        }
        assert_eq!(sequence(&run), wanted, "after {killed} kills");
        let versions = run.store.versions().unwrap();
        let first = |version: &WeightsManifest| version.lineage == "l1";
        assert!(versions.iter().all(first), "a replay came out otherwise");
    }
    eprintln!("{killed} kills, {finished} runs that came to their end with the same {STEPS} losses and weights");
}
