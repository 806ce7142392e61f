//! Decisions for a run that is suspended, evicted, over, or being deleted.

use std::time::Duration;

use grpo_contracts::reason::Reason;
use grpo_crds::{
    AttemptStatus, Fault,
    grpo_run::{Attempts, GrpoRunStatus, Mode, Phase},
};
use jiff::{SignedDuration, Timestamp};
use kube::runtime::events::Event;

use super::{
    acceptance::Acceptance,
    decision::{ADMITTED, AdmissionStep, ClaimStep, Decision, FAILED, PROVISIONED, SUCCEEDED, WorkloadStep},
    objects::volume,
    observation::{QueueState, RunObservation},
    queue,
    status::{claim_release, conditions, phase_before, status},
};
use crate::{
    conditions::{ConditionStatus, is_true},
    desired_object::DesiredObject,
    events::{normal, warning},
    names,
    pod_group::{GroupState, GroupUpdate},
    pods::{Failure, PodFacts},
};

/// When a run looks again whether its claims of an earlier spec are gone; a watch usually tells earlier.
const RESETTLED: Duration = Duration::from_secs(5);

/// How the run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Succeeded,
    Failed(Fault),
}

/// The end that an earlier reconcile recorded. Only suspending a failed run clears it.
pub fn recorded_end(status: &Option<GrpoRunStatus>) -> Option<End> {
    let conditions = &status.as_ref()?.conditions;
    if is_true(conditions, SUCCEEDED) {
        return Some(End::Succeeded);
    }
    let failed = conditions
        .iter()
        .find(|condition| condition.type_ == FAILED && condition.status == "True")?;
    Some(End::Failed(Fault {
        reason: failed.reason.clone(),
        message: failed.message.clone(),
    }))
}

/// The end of the run, if its groups have reached one.
pub fn end(seen: &RunObservation, driver: &GroupUpdate, trainer: Option<&GroupUpdate>) -> Option<End> {
    let failed = |reason: Reason, message: &str| {
        Some(End::Failed(Fault {
            reason: reason.into(),
            message: message.to_owned(),
        }))
    };
    match (&driver.state, trainer.map(|update| &update.state)) {
        (GroupState::Succeeded, _) => Some(End::Succeeded),
        (GroupState::Fault(failure), _) => Some(End::Failed(declared_fault(seen, failure))),
        (GroupState::Exhausted { message }, _) => failed(Reason::DriverFailed, message),
        (_, Some(GroupState::Exhausted { message })) => failed(Reason::TrainerFailed, message),
        _ => None,
    }
}

/// The fault that the driver declared: in its termination message, or in this run's progress.
fn declared_fault(seen: &RunObservation, failure: &Failure) -> Fault {
    let said = failure
        .last_words
        .as_deref()
        .and_then(|words| serde_json::from_str(words.trim()).ok());
    let written = || {
        let progress = seen.run.status.as_ref()?.progress.as_ref()?;
        let own = progress.run_uid.as_deref() == Some(seen.owner.uid.as_str());
        progress.fault.clone().filter(|_| own)
    };
    let mut fault = said.or_else(written).unwrap_or_else(|| Fault {
        reason: Reason::DriverFault.into(),
        message: failure.message.clone(),
    });
    fault.reason = as_reason(&fault.reason);
    fault
}

/// A condition's reason must be one word; anything else would make the whole status invalid.
fn as_reason(text: &str) -> String {
    let word: String = text.chars().filter(char::is_ascii_alphanumeric).take(128).collect();
    if word.starts_with(|first: char| first.is_ascii_alphabetic()) {
        word
    } else {
        format!("Fault{word}")
    }
}

/// The run is being deleted: owner references delete the rest.
pub fn terminating(seen: &RunObservation) -> Decision {
    let previous = seen.run.status.clone().unwrap_or_default();
    Decision {
        claim: claim_release(seen),
        admission: AdmissionStep::Forget,
        ..Decision::nothing(GrpoRunStatus {
            phase: Some(Phase::Terminating),
            message: Some("being deleted".into()),
            ..previous
        })
    }
}

fn finished(mode: Mode) -> &'static str {
    match mode {
        Mode::Validate => "all tasks are validated",
        Mode::Finetune => "all steps are done",
        Mode::Train | Mode::Evaluate => "all iterations and evaluations are finished",
    }
}

