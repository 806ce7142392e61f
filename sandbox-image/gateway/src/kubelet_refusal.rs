//! Pods that the scheduler gave to a node and whose kubelet refused to run them, from a pod's status.
//!
//! The kubelet has many reasons (`OutOfcpu`, `NodeAffinity`, `UnexpectedAdmissionError`), and plugins of a node have
//! more. All these pods have failed with a reason and never had a container.

use crate::slim_pod::SlimPod;

/// Why the pod's node refused to run it. `None` for every other pod, also for one that a controller ended before it
/// started.
pub fn refusal(pod: &SlimPod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let has_containers = status.container_statuses.iter().flatten().next().is_some();
    let was_disrupted = status.conditions.is_some();
    if status.phase.as_deref() != Some("Failed") || has_containers || was_disrupted {
        return None;
    }
    let reason = status.reason.as_deref().filter(|reason| !reason.is_empty())?;
    Some(match status.message.as_deref() {
        None | Some("") => reason.to_owned(),
        Some(message) => format!("{reason}: {message}"),
    })
}

#[cfg(test)]
mod tests;
