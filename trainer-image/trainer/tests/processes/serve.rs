//! The process as a run's pods start it: two ranks, orders over HTTP, kills and recovery.

use std::net::TcpStream;
use std::path::Path;

use crate::common::process::{Attempt, Run, STEPS, checksum, exists, until};
use grpo_records::trainer::{StepMetrics, StepPhase, TrainerPhase};
use grpo_records::weights::WeightsManifest;
use grpo_records::{paths, token_stats};
use grpo_trainer::state::{json, sha256};

#[test]
fn ranks_step_as_ordered_end_together_and_come_back_with_the_same_bits() {
    let run = Run::new(2);
    let mut first = Attempt::start(&run, 1, 2);
    let state = first.state();
    assert_eq!(
        (state.step, state.phase, state.weights.as_str()),
        (0, TrainerPhase::Idle, "l1-v0")
    );
    for step in 1..=3 {
        let done = first.step(&run, step);
        let version = format!("l1-v{step}");
        assert_eq!(done.weights.as_deref(), Some(version.as_str()));
        let manifest = run.store.read(&paths::weights_manifest(&version)).unwrap();
        assert_eq!(done.manifest_sha256.as_deref(), Some(sha256(&manifest).as_str()));
        let metrics = done.metrics.unwrap();
        assert_eq!(metrics, run.metrics(step));
        let manifest = run.manifest(&version);
        assert_eq!(metrics.tensors_sha256, manifest.tensors_sha256);
        assert!(manifest.canary.unwrap().logprobs.iter().all(|logprob| *logprob < 0.0));
        assert!(
            metrics.loss.is_finite() && metrics.entropy > 0.0 && metrics.gradient_norm > 0.0,
            "{metrics:?}"
        );
        let stats = run.store.read(&paths::token_stats(step)).unwrap();
        let (_, seen) = token_stats::decode(&stats).unwrap();
        assert!(
            seen.logprobs.iter().any(|logprob| *logprob < 0.0),
            "step {step} stores what it computed for each token"
        );
        assert!(
            metrics.logprob_gap_max > 1e-3 && metrics.logprob_gap_over > 0,
            "the logprobs of these rows are drawn"
        );
    }

    // A repeated order is accepted; other orders are not.
    assert_eq!(first.order(3, &paths::batch(3), &checksum(&run, 3)).0, 202);
    assert_eq!(first.order(3, &paths::batch(4), &checksum(&run, 4)).0, 409);
    assert_eq!(first.order(5, &paths::batch(5), &checksum(&run, 5)).0, 409);
    assert_eq!(first.order(4, "../elsewhere.json", &checksum(&run, 4)).0, 400);
    assert_eq!(first.order(4, &paths::batch(4), &checksum(&run, 5)).0, 202);
    let refused = first.outcome(4);
    assert!(refused.state == StepPhase::Failed && refused.error.unwrap().contains("sha256"));
    assert_eq!((first.state().step, first.state().phase), (3, TrainerPhase::Idle));

    // The checkpoint is of step 2, so step 3 is replayed.
    until(|| first.state().checkpoint_step == 2);
    assert!(first.kill(1), "rank 0 ended well although rank 1 died");
    let mut second = Attempt::start(&run, 2, 2);
    let state = second.state();
    assert_eq!(
        (state.attempt, state.step, state.checkpoint_step, state.weights.as_str()),
        (2, 3, 2, "l1-v3")
    );
    let done = second.outcome(3);
    assert_eq!((done.state, done.weights.as_deref()), (StepPhase::Done, Some("l1-v3")));
    assert_eq!(
        done.metrics.unwrap().tensors_sha256,
        run.manifest("l1-v3").tensors_sha256
    );
    assert_eq!(second.outcome(1).state, StepPhase::Done);
    second.step(&run, 4);
    until(|| second.state().checkpoint_step == 4);

    assert!(second.kill(0), "rank 1 ended well although rank 0 died");
    // Another world size may round differently, and then its weights have another name.
    let third = Attempt::start(&run, 3, 1);
    assert_eq!(
        (third.state().step, third.state().weights.as_str()),
        (4, "l1-v4"),
        "step 4 has a checkpoint"
    );
    third.step(&run, 5);
    let (status, text) = third.ask("GET", "/metrics", "");
    assert!(status == 200 && text.contains("grpo_trainer_step 5"), "{text}");
    assert!(
        text.contains("grpo_trainer_mfu ") && text.contains("grpo_trainer_model_flops_per_second "),
        "{text}"
    );
}

