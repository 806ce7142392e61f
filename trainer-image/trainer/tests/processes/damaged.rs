//! Damaged files of a run's store: a start names them, and continues where that gives the same bits.

use crate::common::process::{Attempt, Run};
use grpo_records::paths;

/// A run of three steps without a checkpoint, whose trainer has ended.
fn trained() -> Run {
    let run = Run::new(50);
    let attempt = Attempt::start(&run, 1, 1);
    for step in 1..=3 {
        attempt.step(&run, step);
    }
    drop(attempt);
    run
}

fn damage(run: &Run, path: &str) {
    std::fs::write(run.at(path), "{\"vers").unwrap();
}

fn says(attempt: &Attempt, words: &[&str]) {
    let said = attempt.said.lock().unwrap();
    let has_all = |line: &String| words.iter().all(|words| line.contains(words));
    assert!(said.iter().any(has_all), "{words:?}: {said:#?}");
}

#[test]
fn a_version_whose_manifest_is_damaged_is_computed_again_and_published_under_its_name() {
    let run = trained();
    let before = run.manifest("l1-v3");
    let manifest = paths::weights_manifest("l1-v3");
    damage(&run, &manifest);
    // Of a step that no engine asks for again.
    damage(&run, &paths::weights_manifest("l1-v0"));
    let attempt = Attempt::start(&run, 2, 1);
    let state = attempt.state();
    assert_eq!((state.step, state.weights.as_str()), (3, "l1-v3"));
    assert_eq!(run.manifest("l1-v0").version, "l1-v0");
    let after = run.manifest("l1-v3");
    assert_eq!(
        (after.tensors_sha256, after.files),
        (before.tensors_sha256, before.files)
    );
    says(
        &attempt,
        &[&manifest, "is damaged", "compared with the checksum in its metrics"],
    );
    attempt.step(&run, 4);
    assert_eq!(attempt.state().weights, "l1-v4");
}

#[test]
fn a_damaged_version_of_which_no_checksum_is_known_keeps_its_name_and_a_lineage_begins() {
    let run = trained();
    let manifest = paths::weights_manifest("l1-v3");
    damage(&run, &manifest);
    // As if the attempt had ended between the weights and the metrics.
    std::fs::remove_file(run.at(&paths::trainer_metrics(3))).unwrap();
    for number in 2..=3 {
        let state = Attempt::start(&run, number, 1).state();
        assert_eq!((state.step, state.weights.as_str()), (3, "l2-v3"), "attempt {number}");
    }
    assert_eq!(std::fs::read_to_string(run.at(&manifest)).unwrap(), "{\"vers");
    assert_eq!(run.manifest("l2-v3").parent.as_deref(), Some("l1-v2"));
}

#[test]
fn a_damaged_version_whose_batch_is_lost_keeps_its_name_and_the_next_step_begins_a_lineage() {
    let run = trained();
    damage(&run, &paths::weights_manifest("l1-v3"));
    let batch = run.at(&paths::batch(3));
    let bytes = std::fs::read(&batch).unwrap();
    std::fs::remove_file(&batch).unwrap();
    let attempt = Attempt::start(&run, 2, 1);
    let state = attempt.state();
    assert_eq!((state.step, state.weights.as_str()), (2, "l1-v2"));
    std::fs::write(&batch, bytes).unwrap();
    attempt.step(&run, 3);
    assert_eq!(attempt.state().weights, "l2-v3");
}

#[test]
fn a_damaged_batch_of_a_step_that_was_done_is_named_with_the_next_step_for_its_owner() {
    let run = trained();
    damage(&run, &paths::batch(2));
    let mut attempt = Attempt::begin(&run, 2, 1, 0..1);
    let said = attempt.takes_orders().unwrap_err();
    for words in [
        "step 2 was done and cannot be replayed",
        paths::batch(2).as_str(),
        "restore its files from a backup",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
