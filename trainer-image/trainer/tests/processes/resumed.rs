//! `resumeFrom`: a run that begins with a checkpoint of another one.

use crate::common::bucket::Bucket;
use crate::common::process::{Attempt, Run, until};
use grpo_records::paths;
use serde_json::{Value, json};

/// A run with checkpoints of steps 2 and 4.
fn other() -> Run {
    trained(Run::new(2))
}

fn trained(run: Run) -> Run {
    let mut attempt = Attempt::start(&run, 1, 2);
    for step in 1..=4 {
        attempt.step(&run, step);
    }
    until(|| attempt.state().checkpoint_step == 4);
    attempt.kill(1);
    run
}

/// A run that resumes from the other's folder; `more`: further fields of `resumeFrom`.
fn resumed(other: &Run, more: Value) -> Run {
    let mut from = json!({"path": other.root.join("store")});
    from.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Run::with(50, json!({"resumeFrom": from}))
}

#[test]
fn a_run_begins_with_another_runs_checkpoint_and_never_needs_that_run_again() {
    let other = other();
    let run = resumed(&other, json!({"step": 2}));
    begins_with_step_2_and_never_needs_the_other_again(&run, other);
}

#[test]
#[ignore = "needs a server of S3: make test-api"]
fn a_run_in_a_bucket_begins_with_another_runs_checkpoint_of_the_same_bucket() {
    let bucket = Bucket::start();
    let other = trained(Run::in_bucket(2, &bucket, "team/other", json!({})));
    let from = |path: &str| json!({"resumeFrom": {"path": path, "step": 2}});
    let nothing = Run::in_bucket(50, &bucket, "team/empty", from("team/elsewhere"));
    let mut attempt = Attempt::begin(&nothing, 1, 1, 0..1);
    let said = attempt.takes_orders().unwrap_err();
    let words = "spec.resumeFrom: team/elsewhere has no whole checkpoint of step 2; it has none";
    assert!(said.contains(words), "{said}");
    assert!(nothing.store.versions().unwrap().is_empty());

    let run = Run::in_bucket(50, &bucket, "team/run", from("team/other"));
    begins_with_step_2_and_never_needs_the_other_again(&run, other);
}

fn begins_with_step_2_and_never_needs_the_other_again(run: &Run, other: Run) {
    let first = Attempt::start(run, 1, 2);
    // Weights and optimizer are the other's, bit for bit, and already the run's own.
    let theirs = other.store.checkpoints().unwrap();
    let theirs = theirs.iter().find(|checkpoint| checkpoint.step == 2).unwrap();
    let own = run.store.checkpoints().unwrap();
    assert_eq!((own.len(), own[0].step, own[0].lineage.as_str()), (1, 0, "l1"));
    assert_eq!((&own[0].files, own[0].updates), (&theirs.files, theirs.updates));
    let published = |run: &Run, version| run.manifest(version).tensors_sha256;
    assert_eq!(published(run, "l1-v0"), published(&other, "l1-v2"));
    let recorded: Value = serde_json::from_slice(&run.store.read(paths::RESUMED).unwrap()).unwrap();
    assert_eq!(recorded["step"], 2);
    for step in 1..=2 {
        first.step(run, step);
    }
    let reached = published(run, "l1-v2");
    assert_ne!(reached, published(&other, "l1-v4"));

    drop(first);
    std::fs::remove_dir_all(other.at("")).unwrap();
    let second = Attempt::start(run, 2, 2);
    let state = second.state();
    assert_eq!((state.step, state.weights.as_str()), (2, "l1-v2"));
    assert_eq!(published(run, "l1-v2"), reached);
}

#[test]
fn the_newest_checkpoint_is_taken_where_no_step_is_named_and_without_the_optimizer_where_it_is_not_wanted() {
    let other = other();
    let run = resumed(&other, json!({"optimizer": false}));
    let _attempt = Attempt::start(&run, 1, 1);
    let own = run.store.checkpoints().unwrap();
    assert_eq!((own[0].step, own[0].updates), (0, 0));
    assert_eq!(
        run.manifest("l1-v0").tensors_sha256,
        other.manifest("l1-v4").tensors_sha256
    );
}

#[test]
fn a_checkpoint_that_cannot_be_taken_over_is_refused_with_the_field_and_what_there_is() {
    let other = other();
    let lora = json!({"model": {"image": {"reference": "example.com/model:1"}, "lora": {"rank": 4}}});
    let adapter = Run::with(
        50,
        json!({"model": lora["model"], "resumeFrom": {"path": other.root.join("store")}}),
    );
    let nowhere = Run::with(50, json!({"resumeFrom": {"path": other.root.join("elsewhere")}}));
    let empty = Run::new(2);
    let nothing = Run::with(50, json!({"resumeFrom": {"path": empty.root.join("store")}}));
    for (run, words) in [
        (
            resumed(&other, json!({"step": 3})),
            "no whole checkpoint of step 3; it has steps [2, 4]",
        ),
        (
            adapter,
            "model and model.lora have to be those of the run that wrote it",
        ),
        (nowhere, "is not a run's folder in this run's store"),
        (nothing, "the other run writes them as its checkpoint.every says"),
    ] {
        let mut attempt = Attempt::begin(&run, 1, 1, 0..1);
        let said = attempt.takes_orders().unwrap_err();
        assert!(said.contains("spec.resumeFrom: ") && said.contains(words), "{said}");
        assert!(run.store.versions().unwrap().is_empty());
    }
}
