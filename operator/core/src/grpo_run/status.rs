//! The operator's part of a run's status, and reads of the previous status.

use grpo_contracts::reason::Reason;
use grpo_contracts::support::samples_frozen;
use grpo_crds::grpo_run::{Attempts, GrpoRunStatus, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::{
    acceptance::{ACCEPTED, Acceptance},
    decision::{ClaimStep, Decision, PROVISIONED},
    observation::RunObservation,
    summary,
};
use crate::{
    conditions::{ConditionStatus, Conditions, shortened},
    events::warning,
};

/// The condition of a run whose engines never sample trained weights.
const SAMPLER_FROZEN: &str = "SamplerFrozen";
const FROZEN: &str = "every iteration and evaluation samples the base model: the server in spec.inference.pool takes no new weights, and \
                      spec.algorithm.allowFrozenSampler accepts that; trained weights are in the store";

pub fn phase_before(seen: &RunObservation) -> Option<Phase> {
    seen.run.status.as_ref().and_then(|status| status.phase)
}

/// Conditions about the spec, which an error of the operator does not change.
pub const OF_THE_SPEC: [&str; 2] = [ACCEPTED, SAMPLER_FROZEN];

/// The conditions that every status of a run has, in every phase.
pub fn conditions<'a>(seen: &'a RunObservation, accepted: &Acceptance) -> Conditions<'a> {
    let previous = seen
        .run
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let conditions = Conditions::after(previous, seen.run.metadata.generation, Time(seen.now)).set_as_told(
        ACCEPTED,
        accepted.status.clone(),
        &accepted.reason,
        &accepted.message,
    );
    match samples_frozen(&seen.run.spec) {
        true => conditions.set(SAMPLER_FROZEN, ConditionStatus::True, Reason::Allowed, FROZEN),
        false => conditions,
    }
}

pub fn status(
    seen: &RunObservation,
    phase: Phase,
    message: String,
    attempts: Attempts,
    conditions: Vec<Condition>,
) -> GrpoRunStatus {
    GrpoRunStatus {
        phase: Some(phase),
        message: Some(shortened(&message)),
        observed_generation: seen.run.metadata.generation,
        objective: summary::objective(&seen.run.spec),
        plan: summary::plan(
            seen,
            matches!(phase, Phase::Succeeded | Phase::Failed | Phase::Suspended),
        ),
        conditions,
        attempts: Some(attempts),
        progress: None,
    }
}

/// The decision of a run that gives back all that it holds, when the API server refuses one of its objects. Its phase
/// is true all the same; its status says why the object is missing.
pub fn with_refusal(seen: &RunObservation, mut decision: Decision, reason: Reason, why: &str) -> Decision {
    let told = decision.status.message.take().unwrap_or_default();
    let message = shortened(&format!("{told}; {why}"));
    let before = seen.run.status.as_ref().and_then(|status| status.message.as_deref());
    if before != Some(message.as_str()) {
        decision.events.push(warning(reason, why));
    }
    decision.status.message = Some(message);
    let mut conditions = decision.status.conditions.iter_mut();
    if let Some(provisioned) = conditions.find(|condition| condition.type_ == PROVISIONED) {
        provisioned.reason = reason.text().to_owned();
        provisioned.message = shortened(why);
    }
    decision
}

/// Whether the run has the claim on its pool.
pub fn claims(seen: &RunObservation) -> bool {
    let claim = seen
        .inference
        .as_ref()
        .and_then(|pool| pool.status.as_ref()?.claimed_by.as_ref());
    claim.is_some_and(|claim| claim.uid == seen.owner.uid)
}

pub fn claim_release(seen: &RunObservation) -> ClaimStep {
    if claims(seen) {
        ClaimStep::Release
    } else {
        ClaimStep::Leave
    }
}
