//! Mode Finetune: only kept steps are published, and a trainer killed between them restores the last step that was
//! done.

use crate::common::process::{Attempt, Run, STEPS};
use grpo_records::{Supervised, fixture, paths};

/// A run that keeps every fourth step and the ninth, which is the last.
fn run() -> Run {
    let dataset = serde_json::json!({"image": {"reference": "example.com/rows:1", "path": "rows.jsonl"}});
    let run = Run::with(
        4,
        serde_json::json!({"mode": "Finetune", "finetune": {"dataset": dataset}}),
    );
    for step in 1..=STEPS {
        let mut batch = crate::common::batch(step);
        batch.rows.iter_mut().for_each(|row| row.logprobs.fill(0.0));
        batch.supervised = Some(Supervised {
            steps: STEPS,
            held_out: Vec::new(),
        });
        fixture::write_batch(&run.at(""), &mut batch);
    }
    run
}

fn published(run: &Run) -> Vec<u32> {
    let mut steps: Vec<u32> = run
        .store
        .versions()
        .unwrap()
        .iter()
        .map(|version| version.step)
        .collect();
    steps.sort_unstable();
    steps
}

fn losses(run: &Run) -> Vec<u64> {
    (1..=STEPS).map(|step| run.metrics(step).loss.to_bits()).collect()
}

#[test]
fn a_trainer_that_is_killed_between_kept_steps_repeats_them_and_learns_the_same() {
    let straight = run();
    let attempt = Attempt::start(&straight, 1, 1);
    let mut versions = Vec::new();
    for step in 1..=STEPS {
        let done = attempt.step(&straight, step);
        versions.push(done.weights.unwrap());
        assert_eq!(attempt.state().step, step);
    }
    let kept = ["l1-v0", "l1-v4", "l1-v8"].map(|version| vec![version; 4]).concat();
    assert_eq!(versions[..8], kept[1..9]);
    assert_eq!(versions[8], "l1-v9");
    let newest = published(&straight);
    assert!(
        newest.ends_with(&[8, 9]) && newest.iter().all(|step| [0, 4, 8, 9].contains(step)),
        "{newest:?}"
    );

    let killed = run();
    let mut attempt = Attempt::start(&killed, 1, 1);
    for step in 1..=6 {
        attempt.step(&killed, step);
    }
    attempt.kill(0);
    let attempt = Attempt::start(&killed, 2, 1);
    let state = attempt.state();
    assert_eq!(
        (state.step, state.weights.as_str()),
        (6, "l1-v4"),
        "two steps after the checkpoint are done again"
    );
    for step in 7..=STEPS {
        attempt.step(&killed, step);
    }
    assert_eq!(losses(&killed), losses(&straight));
    let last = |run: &Run| run.metrics(STEPS).tensors_sha256;
    assert_eq!(last(&killed), last(&straight));
    assert_eq!(attempt.state().weights, "l1-v9");

    // Simulates a death between the last publication and its checkpoint.
    drop(attempt);
    std::fs::remove_dir_all(killed.at(&paths::checkpoint("l1", STEPS))).unwrap();
    let state = Attempt::start(&killed, 3, 1).state();
    assert_eq!((state.step, state.weights.as_str()), (STEPS, "l1-v9"));
    assert_eq!(
        state.checkpoint_step, STEPS,
        "a run that continues with it finds its end"
    );
}