/// Every pass that a step can have: base model, old logprobs, mini-batches, epochs, a rate that changes.
fn with_everything(more: serde_json::Value) -> serde_json::Value {
    let mut spec = serde_json::json!({"algorithm": {
        "learningRate": 1e-3, "schedule": {"decay": "Cosine", "warmupSteps": 2}, "kl": {"estimator": "K3"}, "entropyCoefficient": 0.01,
        "oldLogprobs": "Recompute", "correction": {"truncatedImportance": {}}, "miniBatches": 3, "epochs": 2, "ratio": "Sequence",
    }});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    spec
}

#[test]
fn a_run_with_every_option_comes_back_with_the_same_bits() {
    let run = Run::with(
        2,
        with_everything(serde_json::json!({"trainer": {"maxTokensPerGpu": 64}})),
    );
    let mut first = Attempt::start(&run, 1, 2);
    for step in 1..=3 {
        let metrics = first.step(&run, step).metrics.unwrap();
        assert_eq!(metrics.updates, 6);
        assert!(
            metrics.ratio_deviation > 0.0 && metrics.kl_loss > 0.0 && metrics.entropy_loss < 0.0,
            "{metrics:?}"
        );
        // Two ranks with a peak of 1e12 each, from their environment.
        let share = metrics.model_flops / metrics.seconds / 2e12;
        assert!(
            share > 0.0 && metrics.mfu.is_some_and(|mfu| (mfu / share - 1.0).abs() < 1e-9),
            "{metrics:?}"
        );
        // A linear warmup from 0; the first step after it has the full rate.
        assert!(
            (metrics.learning_rate - f64::from(step) / 3.0 * 1e-3).abs() < 1e-12,
            "{metrics:?}"
        );
        assert_eq!(
            metrics.groups_informative + metrics.groups_zero_variance,
            metrics.groups
        );
    }
    until(|| first.state().checkpoint_step == 2);
    first.kill(1);
    let second = Attempt::start(&run, 2, 2);
    let state = second.state();
    assert_eq!(
        (state.step, state.weights.as_str()),
        (3, "l1-v3"),
        "step 3 was replayed with other bits"
    );
}

#[test]
fn a_run_that_trains_an_adapter_publishes_it_comes_back_and_is_exported() {
    let lora = serde_json::json!({"model": {"image": {"reference": "example.com/model:1"}, "lora": {"rank": 4}},
        "inference": {"pool": {"engine": {"vllm": {}}}}});
    let run = Run::with(2, with_everything(lora));
    let mut first = Attempt::start(&run, 1, 2);
    for step in 1..=3 {
        first.step(&run, step);
    }
    let manifest = run.manifest("l1-v3");
    let names: Vec<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["adapter_model.safetensors", "adapter_config.json"]);
    let canary = manifest.canary.unwrap();
    assert_eq!(canary.logprobs.len() + 1, canary.tokens.len());
    let first_adapter = run.manifest("l1-v0").canary.unwrap();
    assert_ne!(
        canary.logprobs, first_adapter.logprobs,
        "the base model's, without the adapter"
    );
    assert_ne!(manifest.tensors_sha256, run.manifest("l1-v0").tensors_sha256);
    until(|| first.state().checkpoint_step == 2);
    first.kill(1);
    let second = Attempt::start(&run, 2, 1);
    assert_eq!(second.state().step, 3);
    drop(second);
    for alone in [false, true] {
        let to = run.root.join(format!("exported-{alone}"));
        let mut export = std::process::Command::new(env!("CARGO_BIN_EXE_grpo-trainer"));
        export.args(["export", "--model"]).arg(run.root.join("model"));
        export.arg("--store").arg(run.root.join("store")).arg("--to").arg(&to);
        assert!(
            export
                .args(alone.then_some("--adapter-alone"))
                .status()
                .unwrap()
                .success()
        );
        assert!(
            to.join(if alone {
                "adapter_model.safetensors"
            } else {
                "model.safetensors"
            })
            .exists()
        );
    }
}

