//! Runs that wait: for admission, quota, nodes, pools and other preconditions.

use std::time::Duration;

use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::Phase;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::NodeSelectorTerm;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::{after, condition, decided, inference_pool, new_demo, running_demo, with_spec};
use crate::grpo_run::{
    decision::{AdmissionStep, ClaimStep, WorkloadStep},
    observation::{Asked, QueueState, RunObservation},
};
use crate::{admission::Verdict, fixtures::pod, pods::PodState, quota::QuotaWait};

fn waiting(name: &str) -> crate::pods::PodFacts {
    let gated = PodState::Waiting {
        reason: "SchedulingGated".into(),
        message: format!("pod {name} waits until its whole run is admitted"),
    };
    pod(name, 1, 0, gated)
}

#[test]
fn pods_are_made_behind_the_gate_and_the_run_is_offered_to_admission() {
    let decision = decided(&new_demo());
    for (_, pod, _) in &decision.create {
        assert_eq!(
            pod.object["spec"]["schedulingGates"],
            json!([{"name": "grpo.dev/admission"}]),
            "{}",
            pod.name
        );
        assert_eq!(pod.object["metadata"]["annotations"]["grpo.dev/admitted-with"], "uid-1");
    }
    let AdmissionStep::Expect(candidate) = &decision.admission else {
        panic!("{:?}", decision.admission)
    };
    assert_eq!(
        candidate.whole.clone().into_iter().collect::<Vec<_>>(),
        [("driver", 1), ("engine", 1), ("trainer", 2)]
    );
}

#[test]
fn a_run_that_does_not_fit_is_queued_and_says_what_is_missing() {
    let verdict = Verdict {
        admitted: false,
        reason: Reason::WaitsForCapacity,
        message: "waits for 2 trainer pods of 8 nvidia.com/gpu".into(),
    };
    let decision = decided(&RunObservation {
        verdict: Some(verdict),
        driver_pods: vec![waiting("demo-driver-1-0")],
        ..running_demo()
    });
    assert_eq!(decision.status.phase, Some(Phase::Queued));
    let (holds, reason, message) = condition(&decision, "Admitted");
    assert_eq!((holds.as_str(), reason.as_str()), ("False", "WaitsForCapacity"));
    assert!(message.contains("8 nvidia.com/gpu"), "{message}");
    assert_eq!(condition(&decision, "Provisioned").2, message);
}

/// No watch shows that a claim was replaced under its name by one whose volume fits.
#[test]
fn the_volumes_of_a_run_that_waits_are_looked_at_again() {
    let again = |terms: usize, admitted: bool| {
        let terms = vec![NodeSelectorTerm::default(); terms];
        let run = RunObservation {
            volumes: [("demo-store".to_owned(), terms)].into(),
            verdict: Some(Verdict {
                admitted,
                reason: Reason::NeverFits,
                message: "wants 1 driver pod, where the volumes that it mounts can be reached".into(),
            }),
            ..running_demo()
        };
        decided(&run).retry_in
    };
    assert_eq!(again(1, false), Some(Duration::from_secs(20)));
    assert_eq!(again(0, false), None, "every node reaches the volume");
    assert_eq!(again(1, true), None, "its pods keep their claims");
}

/// No watch shows that the scheduler has chosen the node of an existing claim. Its pods have more time from then on.
#[test]
fn a_claim_without_a_volume_is_looked_at_again_before_pods_without_a_node_are_requeued() {
    let again = |reason: Reason, bound: &[&str]| {
        let run = RunObservation {
            volumes: bound.iter().map(|claim| ((*claim).to_owned(), Vec::new())).collect(),
            verdict: Some(Verdict {
                admitted: true,
                reason,
                message: String::new(),
            }),
            ..running_demo()
        };
        decided(&run).retry_in
    };
    assert_eq!(again(Reason::BeingScheduled, &[]), Some(Duration::from_secs(20)));
    assert_eq!(again(Reason::BeingScheduled, &["demo-store"]), None);
    assert_eq!(again(Reason::Admitted, &[]), None, "all pods are on nodes");
}

