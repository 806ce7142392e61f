//! The causes of a run's wait, from its conditions: each in a word or two, with the operator's message about amounts,
//! places and the next step.

use grpo_crds::GrpoRunStatus;
use grpo_crds::grpo_run::Phase;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The conditions that a run must meet, in order.
const STEPS: [&str; 2] = ["Admitted", "Provisioned"];

/// One cause of the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Such as `GPUs`.
    pub thing: String,
    pub condition: String,
    pub reason: String,
    pub message: String,
    pub since: Timestamp,
}

/// The causes of the wait of a run that should run. Conditions with the same message count as one.
pub fn waits(status: &GrpoRunStatus) -> Vec<Wait> {
    if !matches!(
        status.phase,
        None | Some(Phase::Pending | Phase::Queued | Phase::Provisioning)
    ) {
        return Vec::new();
    }
    let mut waits: Vec<Wait> = Vec::new();
    for step in STEPS {
        let Some(condition) = status.conditions.iter().find(|condition| condition.type_ == step) else {
            continue;
        };
        let known = waits.iter().any(|wait| wait.message == condition.message);
        if condition.status != "True" && !known {
            waits.push(of(condition));
        }
    }
    waits
}

fn of(condition: &Condition) -> Wait {
    Wait {
        thing: match condition.reason.as_str() {
            "ReferenceMissing" => missing_object(&condition.message),
            reason => thing(reason, &condition.message).to_owned(),
        },
        condition: condition.type_.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: condition.last_transition_time.0,
    }
}

/// Kind and name of the first missing object in the message, such as `Secret hub`.
fn missing_object(message: &str) -> String {
    let object = message.split_once(" no ").map_or("", |(_, object)| object);
    let mut words = object.split([' ', ';']).filter(|word| !word.is_empty());
    match (words.next(), words.next()) {
        (Some(kind), Some(name)) => format!("{kind} {name}"),
        _ => "an object that its spec names".to_owned(),
    }
}

/// The cause in a word or two. For reasons that are not known here, the message explains.
fn thing(reason: &str, message: &str) -> &'static str {
    let says = |words: &str| message.contains(words);
    match reason {
        "StoreMissing" => "a volume claim",
        "NameTaken" => "a name that another object has",
        "WaitsForQuota" => "quota",
        _ if says("exceeded quota") => "quota",
        "BehindAnotherRun" => "its turn",
        "WaitsForCapacity" | "NeverFits" if says("GPU") || says("/gpu") => "GPUs",
        "WaitsForCapacity" | "NeverFits" => "room on the nodes",
        "WaitsForPods" | "NotEvaluated" | "Requeued" | "BeingScheduled" | "ClaimsPool" => "its place on the nodes",
        _ if says("its image is not available") => "an image",
        _ if says("cannot be scheduled") && (says("GPU") || says("/gpu")) => "GPUs",
        _ if says("cannot be scheduled") => "room on the nodes",
        "InferencePoolClaimed" => "an InferencePool that another run holds",
        _ if reason.starts_with("InferencePool") || reason.starts_with("ExternalServer") => "its InferencePool",
        _ if reason.starts_with("Judge") => "the InferencePool of its judge",
        _ if reason.starts_with("SandboxPool") => "its SandboxPool",
        "DriverNotReady" | "TrainerNotReady" => "its pods",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
