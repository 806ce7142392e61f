//! Why a pod ended, in one of few words: what failures are counted by.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};

use crate::pods::{PodFacts, PodState};

/// Words of Kubernetes that are counted as they are.
const WORDS: [&str; 10] = [
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

/// How far a pod is, in one word.
pub fn state(facts: &PodFacts) -> &'static str {
    match &facts.state {
        _ if facts.deleting => "Deleting",
        PodState::Waiting { .. } => "Waiting",
        PodState::Running { ready: true } => "Ready",
        PodState::Running { ready: false } => "Running",
        PodState::Succeeded => "Succeeded",
        PodState::Failed(_) => "Failed",
    }
}

/// Why a pod failed; None for one that did not. Words that are not known are counted together: anybody may write them.
pub fn cause(pod: &Pod, facts: &PodFacts) -> Option<&'static str> {
    let PodState::Failed(failure) = &facts.state else {
        return None;
    };
    if failure.disrupted {
        return Some("Disrupted");
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
    Some(known.copied().unwrap_or("Other"))
}

#[cfg(test)]
mod tests;
