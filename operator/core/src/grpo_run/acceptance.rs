//! Decides whether a run is accepted: this version's processes execute every field that it uses. Decided before any
//! object is created for the run, and shown in the condition `Accepted`.

use grpo_contracts::reason::Reason;
use grpo_contracts::support;
use grpo_crds::Fault;

use super::observation::RunObservation;
use crate::{conditions::ConditionStatus, settings::Settings};

pub const ACCEPTED: &str = "Accepted";

/// Content of the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptance {
    pub status: ConditionStatus,
    pub reason: String,
    pub message: String,
}

impl Acceptance {
    fn of(status: ConditionStatus, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Why the run ends before any object is created for it.
    pub fn refusal(&self) -> Option<Fault> {
        (self.status == ConditionStatus::False).then(|| Fault {
            reason: self.reason.clone(),
            message: self.message.clone(),
        })
    }
}

/// Whether the run is accepted. A finished run keeps its condition.
pub fn acceptance(seen: &RunObservation, settings: &Settings, is_over: bool) -> Acceptance {
    if is_over && let Some(told) = told_before(seen) {
        return told;
    }
    let found = support::unsupported(&seen.run.spec);
    if found.is_empty() {
        return Acceptance::of(
            ConditionStatus::True,
            Reason::SpecValid,
            "this version executes every field that the spec uses",
        );
    }
    let words = support::in_words(&found);
    let admitted = |why: &str| Acceptance::of(ConditionStatus::True, Reason::Tolerated, format!("{why}: {words}"));
    if settings.admit_unsupported {
        return admitted("the operator admits it by --admit-unsupported");
    }
    // Created by an operator that knew other fields. The driver of a run that is under way reports it itself.
    let begun = !(seen.driver_pods.is_empty() && seen.trainer_pods.is_empty());
    if begun || is_over {
        return admitted("it began under another version");
    }
    Acceptance::of(ConditionStatus::False, Reason::NotSupported, words)
}

fn told_before(seen: &RunObservation) -> Option<Acceptance> {
    let conditions = &seen.run.status.as_ref()?.conditions;
    let told = conditions.iter().find(|condition| condition.type_ == ACCEPTED)?;
    let status = ConditionStatus::of(told.status == "True");
    Some(Acceptance::of(status, told.reason.clone(), told.message.clone()))
}

#[cfg(test)]
mod tests;
