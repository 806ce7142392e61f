//! Runs in Kueue's queue that refer to a pool: when they claim it, and when they give the claim back.

use super::*;
use crate::grpo_run::{decision::ClaimStep, tests::inference_pool};

const OURS: Option<&str> = Some("uid-1");
const ANOTHER: Option<&str> = Some("uid-of-another");

/// A run that refers to the pool `demo`.
fn sharing(run: RunObservation) -> RunObservation {
    with_spec(queued(run), |run| {
        run.spec.inference = serde_json::from_value(json!({"poolRef": {"name": "demo"}})).unwrap();
    })
}

/// A run whose Workload has these conditions, and the holder of the claim on its pool.
fn shared(run: RunObservation, conditions: Option<&[&str]>, claimed_by: Option<&str>) -> RunObservation {
    let waiting = RunObservation {
        inference: Some(inference_pool(None, "True", "")),
        ..sharing(new_demo())
    };
    let queue = conditions.map_or(QueueState::Unasked, |conditions| {
        QueueState::Asked(Box::new(Asked {
            workload: workload_of(&waiting, conditions),
            ..Asked::default()
        }))
    });
    RunObservation {
        queue,
        verdict: None,
        inference: Some(inference_pool(claimed_by, "True", "")),
        ..sharing(run)
    }
}

fn without_pods(run: RunObservation) -> RunObservation {
    RunObservation {
        driver_pods: Vec::new(),
        trainer_pods: Vec::new(),
        ..run
    }
}

fn name_of(step: &WorkloadStep) -> &'static str {
    match step {
        WorkloadStep::Leave => "Leave",
        WorkloadStep::Create(_) => "Create",
        WorkloadStep::Delete => "Delete",
        WorkloadStep::Status(_) => "Status",
    }
}

#[test]
fn a_shared_pool_is_claimed_after_the_admission_and_given_back_with_the_last_pod_after_an_eviction() {
    let (new, works, ended) = (new_demo, running_demo, || without_pods(running_demo()));
    let (waits, admitted, evicted): (&[&str], &[&str], &[&str]) = (&[], &ADMITTED, &EVICTED);
    // The run, its Workload's conditions, the holder of the claim; the steps of claim and Workload, and pods to make.
    let cases = [
        (new(), None, None, ClaimStep::Leave, "Create", 0),
        (new(), Some(waits), None, ClaimStep::Leave, "Leave", 0),
        (new(), Some(waits), OURS, ClaimStep::Release, "Leave", 0),
        (new(), Some(waits), ANOTHER, ClaimStep::Leave, "Delete", 0),
        (new(), Some(admitted), None, ClaimStep::Take, "Leave", 0),
        (new(), Some(admitted), OURS, ClaimStep::Leave, "Leave", 3),
        // Another run was faster: this one returns its quota, and asks again when the pool is free.
        (new(), Some(admitted), ANOTHER, ClaimStep::Leave, "Delete", 0),
        (works(), Some(admitted), OURS, ClaimStep::Leave, "Status", 0),
        (works(), Some(evicted), OURS, ClaimStep::Leave, "Leave", 0),
        (ended(), Some(evicted), OURS, ClaimStep::Release, "Status", 0),
        (ended(), Some(evicted), None, ClaimStep::Leave, "Status", 0),
    ];
    for (run, conditions, claimed_by, claim, workload, pods) in cases {
        let seen = shared(run, conditions, claimed_by);
        let decision = decided(&seen);
        let said = format!("{conditions:?} {claimed_by:?} {} driver pods", seen.driver_pods.len());
        assert_eq!(
            (decision.claim, name_of(&decision.workload), decision.create.len()),
            (claim, workload, pods),
            "{said}"
        );
    }
}

#[test]
fn an_admitted_run_without_the_claim_says_that_its_pods_wait_for_it() {
    let decision = decided(&shared(new_demo(), Some(&ADMITTED), None));
    assert_eq!(condition(&decision, "Admitted").0, "True");
    let (_, _, message) = condition(&decision, "Provisioned");
    assert!(
        message.contains("when it has the claim on InferencePool demo"),
        "{message}"
    );
    let waits = decided(&shared(new_demo(), Some(&[]), None));
    let (_, _, message) = condition(&waits, "Provisioned");
    assert!(
        message.contains("LocalQueue gpus") && !message.contains("claim"),
        "{message}"
    );
}

#[test]
fn a_run_that_lacks_something_keeps_the_claim_as_long_as_a_pod_of_it_may_start() {
    let blocked = |run: RunObservation| {
        let run = with_spec(shared(run, Some(&ADMITTED), OURS), |run| {
            run.spec.sandboxes = serde_json::from_value(json!({"poolRef": {"name": "there-is-none"}})).unwrap();
        });
        RunObservation { sandboxes: None, ..run }
    };
    let pending = blocked(running_demo());
    assert!(
        !pending.has_begun(),
        "its pods are on no node yet, and no gate keeps them"
    );
    assert_eq!(decided(&pending).claim, ClaimStep::Leave);
    let decision = decided(&blocked(new_demo()));
    assert_eq!(
        (decision.claim, name_of(&decision.workload)),
        (ClaimStep::Release, "Delete")
    );
}
