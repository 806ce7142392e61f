//! Runs that are made, suspended, resume, end, and are cleaned up.

use std::time::Duration;

use grpo_contracts::reason::Reason;
use grpo_crds::{
    GrpoRun,
    algorithm::Aggregation,
    grpo_run::{Mode, Phase},
};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::{after, condition, decided, new_demo, running_demo, seen, with_spec};
use crate::grpo_run::{
    decide::decide,
    decision::{AdmissionStep, ClaimStep, Decision},
    observation::RunObservation,
    status::with_refusal,
};
use crate::{
    fixtures::{DEMO, ended, find, names, object, pod},
    pods::PodState,
    settings::Settings,
};

#[test]
fn a_run_that_has_succeeded_deletes_a_pod_whose_sidecar_does_not_end() {
    let mut over = running_demo();
    over.driver_pods[0].state = PodState::Succeeded;
    over.driver_pods[0].outlived = true;
    let decision = decided(&over);
    assert_eq!(decision.status.phase, Some(Phase::Succeeded));
    assert!(decision.give_back.contains(&"demo-driver-1-0".to_owned()));
}

#[test]
fn a_suspended_run_gives_everything_back_and_goes_on_with_new_attempts() {
    let suspended = with_spec(running_demo(), |run| run.spec.suspend = true);
    let decision = decided(&suspended);
    assert_eq!(decision.status.phase, Some(Phase::Suspended));
    assert_eq!(
        decision.give_back,
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
fn a_suspended_run_gives_back_the_pods_that_run_before_it_deletes_those_that_ended() {
    let mut suspended = with_spec(running_demo(), |run| run.spec.suspend = true);
    suspended.trainer_pods[1].state = ended(1, "no");
    let decision = decided(&suspended);
    assert_eq!(decision.give_back, ["demo-driver-1-0", "demo-trainer-1-0"]);
    assert_eq!(decision.delete_pods, ["demo-trainer-1-1"]);
}

#[test]
fn a_suspended_run_whose_claim_is_refused_shows_that_it_is_suspended_and_why_the_claim_is_missing() {
    let mut suspended = with_spec(running_demo(), |run| run.spec.suspend = true);
    let why = "failed to apply PersistentVolumeClaim team/demo-store: spec is immutable";
    let refused = |run: &RunObservation| with_refusal(run, decided(run), Reason::ApplyFailed, why);
    let decision = refused(&suspended);
    assert_eq!(decision.status.phase, Some(Phase::Suspended));
    let message = decision.status.message.as_deref().unwrap();
    assert!(message.starts_with("suspended") && message.contains(why), "{message}");
    let (status, reason, message) = condition(&decision, "Provisioned");
    assert_eq!(
        (status.as_str(), reason.as_str(), message.as_str()),
        ("False", "ApplyFailed", why)
    );
    let warned = |decision: &Decision| decision.events.iter().any(|event| event.reason == "ApplyFailed");
    assert!(warned(&decision));

    suspended.run.status = Some(decision.status);
    assert!(!warned(&refused(&suspended)), "once");
}

#[test]
fn a_run_that_is_suspended_from_the_start_makes_nothing() {
    let decision = decided(&with_spec(new_demo(), |run| run.spec.suspend = true));
    assert!(decision.objects.is_empty() && decision.create.is_empty() && decision.give_back.is_empty());
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
fn the_claim_of_a_run_that_is_over_loses_its_owner_when_the_volume_is_to_be_kept() {
    let mut done = after(RunObservation {
        driver_pods: vec![pod("demo-driver-1-0", 1, 0, PodState::Succeeded)],
        ..running_demo()
    });
    assert!(decided(&done).objects.is_empty());
    done.run.metadata.generation = Some(2);
    assert!(decided(&done).objects.is_empty(), "another field changed");
    done.run.spec.store.retain = true;
    let decision = decided(&done);
    let claim = find(&decision.objects, "PersistentVolumeClaim", "demo-store");
    assert_eq!(claim["metadata"]["ownerReferences"], json!([]));
    assert_eq!(decision.objects.len(), 1);
    assert!(
        decided(&after(done)).objects.is_empty(),
        "a claim that a user deletes stays deleted"
    );
}

#[test]
fn the_hostnames_of_a_suspended_attempt_are_given_back() {
    let suspended = with_spec(running_demo(), |run| run.spec.suspend = true);
    assert_eq!(decided(&suspended).delete_services, ["demo-trainer-1"]);
    let later = decided(&after(suspended));
    assert_eq!(later.delete_services, [""; 0]);
    assert_eq!(later.status.attempts.unwrap().trainer.current, 2);
}

#[test]
fn an_operator_that_starts_beside_a_running_run_shows_it_as_running() {
    let unjudged = |run: RunObservation| RunObservation { verdict: None, ..run };
    let running_demo = || {
        let mut run = running_demo();
        run.driver_pods[0].node_name = Some("node-1".to_owned());
        run
    };
    let decision = decided(&unjudged(after(running_demo())));
    assert_eq!(decision.status.phase, Some(Phase::Running));
    assert_eq!(condition(&decision, "Admitted").0, "True");
    assert!(decision.events.is_empty());
    // One that was not admitted before waits for the verdict.
    for waiting in [running_demo(), after(unjudged(running_demo()))] {
        let decision = decided(&unjudged(waiting));
        assert_eq!(decision.status.phase, Some(Phase::Queued));
    }
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