#[test]
fn a_pause_after_failures_is_told_although_admission_only_sees_that_pods_are_missing() {
    let mut paused = running_demo();
    paused.verdict = Some(Verdict {
        admitted: false,
        reason: Reason::WaitsForPods,
        message: "not all of its pods are made yet: driver missing".into(),
    });
    paused.driver_pods.clear();
    let driver = &mut paused.attempts.driver;
    (driver.current, driver.created, driver.consecutive_failures) = (3, false, 2);
    driver.last_failure = Some("exit code 9: no space".into());
    driver.not_before = Some(Time(paused.now + SignedDuration::from_secs(5)));
    let decision = decided(&paused);
    let (_, reason, message) = condition(&decision, "Provisioned");
    assert_eq!(reason, "DriverNotReady");
    for words in ["driver: attempt 3 begins in", "exit code 9: no space", "driver missing"] {
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_run_that_waits_for_another_runs_pool_does_not_ask_for_room() {
    let decision = decided(&RunObservation {
        inference: Some(inference_pool(Some("uid-of-another"), "True", "")),
        ..running_demo()
    });
    assert_eq!(decision.admission, AdmissionStep::Forget);
    assert_eq!(decision.status.phase, Some(Phase::Pending));
    assert_eq!(condition(&decision, "Admitted").1, "InferencePoolClaimed");
}

/// A queued run with an unmet precondition, and the reason.
fn queued_and_blocked() -> [(RunObservation, &'static str); 4] {
    let queued = || with_spec(new_demo(), |run| run.spec.queue_name = Some("gpus".into()));
    let named_pool = |uid: Option<&str>| {
        let run = with_spec(queued(), |run| {
            run.spec.inference = serde_json::from_value(json!({"poolRef": {"name": "demo"}})).unwrap();
        });
        RunObservation {
            inference: uid.map(|uid| inference_pool(Some(uid), "True", "")),
            ..run
        }
    };
    let no_volume = with_spec(queued(), |run| {
        run.spec.store = serde_json::from_value(json!({"persistentVolumeClaim": {"claimName": "runs"}})).unwrap();
    });
    let no_sandboxes = with_spec(queued(), |run| {
        run.spec.sandboxes = serde_json::from_value(json!({"poolRef": {"name": "shared"}})).unwrap();
    });
    let missing = RunObservation {
        store: crate::grpo_run::observation::StoreVolume::Missing,
        ..no_volume
    };
    [
        (missing, "StoreMissing"),
        (no_sandboxes, "SandboxPoolMissing"),
        (named_pool(None), "InferencePoolMissing"),
        (named_pool(Some("uid-of-another")), "InferencePoolClaimed"),
    ]
}

#[test]
fn a_pool_of_another_namespace_is_used_only_where_it_lets_the_runs_namespace_in() {
    let shared = |allowed: &[&str]| {
        let run = with_spec(new_demo(), |run| {
            run.spec.sandboxes =
                serde_json::from_value(json!({"poolRef": {"name": "demo", "namespace": "big"}})).unwrap();
        });
        let mut pool = running_demo().sandboxes.unwrap();
        pool.metadata.namespace = Some("big".into());
        pool.spec.allowed_namespaces = allowed.iter().map(|name| (*name).to_owned()).collect();
        RunObservation {
            sandboxes: Some(pool),
            ..run
        }
    };
    let refused = decided(&shared(&["other"]));
    let (_, reason, message) = condition(&refused, "Admitted");
    assert_eq!(reason, "SandboxPoolMissing");
    for words in ["in namespace big", "have team added to spec.allowedNamespaces"] {
        assert!(message.contains(words), "{message}");
    }
    // The message does not reveal whether the pool exists.
    let absent = RunObservation {
        sandboxes: None,
        ..shared(&[])
    };
    assert_eq!(condition(&decided(&absent), "Admitted").2, message);
    assert!(!decided(&shared(&["other", "team"])).create.is_empty());
}

#[test]
fn with_a_queue_no_pod_is_made_while_a_precondition_is_unmet_because_kueue_would_admit_it() {
    for (run, reason) in queued_and_blocked() {
        let decision = decided(&run);
        assert!(decision.create.is_empty(), "{reason}");
        assert_eq!(condition(&decision, "Admitted").1, reason);
        assert_eq!(decision.status.phase, Some(Phase::Pending));
        let attempts = decision.status.attempts.unwrap();
        assert!(!attempts.driver.created && attempts.driver.consecutive_failures == 0);
    }
}

#[test]
fn with_a_queue_a_shared_pool_is_claimed_once_kueue_has_admitted_the_run() {
    let (mut run, _) = queued_and_blocked().into_iter().next_back().unwrap();
    run.sandboxes = running_demo().sandboxes;
    run.inference = Some(inference_pool(None, "True", ""));
    let decision = decided(&run);
    assert_eq!(decision.claim, ClaimStep::Leave);
    let WorkloadStep::Create(workload) = &decision.workload else {
        panic!("{:?}", decision.workload)
    };
    run.queue = QueueState::Asked(Box::new(Asked::granted(workload).unwrap()));
    let decision = decided(&run);
    assert_eq!(decision.claim, ClaimStep::Take);
    assert!(decision.create.is_empty(), "another run may get the claim");
    run.inference = Some(inference_pool(Some("uid-1"), "True", ""));
    let decision = decided(&run);
    assert_eq!(decision.claim, ClaimStep::Leave);
    assert!(!decision.create.is_empty());
}

#[test]
fn unmet_preconditions_are_looked_at_again_within_half_a_minute() {
    let large = with_spec(new_demo(), |run| {
        run.spec.model.image = serde_json::from_value(json!({"reference": "example.com/Model-70B:1"})).unwrap();
        run.spec.trainer.as_mut().unwrap().gpus_per_node = 1;
    });
    let too_large = RunObservation {
        gpu_memory: Some(1024),
        ..large
    };
    let unqueued = queued_and_blocked().map(|(run, reason)| (with_spec(run, |run| run.spec.queue_name = None), reason));
    for (run, reason) in unqueued.into_iter().chain([(too_large, "ExceedsGpuMemory")]) {
        let decision = decided(&run);
        assert_eq!(condition(&decision, "Admitted").1, reason);
        let again = decision.retry_in.unwrap_or(Duration::MAX);
        assert!(again <= Duration::from_secs(30), "{reason}: {again:?}");
    }
    assert_eq!(decided(&running_demo()).retry_in, None, "nothing is waited for");
}

#[test]
fn a_run_that_the_quota_refused_gives_back_what_is_not_on_a_node_and_waits() {
    let wait = |refused: bool| QuotaWait {
        until: running_demo().now + SignedDuration::from_secs(10),
        refused,
        message: "a ResourceQuota of namespace team refused a pod (exceeded quota: pods)".into(),
    };
    let half_made = RunObservation {
        quota: Some(wait(true)),
        driver_pods: vec![waiting("demo-driver-1-0")],
        trainer_pods: vec![waiting("demo-trainer-1-0")],
        unbound_engines: vec!["demo-engine-0".into()],
        verdict: None,
        // Only some of its pods were created.
        attempts: Default::default(),
        ..running_demo()
    };
    let decision = decided(&half_made);
    assert_eq!(
        decision.give_back,
        ["demo-driver-1-0", "demo-trainer-1-0", "demo-engine-0"]
    );
    assert!(decision.create.is_empty() && decision.delete_pods.is_empty());
    assert_eq!(decision.admission, AdmissionStep::Forget);
    let (_, reason, message) = condition(&decision, "Provisioned");
    assert_eq!(reason, "QuotaExceeded");
    assert!(message.contains("exceeded quota: pods"), "{message}");
    assert!(decision.retry_in.unwrap() < Duration::from_secs(11));
    assert!(
        decision
            .events
            .iter()
            .all(|event| event.reason != "TrainerAttemptEnded")
    );

    let made_again = decided(&RunObservation {
        quota: None,
        ..after(half_made)
    });
    let pods: Vec<&str> = made_again.create.iter().map(|(_, pod, _)| pod.name.as_str()).collect();
    assert_eq!(pods, ["demo-driver-1-0", "demo-trainer-1-0", "demo-trainer-1-1"]);

    let behind = decided(&RunObservation {
        quota: Some(wait(false)),
        ..new_demo()
    });
    assert!(behind.create.is_empty() && behind.give_back.is_empty());
}

#[test]
fn a_run_on_its_nodes_keeps_its_pods_when_the_quota_refuses_a_further_replica() {
    let mut scaled = running_demo();
    for pod in scaled.driver_pods.iter_mut().chain(&mut scaled.trainer_pods) {
        pod.node_name = Some("node-a".into());
    }
    let decision = decided(&RunObservation {
        quota: Some(QuotaWait {
            until: scaled.now,
            refused: true,
            message: "exceeded quota".into(),
        }),
        unbound_engines: vec!["demo-engine-1".into()],
        ..scaled
    });
    assert_eq!(decision.status.phase, Some(Phase::Running));
    assert!(decision.give_back.is_empty());
}

#[test]
fn a_run_that_nodes_are_added_for_says_so_before_that_its_pods_are_not_ready() {
    let verdict = Verdict {
        admitted: true,
        reason: Reason::WaitsForNodes,
        message: "2 of its pods are pending".into(),
    };
    let decision = decided(&RunObservation {
        verdict: Some(verdict),
        driver_pods: vec![waiting("demo-driver-1-0")],
        ..running_demo()
    });
    assert_eq!(decision.status.phase, Some(Phase::Provisioning));
    let (holds, reason, message) = condition(&decision, "Provisioned");
    assert_eq!((holds.as_str(), reason.as_str()), ("False", "WaitsForNodes"));
    assert!(message.starts_with("2 of its pods are pending; "), "{message}");
}

#[test]
fn a_run_on_its_nodes_stays_running_when_the_largest_node_leaves_or_an_agent_misses_a_question() {
    let mut begun = running_demo();
    begun.driver_pods[0].node_name = Some("node-a".into());
    begun.run.spec.model.image = serde_json::from_value(json!({"reference": "example.com/Model-70B:1"})).unwrap();
    begun.run.spec.trainer.as_mut().unwrap().gpus_per_node = 1;
    begun.gpu_memory = Some(1024);
    begun.store = crate::grpo_run::observation::StoreVolume::Missing;
    begun.run.spec.store = serde_json::from_value(json!({"persistentVolumeClaim": {"claimName": "runs"}})).unwrap();
    let pool = begun.inference.as_mut().unwrap();
    pool.spec.model = begun.run.spec.model.source();
    assert_eq!(decided(&begun).status.phase, Some(Phase::Running));
    begun.driver_pods[0].node_name = None;
    assert_eq!(decided(&begun).status.phase, Some(Phase::Pending));
}

/// Kueue would admit a run that another run keeps from its pool, or that cannot begin at all.
#[test]
fn with_kueue_a_run_that_lacks_something_makes_no_pods_and_has_no_claim() {
    let queued = |missing: bool, claimed: Option<&str>| {
        let mut run = with_spec(new_demo(), |run| {
            run.spec.queue_name = Some("gpus".into());
            run.spec.inference = serde_json::from_value(json!({"poolRef": {"name": "demo"}})).unwrap();
            if missing {
                run.spec.sandboxes = serde_json::from_value(json!({"poolRef": {"name": "there-is-none"}})).unwrap();
            }
        });
        run.inference = Some(inference_pool(claimed, "True", ""));
        let decision = decided(&run);
        (decision.claim, decision.create.len())
    };
    assert_eq!(queued(true, None), (ClaimStep::Leave, 0));
    assert_eq!(queued(true, Some("uid-1")), (ClaimStep::Release, 0));
    assert_eq!(queued(true, Some("uid-of-another")), (ClaimStep::Leave, 0));
    assert_eq!(
        queued(false, None),
        (ClaimStep::Leave, 0),
        "first the quota, then the claim, and then the pods"
    );
    assert_eq!(
        queued(false, Some("uid-1")),
        (ClaimStep::Release, 0),
        "other runs can use the pool while it waits"
    );
}

#[test]
fn a_shared_pool_is_claimed_when_the_run_fits_and_given_back_when_it_cannot_begin() {
    let verdict = |admitted: bool, reason: Reason| {
        Some(Verdict {
            admitted,
            reason,
            message: String::new(),
        })
    };
    let (ours, free) = (Some("uid-1"), None);
    // Refers to a pool, verdict, holder of the claim, a pod is on a node; expected step.
    let cases = [
        (true, None, free, false, ClaimStep::Leave),
        (true, verdict(false, Reason::NeverFits), free, false, ClaimStep::Leave),
        (true, verdict(false, Reason::ClaimsPool), free, false, ClaimStep::Take),
        (true, verdict(false, Reason::ClaimsPool), ours, false, ClaimStep::Leave),
        (true, verdict(true, Reason::Admitted), free, false, ClaimStep::Take),
        (
            true,
            verdict(false, Reason::WaitsForCapacity),
            ours,
            false,
            ClaimStep::Release,
        ),
        (
            true,
            verdict(false, Reason::WaitsForCapacity),
            ours,
            true,
            ClaimStep::Leave,
        ),
        (false, verdict(false, Reason::NeverFits), free, false, ClaimStep::Take),
    ];
    for (refers, verdict, claimed, begun, step) in cases {
        let said = format!("{refers} {verdict:?} {claimed:?} {begun}");
        let mut run = with_spec(running_demo(), |run| {
            if refers {
                run.spec.inference = serde_json::from_value(json!({"poolRef": {"name": "demo"}})).unwrap();
            }
        });
        run.inference = Some(inference_pool(claimed, "True", ""));
        run.verdict = verdict;
        run.driver_pods[0].node_name = begun.then(|| "node-a".to_owned());
        assert_eq!(decided(&run).claim, step, "{said}");
    }
}
