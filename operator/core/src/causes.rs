//! The cause of a pod's end, in one of a few words: the label of the failure counter.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};

use crate::pods::{PodFacts, PodState};

/// Kubernetes' words that are counted unchanged.
pub const WORDS: [&str; 10] = [
    "OOMKilled",
    "Evicted",
    "DeadlineExceeded",
    "NodeLost",
    "Preempting",
    "Terminated",
    "ContainerCannotRun",
    "StartError",
    "UnexpectedAdmissionError",
    "Error",
];

/// The cluster took the pod.
pub const DISRUPTED: &str = "Disrupted";
/// Every other word.
pub const OTHER: &str = "Other";

/// The scheduler found no node for the pod: Kubernetes' word in the condition PodScheduled.
const UNSCHEDULABLE: &str = "Unschedulable";

/// The state of a pod, in one word.
pub fn state(facts: &PodFacts) -> &'static str {
    match &facts.state {
        _ if facts.deleting => "Deleting",
        PodState::Waiting { reason, .. } if reason == UNSCHEDULABLE => UNSCHEDULABLE,
        PodState::Waiting { .. } => "Waiting",
        PodState::Running { ready: true } => "Ready",
        PodState::Running { ready: false } => "Running",
        PodState::Succeeded => "Succeeded",
        PodState::Failed(_) => "Failed",
    }
}

/// Why a pod failed; `None` if it did not. Unknown words are counted together: any client may write them.
pub fn cause(pod: &Pod, facts: &PodFacts) -> Option<&'static str> {
    let PodState::Failed(failure) = &facts.state else {
        return None;
    };
    if failure.disrupted && !failure.refused {
        return Some(DISRUPTED);
    }
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.iter().flatten();
    let ended = containers
        .filter_map(|container| container.state.as_ref()?.terminated.as_ref())
        .find(|ended: &&ContainerStateTerminated| ended.exit_code != 0);
    let said = status
        .reason
        .as_deref()
        .or(ended.and_then(|ended| ended.reason.as_deref()));
    let known = WORDS.iter().find(|word| said == Some(**word));
    Some(known.copied().unwrap_or(OTHER))
}

#[cfg(test)]
mod tests;
