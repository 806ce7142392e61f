//! Weights whose name is taken: a restarted trainer may hold other bits than were published.

use crate::common::process::{Attempt, Run, until};
use grpo_records::paths;

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
