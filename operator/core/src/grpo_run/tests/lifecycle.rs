//! Runs that wait for admission, are suspended, resume, end, and are cleaned up.

use std::time::Duration;

use grpo_contracts::reason::Reason;
use grpo_crds::{
    GrpoRun,
    algorithm::Aggregation,
    grpo_run::{Mode, Phase},
};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::NodeSelectorTerm;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::{condition, created, decided, inference_pool, new_demo, running_demo, seen};
use crate::grpo_run::{
    decide::decide,
    decision::{AdmissionStep, ClaimStep},
    observation::RunObservation,
};
use crate::{
    admission::Verdict,
    fixtures::{DEMO, ended, find, names, object, pod},
    pods::PodState,
    quota::QuotaWait,
    settings::Settings,
};

pub(super) fn with_spec(mut run: RunObservation, change: impl FnOnce(&mut GrpoRun)) -> RunObservation {
    change(&mut run.run);
    run
}

/// The same run one reconcile later, after the decision was written and executed.
fn after(mut run: RunObservation) -> RunObservation {
    let decision = decided(&run);
    run.run.status = Some(decision.status.clone());
    run.attempts = decision.status.attempts.clone().unwrap_or_default();
    run.driver_pods.retain(|pod| !decision.delete_pods.contains(&pod.name));
    run.trainer_pods.retain(|pod| !decision.delete_pods.contains(&pod.name));
    run
}

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