#[test]
fn what_comes_out_otherwise_than_published_is_a_new_lineage() {
    let run = Run::new(50);
    let attempt = Attempt::start(&run, 1, 1);
    for step in 1..=4 {
        attempt.step(&run, step);
    }
    let published = run.manifest("l1-v4").tensors_sha256;
    drop(attempt);

    // Simulates step 2 as published by another machine's arithmetic.
    let path = run.at(&paths::weights_manifest("l1-v2"));
    let other = WeightsManifest {
        tensors_sha256: "00".repeat(32),
        ..run.manifest("l1-v2")
    };
    std::fs::write(&path, json(&other).unwrap()).unwrap();
    let attempt = Attempt::start(&run, 2, 1);
    assert_eq!(
        (attempt.state().lineage.as_str(), attempt.state().weights.as_str()),
        ("l2", "l2-v4")
    );
    assert_eq!(run.manifest("l2-v2").parent.as_deref(), Some("l1-v1"));
    assert_eq!(run.manifest("l2-v4").tensors_sha256, published);
    drop(attempt);

    // An interrupted replay continues its lineage and ends where the run was.
    let weights = run.at(paths::WEIGHTS);
    std::fs::remove_dir_all(weights.join("l2-v4")).unwrap();
    std::fs::remove_dir_all(weights.join("l2-v3")).unwrap();
    let staged = run.at(paths::STAGING).join("uid-1_2_0/l2-v3");
    std::fs::create_dir_all(&staged).unwrap();
    let attempt = Attempt::start(&run, 3, 1);
    assert_eq!((attempt.state().step, attempt.state().phase), (4, TrainerPhase::Idle));
    assert_eq!(attempt.state().weights, "l2-v4");
    assert!(!staged.exists());
}

#[test]
fn a_version_that_was_removed_is_still_compared_with() {
    let run = Run::new(50);
    let attempt = Attempt::start(&run, 1, 1);
    for step in 1..=STEPS {
        attempt.step(&run, step);
    }
    drop(attempt);
    let weights = run.at(paths::WEIGHTS);
    assert!(exists(&weights, "l1-v0") && !exists(&weights, "l1-v1") && exists(&weights, "l1-v2"));
    std::fs::remove_dir_all(run.at(paths::CHECKPOINTS)).unwrap();

    let other = StepMetrics {
        tensors_sha256: "00".repeat(32),
        ..run.metrics(1)
    };
    std::fs::write(run.at(&paths::trainer_metrics(1)), json(&other).unwrap()).unwrap();
    assert_eq!(Attempt::start(&run, 2, 1).state().weights, format!("l2-v{STEPS}"));
}

#[test]
fn a_rank_that_hangs_is_named_by_all_others_with_collective_and_step() {
    // Longer than a rank of a busy machine is late.
    let run = Run::with_deadline(50, "6s");
    let mut attempt = Attempt::start(&run, 1, 3);
    attempt.step(&run, 1);
    for hang in attempt.hang(1) {
        assert_eq!((&hang.ranks, &hang.pods), (&vec![1], &vec![1]), "{hang:?}");
        assert!(hang.message.contains("rank 1 did not arrive"), "{hang:?}");
    }
    // When the stopped rank continues, it finds its peers gone and ends too.
    attempt.signal(1, "-CONT");
    assert!(!attempt.ranks[1].wait().unwrap().success());

    // And when rank 0, which keeps the rendezvous store, hangs.
    let mut attempt = Attempt::start(&run, 2, 3);
    for hang in attempt.hang(0) {
        assert_eq!(hang.ranks, [0], "{hang:?}");
    }
}

#[test]
fn a_hang_inside_a_step_names_the_step() {
    let run = Run::with_deadline(50, "5s");
    let mut attempt = Attempt::start(&run, 1, 2);
    // Stopped before the order: to its peers it hangs in the step.
    attempt.signal(1, "-STOP");
    assert_eq!(attempt.order(1, &paths::batch(1), &checksum(&run, 1)).0, 202);
    let hang = attempt.hang(1).remove(0);
    assert_eq!(hang.ranks, [1]);
    assert!(
        hang.message.contains("rank 0 waited") && hang.message.contains("step 1"),
        "{hang:?}"
    );
}