/// The run is over: releases all that it held, and keeps its data until the TTL expires.
pub fn over(
    seen: &RunObservation,
    accepted: &Acceptance,
    attempts: Attempts,
    end: &End,
    mut events: Vec<Event>,
) -> Decision {
    let (phase, message) = match end {
        End::Succeeded => (Phase::Succeeded, finished(seen.run.spec.mode).to_owned()),
        End::Failed(fault) => (Phase::Failed, format!("{}: {}", fault.reason, fault.message)),
    };
    if phase_before(seen) != Some(phase) {
        events.push(match end {
            End::Succeeded => normal("Succeeded", message.clone()),
            End::Failed(fault) => warning(&fault.reason, fault.message.clone()),
        });
    }
    let gone = "its pods and the pools made for it are gone";
    let conditions = conditions(seen, accepted)
        .set(ADMITTED, ConditionStatus::False, Reason::Finished, gone)
        .set(PROVISIONED, ConditionStatus::False, Reason::Finished, gone);
    let conditions = match end {
        End::Succeeded => conditions
            .set(SUCCEEDED, ConditionStatus::True, Reason::Finished, &message)
            .set(FAILED, ConditionStatus::False, Reason::Finished, &message),
        End::Failed(fault) => conditions
            .set_as_told(SUCCEEDED, ConditionStatus::False, &fault.reason, &fault.message)
            .set_as_told(FAILED, ConditionStatus::True, &fault.reason, &fault.message),
    };
    let conditions = conditions.done();
    let left = time_left(seen, &conditions);
    Decision {
        objects: newly_kept_store(seen).into_iter().collect(),
        // Finished pods stay for their logs.
        give_back: held(seen).map(|pod| pod.name.clone()).collect(),
        delete_pools: true,
        delete_gpu_claims: had_gpu_claims(seen),
        delete_run: left.is_some_and(|left| left.is_zero()),
        claim: claim_release(seen),
        admission: AdmissionStep::Forget,
        workload: queue::released(seen),
        events,
        retry_in: left
            .filter(|left| !left.is_zero())
            .into_iter()
            .chain(until_released(seen))
            .min(),
        ..Decision::nothing(status(seen, phase, message, attempts, conditions))
    }
}

/// How long a finished run is still kept. `None`: for ever.
fn time_left(
    seen: &RunObservation,
    conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
) -> Option<Duration> {
    let ttl = SignedDuration::from_secs(seen.run.spec.ttl_seconds_after_finished?.into());
    let ended: Timestamp = conditions
        .iter()
        .find(|condition| matches!(condition.type_.as_str(), SUCCEEDED | FAILED) && condition.status == "True")
        .map(|condition| condition.last_transition_time.0)?;
    let left = ended.saturating_add(ttl).ok()?.duration_since(seen.now);
    Some(Duration::try_from(left).unwrap_or_default())
}

/// Suspended: nothing runs and nothing is held; the store stays, and the next attempts continue from it.
pub fn suspended(seen: &RunObservation, accepted: &Acceptance) -> Decision {
    let still = held(seen).count();
    let message = if still > 0 {
        format!("suspended; {still} of its pods are ending, what is finished stays in the store")
    } else {
        "suspended: it holds nothing; what is finished stays in the store. Set spec.suspend to false to go on from there".to_owned()
    };
    let events = if phase_before(seen) == Some(Phase::Suspended) {
        Vec::new()
    } else {
        vec![normal(Reason::Suspended, message.clone())]
    };
    Decision {
        events,
        objects: kept_store(seen).into_iter().collect(),
        workload: queue::released(seen),
        retry_in: until_released(seen),
        ..given_back(
            seen,
            accepted,
            Phase::Suspended,
            Reason::Suspended,
            message,
            "the run is suspended; it resumes when spec.suspend is false",
        )
    }
}

/// The run has no quota any more: it gives all back as if it were suspended, and continues from its store when Kueue
/// admits it again. `at_last`: the step that returns the quota with its last pod. The claim on a shared pool is given
/// back then too.
pub fn evicted(seen: &RunObservation, accepted: &Acceptance, why: &str, at_last: WorkloadStep) -> Decision {
    let still = held(seen).count();
    let message = match still {
        0 => format!("{why}. It holds nothing, and continues from its store when Kueue admits it again"),
        _ => format!("{why}. {still} of its pods are ending; it continues from its store when Kueue admits it again"),
    };
    let events = match phase_before(seen) {
        Some(Phase::Queued) => Vec::new(),
        _ => vec![warning(Reason::WaitsForQuota, message.clone())],
    };
    Decision {
        events,
        objects: kept_store(seen).into_iter().collect(),
        workload: at_last,
        // Until its driver has ended, another run's driver must not load weights into the same engines.
        claim: match still {
            0 => claim_release(seen),
            _ => ClaimStep::Leave,
        },
        retry_in: Some(RESETTLED),
        ..given_back(
            seen,
            accepted,
            Phase::Queued,
            Reason::WaitsForQuota,
            message,
            "the run has not ended",
        )
    }
}