#[test]
fn with_a_queue_kueue_lets_the_pods_in() {
    let queued = with_spec(new_demo(), |run| run.spec.queue_name = Some("gpus".into()));
    let decision = decided(&queued);
    let driver = created(&decision, "demo-driver-1-0");
    assert_eq!(driver["spec"]["schedulingGates"], Value::Null);
    assert_eq!(driver["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "gpus");
    assert_eq!(driver["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"], "demo");
    assert_eq!(
        driver["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"],
        "4"
    );
    let pool = find(&decision.objects, "InferencePool", "demo");
    assert_eq!(pool["metadata"]["annotations"]["grpo.dev/queue"], "gpus");

    let gated = with_spec(running_demo(), |run| run.spec.queue_name = Some("gpus".into()));
    let decision = decided(&RunObservation {
        driver_pods: vec![waiting("demo-driver-1-0")],
        verdict: None,
        ..gated
    });
    let (_, reason, message) = condition(&decision, "Admitted");
    assert_eq!(reason, "WaitsForQuota");
    assert!(message.contains("LocalQueue gpus"), "{message}");
    assert_eq!(decision.status.phase, Some(Phase::Queued));
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
fn with_a_queue_pods_are_made_once_the_run_has_its_claim_on_a_shared_pool() {
    let (mut run, _) = queued_and_blocked().into_iter().next_back().unwrap();
    run.sandboxes = running_demo().sandboxes;
    run.inference = Some(inference_pool(None, "True", ""));
    let decision = decided(&run);
    assert_eq!(decision.claim, ClaimStep::Take);
    assert!(decision.create.is_empty());
    run.inference = Some(inference_pool(Some("uid-1"), "True", ""));
    assert_eq!(decided(&run).create.len(), 3);
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
        decision.delete_pods,
        ["demo-driver-1-0", "demo-trainer-1-0", "demo-engine-0"]
    );
    assert!(decision.create.is_empty());
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
    assert!(behind.create.is_empty() && behind.delete_pods.is_empty());
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
    assert!(decision.delete_pods.is_empty());
}

#[test]
fn a_run_that_has_succeeded_deletes_a_pod_whose_sidecar_does_not_end() {
    let mut over = running_demo();
    over.driver_pods[0].state = PodState::Succeeded;
    over.driver_pods[0].outlived = true;
    let decision = decided(&over);
    assert_eq!(decision.status.phase, Some(Phase::Succeeded));
    assert!(decision.delete_pods.contains(&"demo-driver-1-0".to_owned()));
}

#[test]
fn a_suspended_run_gives_everything_back_and_goes_on_with_new_attempts() {
    let suspended = with_spec(running_demo(), |run| run.spec.suspend = true);
    let decision = decided(&suspended);
    assert_eq!(decision.status.phase, Some(Phase::Suspended));
    assert_eq!(
        decision.delete_pods,
        ["demo-driver-1-0", "demo-trainer-1-0", "demo-trainer-1-1"]
    );
    assert!(decision.delete_pools && decision.create.is_empty());
    assert!(
        decision
            .objects
            .iter()
            .all(|object| object.kind() == "PersistentVolumeClaim")
    );
    assert_eq!(decision.claim, ClaimStep::Release);
    assert_eq!(decision.admission, AdmissionStep::Forget);

    let again = after(after(suspended));
    let attempts = &again.attempts;
    assert_eq!(
        (attempts.driver.current, attempts.trainer.current),
        (2, 2),
        "counted once"
    );
    assert!(
        condition(&decided(&again), "Provisioned")
            .2
            .contains("it holds nothing")
    );

    let resumed = with_spec(again, |run| run.spec.suspend = false);
    let decision = decided(&RunObservation {
        inference: None,
        sandboxes: None,
        verdict: None,
        ..resumed
    });
    let pods: Vec<&str> = decision.create.iter().map(|(_, pod, _)| pod.name.as_str()).collect();
    assert_eq!(pods, ["demo-driver-2-0", "demo-trainer-2-0", "demo-trainer-2-1"]);
    assert_eq!(decision.status.phase, Some(Phase::Queued));
}

#[test]
fn a_run_that_is_suspended_from_the_start_makes_nothing() {
    let decision = decided(&with_spec(new_demo(), |run| run.spec.suspend = true));
    assert!(decision.objects.is_empty() && decision.create.is_empty() && decision.delete_pods.is_empty());
    assert_eq!(decision.status.attempts.unwrap().driver.current, 0);
}

#[test]
fn the_claim_of_a_suspended_run_follows_its_spec_so_that_retain_still_counts() {
    let owners = |retain: bool| {
        let run = with_spec(running_demo(), |run| run.spec.suspend = true);
        let decision = decided(&with_spec(run, |run| run.spec.store.retain = retain));
        let [claim] = &decision.objects[..] else {
            panic!("{:?}", decision.objects)
        };
        assert_eq!(claim.kind(), "PersistentVolumeClaim");
        claim.object["metadata"]["ownerReferences"].as_array().unwrap().len()
    };
    assert_eq!((owners(false), owners(true)), (1, 0));
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
fn a_failed_run_is_taken_up_again_by_suspending_and_resuming_it() {
    let failed = after(RunObservation {
        driver_pods: vec![pod(
            "demo-driver-1-0",
            1,
            0,
            ended(42, r#"{"reason": "R", "message": "m"}"#),
        )],
        ..running_demo()
    });
    assert_eq!(decided(&failed).status.phase, Some(Phase::Failed));
    let suspended = after(with_spec(failed, |run| run.spec.suspend = true));
    assert_eq!(condition(&decided(&suspended), "Failed").0, "False");
    let resumed = decided(&with_spec(suspended, |run| run.spec.suspend = false));
    assert!(resumed.create.iter().any(|(_, pod, _)| pod.name == "demo-driver-2-0"));
}

#[test]
fn a_run_that_succeeded_stays_so_when_it_is_suspended() {
    let done = after(RunObservation {
        driver_pods: vec![pod("demo-driver-1-0", 1, 0, PodState::Succeeded)],
        ..running_demo()
    });
    let decision = decided(&with_spec(done, |run| run.spec.suspend = true));
    assert_eq!(decision.status.phase, Some(Phase::Succeeded));
}

#[test]
fn a_run_that_is_over_is_deleted_when_its_time_is_up() {
    let done = after(RunObservation {
        driver_pods: vec![pod("demo-driver-1-0", 1, 0, PodState::Succeeded)],
        ..with_spec(running_demo(), |run| run.spec.ttl_seconds_after_finished = Some(60))
    });
    let decision = decided(&done);
    assert!(!decision.delete_run);
    assert_eq!(decision.retry_in, Some(Duration::from_secs(60)));
    let later = RunObservation {
        now: done.now + SignedDuration::from_secs(60),
        ..done
    };
    let decision = decided(&later);
    assert!(decision.delete_run && decision.retry_in.is_none());
    let kept = with_spec(later, |run| run.spec.ttl_seconds_after_finished = None);
    assert!(!decided(&kept).delete_run);
}

#[test]
fn a_retained_volume_has_no_owner() {
    let owners = |retain: bool| {
        let run = with_spec(new_demo(), |run| run.spec.store.retain = retain);
        let decision = decided(&run);
        find(&decision.objects, "PersistentVolumeClaim", "demo-store")["metadata"]["ownerReferences"].clone()
    };
    assert_eq!(owners(true), json!([]));
    assert_eq!(owners(false)[0]["uid"], "uid-1");
}

#[test]
fn priority_and_pull_secrets_of_the_run_reach_its_pools_unless_they_have_their_own() {
    let run = with_spec(new_demo(), |run| {
        run.spec.priority_class_name = Some("high".into());
        run.spec.image_pull_secrets = serde_json::from_value(json!([{"name": "registry"}])).unwrap();
        run.spec.sandboxes.pool.as_mut().unwrap().pod_template =
            Some(serde_json::from_value(json!({"spec": {"priorityClassName": "low"}})).unwrap());
    });
    let decision = decided(&run);
    let overlay = |kind: &str| find(&decision.objects, kind, "demo")["spec"]["podTemplate"]["spec"].clone();
    assert_eq!(overlay("InferencePool")["priorityClassName"], "high");
    assert_eq!(
        overlay("InferencePool")["imagePullSecrets"],
        json!([{"name": "registry"}])
    );
    assert_eq!(overlay("SandboxPool")["priorityClassName"], "low");
}

#[test]
fn every_mode_is_given_what_it_needs_and_no_more() {
    let made = |mode: Mode| {
        let mut run: GrpoRun = object(DEMO);
        run.spec.mode = mode;
        let decision = decide(&seen(run), &Settings::admitting_unsupported());
        let mut roles: Vec<&str> = decision.create.iter().map(|(role, ..)| *role).collect();
        roles.dedup();
        let pools: Vec<String> = names(&decision.objects)
            .into_iter()
            .filter(|name| name.contains("Pool"))
            .collect();
        (roles.join(" "), pools.join(" "))
    };
    let expected = |roles: &str, pools: &str| (roles.to_owned(), pools.to_owned());
    assert_eq!(
        made(Mode::Train),
        expected("driver trainer", "InferencePool/demo SandboxPool/demo")
    );
    assert_eq!(
        made(Mode::Evaluate),
        expected("driver", "InferencePool/demo SandboxPool/demo")
    );
    assert_eq!(made(Mode::Validate), expected("driver", "SandboxPool/demo"));
    assert_eq!(made(Mode::Finetune), expected("driver trainer", ""));
}

#[test]
fn the_status_says_the_objective_and_the_plan_of_pods() {
    let status = decided(&running_demo()).status;
    let objective = status.objective.unwrap();
    for words in ["advantage = (reward - group mean)", "AdamW", "the engine's logprobs"] {
        assert!(objective.contains(words), "{objective}");
    }
    let plan: Vec<(String, String, Option<u32>)> = status
        .plan
        .into_iter()
        .map(|pods| (pods.role, pods.pods, pods.running))
        .collect();
    assert_eq!(plan[0], ("driver".into(), "1".into(), Some(1)));
    assert_eq!(plan[1], ("trainer".into(), "2".into(), Some(2)));
    assert_eq!(plan[3].2, None);
}

#[test]
fn a_run_that_finetunes_says_what_it_learns() {
    let mut demo = running_demo();
    demo.run.spec.mode = Mode::Finetune;
    demo.run.spec.algorithm.aggregation = Aggregation::SequenceMean;
    demo.run.spec.algorithm.schedule.warmup_ratio = 0.1;
    let objective = decided(&demo).status.objective.unwrap();
    let wanted = "-logprob of answers; mean over rows of token means; 1 step a batch; AdamW";
    assert!(
        objective.starts_with(wanted) && objective.contains("warm-up 0.1 of the steps"),
        "{objective}"
    );
}

#[test]
fn a_deleted_run_is_forgotten_by_admission() {
    let mut demo = running_demo();
    demo.run.metadata.deletion_timestamp = Some(Time(demo.now));
    assert_eq!(decided(&demo).admission, AdmissionStep::Forget);
}

/// Defect 28: a sampler that is never updated must be reported.
#[test]
fn a_run_whose_sampler_is_frozen_says_so() {
    let frozen = |run: &mut GrpoRun| {
        let engine = json!({"engine": {"external": {"url": "https://a.b/v1"}}});
        run.spec.inference.pool = Some(serde_json::from_value(engine).unwrap());
        run.spec.algorithm.allow_frozen_sampler = true;
    };
    let decision = decided(&with_spec(new_demo(), frozen));
    let (status, reason, message) = condition(&decision, "SamplerFrozen");
    assert_eq!((&*status, &*reason), ("True", "Allowed"));
    assert!(message.contains("samples the base model"), "{message}");
    let other = decided(&new_demo()).status.conditions;
    assert!(other.iter().all(|condition| condition.type_ != "SamplerFrozen"));
}

#[test]
fn a_run_that_asks_for_what_no_process_executes_fails_before_a_pod_is_made() {
    let sampled_otherwise = |run: &mut GrpoRun| run.spec.rollout.sampling.min_p = 0.5;
    let asks = with_spec(new_demo(), sampled_otherwise);
    let decision = decided(&asks);
    assert_eq!(decision.status.phase, Some(Phase::Failed));
    let (_, reason, message) = condition(&decision, "Failed");
    assert_eq!(reason, "NotSupported");
    assert!(
        message.contains("spec.rollout.sampling.minP: 0.5 is not executed"),
        "{message}"
    );
    assert!(decision.objects.is_empty() && decision.create.is_empty());
    assert_eq!(decision.admission, AdmissionStep::Forget);

    let other_images = decide(&asks, &Settings::admitting_unsupported());
    assert!(!other_images.create.is_empty());
    // The driver of a run that is under way reports it itself.
    let running = with_spec(running_demo(), sampled_otherwise);
    assert_eq!(decided(&running).status.phase, Some(Phase::Running));
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
        (ClaimStep::Take, 0),
        "first the claim, then the pods"
    );
    assert_eq!(queued(false, Some("uid-1")), (ClaimStep::Leave, 3));
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
