//! Weights whose name is taken: a restarted trainer may hold other bits than were published. And the versions that a
//! replay leaves in the store.

use std::collections::BTreeSet;

use crate::common::process::{Attempt, Run, STEPS, until};
use grpo_records::paths;
use grpo_records::trainer::StepMetrics;
use grpo_trainer::state::json;

#[test]
fn weights_that_differ_from_those_of_their_name_begin_a_lineage_once_and_training_goes_on_there() {
    let run = Run::new(2);
    let first = Attempt::start(&run, 1, 2);
    for step in 1..=2 {
        first.step(&run, step);
    }
    until(|| first.state().checkpoint_step == 2);
    drop(first);
    // Simulates another machine whose matrix products have other bits.
    let mut manifest = run.manifest("l1-v2");
    manifest.tensors_sha256 = "0".repeat(64);
    let path = run.at(&paths::weights_manifest("l1-v2"));
    std::fs::write(path, serde_json::to_vec(&manifest).unwrap()).unwrap();
    for number in 2..=3 {
        let state = Attempt::start(&run, number, 2).state();
        assert_eq!((state.step, state.weights.as_str()), (2, "l2-v2"), "attempt {number}");
    }
    let last = Attempt::start(&run, 4, 1);
    last.step(&run, 3);
    assert_eq!(last.state().weights, "l2-v3");
    assert_eq!(run.manifest("l2-v3").parent.as_deref(), Some("l2-v2"));
}

fn versions(run: &Run) -> BTreeSet<String> {
    let all = run.store.versions().unwrap();
    all.into_iter().map(|version| version.version).collect()
}

/// A run whose attempt did all steps and whose checkpoints are lost, so that the next attempt replays every step.
fn run_without_checkpoints() -> Run {
    let run = Run::new(50);
    let attempt = Attempt::start(&run, 1, 1);
    for step in 1..=STEPS {
        attempt.step(&run, step);
    }
    drop(attempt);
    std::fs::remove_dir_all(run.at(paths::CHECKPOINTS)).unwrap();
    run
}

#[test]
fn a_replay_writes_no_version_again_that_newer_ones_have_replaced_unless_the_run_continues_from_it() {
    let run = run_without_checkpoints();
    let before = versions(&run);
    assert!(!before.contains("l1-v1"), "{before:?}");
    let state = Attempt::start(&run, 2, 1).state();
    assert_eq!((state.step, state.weights), (STEPS, format!("l1-v{STEPS}")));
    assert_eq!(versions(&run), before);

    // A batch is lost, so the run continues from the step before it.
    std::fs::remove_dir_all(run.at(paths::CHECKPOINTS)).unwrap();
    std::fs::remove_file(run.at(&paths::batch(2))).unwrap();
    let state = Attempt::start(&run, 3, 1).state();
    assert_eq!((state.step, state.weights.as_str()), (1, "l1-v1"));
    assert!(versions(&run).contains("l1-v1"));
}

#[test]
fn a_replay_of_a_new_lineage_leaves_as_many_versions_as_training_and_the_last_two_of_the_lineage_before() {
    let run = run_without_checkpoints();
    let other = StepMetrics {
        tensors_sha256: "00".repeat(32),
        ..run.metrics(1)
    };
    std::fs::write(run.at(&paths::trainer_metrics(1)), json(&other).unwrap()).unwrap();
    let state = Attempt::start(&run, 2, 1).state();
    assert_eq!((state.step, state.weights), (STEPS, format!("l2-v{STEPS}")));
    let replayed = (1..=STEPS).map(|step| paths::weights_version("l2", step));
    let older = [0, STEPS - 1, STEPS].map(|step| paths::weights_version("l1", step));
    let wanted: BTreeSet<String> = older.into_iter().chain(replayed).collect();
    assert_eq!(versions(&run), wanted);
}