/// The end of an engine's pod is no event of the run, and its Workload is deleted after the last one.
fn until_released(seen: &RunObservation) -> Option<Duration> {
    matches!(seen.queue, QueueState::Asked(_)).then_some(RESETTLED)
}

/// The run was suspended, changed and resumed before the operator saw it: its claims on GPUs, and so its pods, are of
/// the earlier spec. It gives all back as if it were suspended, and continues when they are gone.
pub fn resettled(seen: &RunObservation, accepted: &Acceptance) -> Decision {
    let message = "the GPUs that its trainer and engines share are claimed as an earlier spec asked for them; its \
                   pods and these claims are deleted, and it continues from its store when they are gone"
        .to_owned();
    Decision {
        events: vec![normal(Reason::Suspended, message.clone())],
        retry_in: Some(RESETTLED),
        ..given_back(
            seen,
            accepted,
            Phase::Pending,
            Reason::Suspended,
            message,
            "the run has not ended",
        )
    }
}

/// Gives back all that the run holds, except its store.
fn given_back(
    seen: &RunObservation,
    accepted: &Acceptance,
    phase: Phase,
    reason: Reason,
    message: String,
    not_finished: &str,
) -> Decision {
    let conditions = conditions(seen, accepted)
        .set(ADMITTED, ConditionStatus::False, reason, &message)
        .set(PROVISIONED, ConditionStatus::False, reason, &message)
        .not_finished([SUCCEEDED, FAILED], not_finished)
        .done();
    let attempts = Attempts {
        driver: after_suspension(&seen.attempts.driver, &seen.driver_pods),
        trainer: after_suspension(&seen.attempts.trainer, &seen.trainer_pods),
    };
    let (before, now) = (seen.attempts.trainer.current, attempts.trainer.current);
    let hosts = (before > 0 && now > before).then(|| names::trainer_hosts(&seen.owner.name, before));
    Decision {
        give_back: undeleted(held(seen)),
        delete_pods: undeleted(ended(seen)),
        // The next attempt's pods have hostnames of their own.
        delete_services: hosts.into_iter().collect(),
        delete_pools: true,
        delete_gpu_claims: had_gpu_claims(seen),
        claim: claim_release(seen),
        admission: AdmissionStep::Forget,
        ..Decision::nothing(status(seen, phase, message, attempts, conditions))
    }
}

/// Only mode Train shares GPUs, and a run's mode never changes. The rest of the spec may have changed since the claims
/// were made.
fn had_gpu_claims(seen: &RunObservation) -> bool {
    seen.run.spec.mode == Mode::Train
}

/// The volume claim of a run that has begun: `store.retain` may change while the run is suspended, and decides whether
/// deleting the run keeps the volume.
fn kept_store(seen: &RunObservation) -> Option<DesiredObject> {
    let begun = seen.attempts.driver.current > 0;
    volume(&seen.run, &seen.owner).filter(|_| begun)
}

/// The volume claim of a run that is over, if its spec has changed and keeps the volume: deleting the run would delete
/// the results otherwise. Only after a change: a claim that a user has deleted would return without its data.
fn newly_kept_store(seen: &RunObservation) -> Option<DesiredObject> {
    let known = seen.run.status.as_ref().and_then(|status| status.observed_generation);
    let changed = known != seen.run.metadata.generation;
    kept_store(seen).filter(|_| changed && seen.run.spec.store.retain)
}

/// The next attempt has a new number, and so new pods; failures before the suspension no longer count.
fn after_suspension(known: &AttemptStatus, pods: &[PodFacts]) -> AttemptStatus {
    let newest = pods.iter().map(|pod| pod.attempt).max().unwrap_or(0);
    let begun = known.created || newest >= known.current.max(1);
    AttemptStatus {
        current: if begun {
            known.current.max(newest).saturating_add(1)
        } else {
            known.current
        },
        created: false,
        consecutive_failures: 0,
        disruptions: 0,
        not_before: None,
        ..known.clone()
    }
}

fn all(seen: &RunObservation) -> impl Iterator<Item = &PodFacts> {
    seen.driver_pods.iter().chain(&seen.trainer_pods)
}

fn undeleted<'a>(pods: impl Iterator<Item = &'a PodFacts>) -> Vec<String> {
    pods.filter(|pod| !pod.deleting).map(|pod| pod.name.clone()).collect()
}

/// Pods that have not ended, or still hold their node after their process ended.
fn held(seen: &RunObservation) -> impl Iterator<Item = &PodFacts> {
    all(seen).filter(|pod| !pod.is_finished() || pod.outlived)
}

fn ended(seen: &RunObservation) -> impl Iterator<Item = &PodFacts> {
    all(seen).filter(|pod| pod.is_finished() && !pod.outlived)
}
