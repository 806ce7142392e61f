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
mod tests {
    use super::*;
    use serde_json::json;

    fn cause_of(status: serde_json::Value) -> Option<&'static str> {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap();
        cause(&pod, &PodFacts::of(&pod))
    }

    #[test]
    fn a_failure_is_counted_by_a_word_of_a_fixed_list() {
        let ended = |reason: &str| {
            json!({"phase": "Failed", "containerStatuses": [{
                "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 137, "reason": reason}}}]})
        };
        assert_eq!(cause_of(ended("OOMKilled")), Some("OOMKilled"));
        assert_eq!(cause_of(ended("whatever-name-42")), Some("Other"));
        assert_eq!(
            cause_of(json!({"phase": "Failed", "reason": "Evicted"})),
            Some("Evicted")
        );
        assert_eq!(cause_of(json!({"phase": "Running"})), None);
    }
}