#[test]
fn a_rank_is_ready_when_it_is_where_all_meet_and_waits_there_for_the_others() {
    let run = Run::with_deadline(50, "1s");
    let attempt = Attempt::begin(&run, 1, 3, 0..2);
    for rank in 0..2 {
        until(|| {
            TcpStream::connect(&attempt.doors[rank]).is_ok() && attempt.ask_rank(rank, "GET", "/readyz", "").0 == 200
        });
    }
    let answer = attempt.ask_rank(1, "GET", "/v1/state", "").0;
    assert_eq!(answer, 404, "only rank 0 takes orders");
    assert_eq!(attempt.state().phase, TrainerPhase::Starting);
}

#[test]
fn a_rank_that_waits_for_rank_zero_is_not_ready() {
    let run = Run::new(50);
    let attempt = Attempt::begin(&run, 1, 2, 1..2);
    until(|| TcpStream::connect(&attempt.doors[0]).is_ok());
    assert_eq!(attempt.ask("GET", "/healthz", "").0, 200);
    assert_eq!(attempt.ask("GET", "/readyz", "").0, 503);
}

#[test]
fn the_driver_says_when_a_checkpoint_is_written_and_how_many_stay() {
    let run = Run::new(50);
    let attempt = Attempt::start(&run, 1, 2);
    for (step, write) in [(1, true), (2, false), (3, true)] {
        let order = serde_json::json!({
            "batch": paths::batch(step), "sha256": checksum(&run, step), "checkpoint": {"write": write, "keep": 1},
        });
        assert_eq!(
            attempt.ask("PUT", &format!("/v1/steps/{step}"), &order.to_string()).0,
            202
        );
        assert_eq!(attempt.outcome(step).state, StepPhase::Done);
        // A driver with another checkpoint rule repeats the order: the same step.
        assert_eq!(attempt.order(step, &paths::batch(step), &checksum(&run, step)).0, 202);
    }
    until(|| attempt.state().checkpoint_step == 3);
    let kept = run.store.checkpoints().unwrap();
    assert_eq!(kept.iter().map(|one| one.step).collect::<Vec<_>>(), [3]);
}

/// Orders a step of a run that has so many iterations now.
fn ordered(attempt: &Attempt, run: &Run, step: u32, iterations: u32) {
    let order = serde_json::json!({
        "batch": paths::batch(step), "sha256": checksum(run, step), "iterations": iterations,
        "checkpoint": {"write": step >= iterations, "keep": 2},
    });
    let (status, answer) = attempt.ask("PUT", &format!("/v1/steps/{step}"), &order.to_string());
    assert_eq!(status, 202, "{answer}");
    assert_eq!(attempt.outcome(step).state, StepPhase::Done);
}

#[test]
fn a_run_that_gets_more_or_fewer_iterations_while_it_works_has_their_rates_and_its_last_checkpoint() {
    let decaying = serde_json::json!({
        "algorithm": {"learningRate": 1e-3, "schedule": {"decay": "Linear", "finalRatio": 0.0}},
        "rollout": {"iterations": 2},
    });
    let run = Run::with(50, decaying);
    let mut attempt = Attempt::start(&run, 1, 2);
    ordered(&attempt, &run, 1, 2);
    // More: by its first config, this step and the next would have the rate 0.
    ordered(&attempt, &run, 2, 5);
    ordered(&attempt, &run, 3, 5);
    let rate = |step| run.metrics(step).learning_rate;
    assert!((rate(2) - 1e-3 * 0.75).abs() < 1e-9 && (rate(3) - 1e-3 * 0.5).abs() < 1e-9);
    let kept = || {
        let kept = run.store.checkpoints().unwrap();
        kept.iter().map(|one| one.step).max()
    };
    assert_eq!(kept(), None);
    assert!(attempt.kill(1), "rank 0 ended well although rank 1 died");
    // A new attempt reads 2 iterations, and repeats the steps with the rates that they had.
    let attempt = Attempt::start(&run, 2, 2);
    let state = attempt.state();
    assert_eq!((state.step, state.weights.as_str()), (3, "l1-v3"), "the same bits");
    assert_eq!(
        kept(),
        Some(3),
        "it may be the last step, and its checkpoint was missing"
    );
    // Fewer: the checkpoint of the last step is complete when the step is done.
    ordered(&attempt, &run, 4, 4);
    assert_eq!(kept(), Some(4));
}

