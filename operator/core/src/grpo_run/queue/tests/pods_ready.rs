//! What Kueue is told about the pods of an admitted run: with `waitForPodsReady` it evicts a run whose pods are not
//! ready in time.

use super::*;
use crate::{fixtures::ended, grpo_run::tests::inference_pool, quota::QuotaWait};

/// Status and reason of the condition about the pods.
type Told = Option<(&'static str, &'static str)>;

/// An admitted run with everything running, and what Kueue knows about its pods.
fn told(known: Told) -> RunObservation {
    let mut run = asked(running_demo(), &ADMITTED);
    if let (QueueState::Asked(asked), Some((status, reason))) = (&mut run.queue, known) {
        let condition = json!({"type": "PodsReady", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let conditions = &mut asked.workload.status.conditions;
        conditions.push(serde_json::from_value(condition).unwrap());
    }
    run
}

/// Status and reason that Kueue is told now.
fn tells(decision: &Decision) -> Option<(String, String)> {
    let WorkloadStep::Status(patch) = &decision.workload else {
        return None;
    };
    let mut conditions = patch["status"]["conditions"].as_array().unwrap().iter();
    let ready = conditions.find(|condition| condition["type"] == "PodsReady")?;
    let text = |field: &str| ready[field].as_str().unwrap().to_owned();
    Some((text("status"), text("reason")))
}

fn all_work(_: &mut RunObservation) {}

/// Also engines that sleep while the trainer has their GPUs, or of which one is replaced.
fn engines_are_not_ready(run: &mut RunObservation) {
    run.inference = Some(inference_pool(Some("uid-1"), "False", "0 of 1 replicas serve"));
}

fn driver_fits_on_no_node(run: &mut RunObservation) {
    run.driver_pods[0].state = PodState::Waiting {
        reason: "Unschedulable".into(),
        message: "pod demo-driver-1-0 cannot be scheduled: 0/1 nodes are available".into(),
    };
}

fn rank_failed(run: &mut RunObservation) {
    run.trainer_pods[1].state = ended(1, "no");
}

fn rank_failed_while_sandboxes_are_missing(run: &mut RunObservation) {
    rank_failed(run);
    run.run.spec.sandboxes = serde_json::from_value(json!({"poolRef": {"name": "there-is-none"}})).unwrap();
    run.sandboxes = None;
}

/// A ResourceQuota refuses the pods of the trainer's next attempt.
fn trainer_is_refused(run: &mut RunObservation) {
    run.trainer_pods.clear();
    (run.attempts.trainer.current, run.attempts.trainer.created) = (2, false);
    run.quota = Some(QuotaWait {
        until: run.now + jiff::SignedDuration::from_secs(10),
        refused: true,
        message: "exceeded quota: pods".into(),
    });
}

#[test]
fn kueue_knows_in_each_state_whether_the_pods_of_an_admitted_run_are_ready() {
    let (started, recovered) = (Some(("True", "Started")), Some(("True", "Recovered")));
    let recovers = Some(("False", "WaitForRecovery"));
    // Of a run that was evicted before.
    let again = Some(("False", "WaitForStart"));
    /// What Kueue knows, the state of the run; what Kueue is told.
    type Case = (Told, fn(&mut RunObservation), Told);
    let cases: [Case; 15] = [
        (None, all_work, started),
        (None, engines_are_not_ready, None),
        (None, driver_fits_on_no_node, None),
        (None, trainer_is_refused, None),
        (again, engines_are_not_ready, None),
        (again, all_work, started),
        (started, all_work, None),
        (started, engines_are_not_ready, None),
        (started, rank_failed, recovers),
        (started, driver_fits_on_no_node, recovers),
        (started, trainer_is_refused, recovers),
        (started, rank_failed_while_sandboxes_are_missing, recovers),
        (recovers, trainer_is_refused, None),
        (recovers, engines_are_not_ready, recovered),
        (recovers, all_work, recovered),
    ];
    for (at, (known, change, expected)) in cases.into_iter().enumerate() {
        let mut run = told(known);
        change(&mut run);
        let decision = decided(&run);
        let said = tells(&decision);
        let said = said.as_ref().map(|(status, reason)| (status.as_str(), reason.as_str()));
        assert_eq!(said, expected, "case {at}: {:?}", decision.status.message);
    }
}

#[test]
fn a_run_without_an_admission_tells_kueue_nothing_about_its_pods() {
    assert_eq!(tells(&decided(&asked(new_demo(), &[]))), None);
    assert_eq!(tells(&decided(&asked(new_demo(), &["QuotaReserved"]))), None);
}

#[test]
fn a_run_that_is_evicted_while_a_resource_quota_refuses_its_pods_returns_kueues_quota() {
    let mut refused = asked(new_demo(), &EVICTED);
    trainer_is_refused(&mut refused);
    let decision = decided(&refused);
    assert_eq!(condition(&decision, "Admitted").1, "WaitsForQuota");
    assert_eq!(tells(&decision), Some(("False".to_owned(), "WaitForStart".to_owned())));
    let WorkloadStep::Status(patch) = &decision.workload else {
        panic!("{:?}", decision.workload)
    };
    assert_eq!(patch["status"]["admission"], Value::Null);
}