#[test]
fn a_rank_of_an_earlier_attempt_that_is_still_alive_publishes_nothing() {
    let run = Run::new(1);
    let stale = Attempt::start(&run, 1, 2);
    stale.step(&run, 1);
    // The stale attempt is cut off from the cluster, but alive.
    let newer = Attempt::start(&run, 2, 1);
    assert_eq!(newer.state().step, 1);
    let before = run.store.versions().unwrap();
    let checkpoints = run.store.checkpoints().unwrap();

    assert_eq!(stale.order(2, &paths::batch(2), &checksum(&run, 2)).0, 202);
    let mut stale = stale;
    for rank in &mut stale.ranks {
        assert!(!rank.wait().unwrap().success());
    }
    assert_eq!(run.store.versions().unwrap(), before);
    assert_eq!(run.store.checkpoints().unwrap(), checkpoints);
    assert!(!run.at(&paths::trainer_metrics(2)).exists());
    newer.step(&run, 2);
    // It cannot restart under its old number either.
    let mut again = Attempt::begin(&run, 1, 1, 0..1);
    assert_eq!(again.ranks[0].wait().unwrap().code(), Some(1));
    newer.step(&run, 3);
}

/// A run with a checkpoint of step 2 and one of step 4, whose ranks have ended.
fn run_with_two_checkpoints() -> Run {
    let run = Run::new(2);
    let mut attempt = Attempt::start(&run, 1, 2);
    for step in 1..=4 {
        attempt.step(&run, step);
    }
    until(|| attempt.state().checkpoint_step == 4);
    attempt.kill(1);
    run
}

#[test]
fn where_a_rank_cannot_read_the_checkpoint_that_rank_0_chose_all_ranks_refuse_together() {
    let missing = |own: &Path| std::fs::remove_dir_all(own.join(paths::checkpoint("l1", 4))).unwrap();
    let damaged = |own: &Path| {
        let shard = own.join(paths::checkpoint_rank("l1", 4, 1, 2));
        let mut bytes = std::fs::read(&shard).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(shard, bytes).unwrap();
    };
    let run = run_with_two_checkpoints();
    let before = run.store.versions().unwrap();
    for (number, change) in [(2, &missing as &dyn Fn(&Path)), (3, &damaged)] {
        let _ = std::fs::remove_dir_all(run.root.join("store-1"));
        run.gives_rank_its_own_store(1, change);
        let mut attempt = Attempt::begin(&run, number, 2, 0..2);
        attempt.takes_orders().unwrap_err();
        for rank in &mut attempt.ranks {
            assert_eq!(rank.wait().unwrap().code(), Some(1));
        }
        let words = ["ranks [1] cannot read checkpoints/l1-s000004", "mount the same volume"];
        until(|| {
            let said = attempt.said.lock().unwrap();
            said.iter().any(|line| words.iter().all(|words| line.contains(words)))
        });
        assert_eq!(run.store.versions().unwrap(), before);
    }
}

#[test]
fn all_ranks_go_on_from_what_rank_0_sees_where_another_sees_more() {
    let run = run_with_two_checkpoints();
    run.gives_rank_its_own_store(1, |_| {});
    // Rank 0 does not see the newer one.
    std::fs::remove_dir_all(run.at(&paths::checkpoint("l1", 4))).unwrap();
    let published = run.manifest("l1-v4");
    let attempt = Attempt::start(&run, 2, 2);
    let state = attempt.state();
    assert_eq!(
        (state.step, state.checkpoint_step, state.weights.as_str()),
        (4, 2, "l1-v4"),
        "the steps after 2 are replayed by both, with the same bits"
    );
    assert_eq!(run.manifest("l1-v4"), published);
    attempt.step(&run, 5);
}
