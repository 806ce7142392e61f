//! Why a sandbox ended, from what the cluster recorded. Facts only: this decides between a verdict and a void.
//!
//! A policy must not be able to cause a void, so every end that it may have caused counts as its own fault. It cannot
//! send SIGKILL to process 1 of its own container, but it can have the kernel do so: a runtime that loses the event of
//! a memory limit reports exit code 137 without a reason. Other kills leave a record: a pod is deleted, or its node or
//! its kubelet says why it ended.

use grpo_sandbox_protocol::{RESET_EXIT, SandboxCause};

use crate::pod::CONTAINER;
use crate::slim_pod::{DISRUPTION, SlimPod};

/// Why the pod's sandbox ended. `deleted`: the pod object itself is gone.
pub fn cause(pod: &SlimPod, deleted: bool) -> SandboxCause {
    let Some(status) = &pod.status else {
        return SandboxCause::Unknown;
    };
    let terminated = status
        .container_statuses
        .iter()
        .flatten()
        .flat_map(|container| [&container.state, &container.last_state])
        .find_map(|state| state.as_ref()?.terminated.as_ref());
    let message = status.message.as_deref().unwrap_or_default();
    if status.reason.as_deref() == Some("Evicted") {
        // The kubelet's messages for the disk limits of a pod, a container and a volume.
        let of_disk = ["ephemeral local storage", "local ephemeral storage", "EmptyDir volume"];
        if of_disk.iter().any(|words| message.contains(words)) {
            return SandboxCause::DiskFull;
        }
        if message.contains("exceeds") || message.contains("exceeded") || is_for_its_own_use(message) {
            return SandboxCause::EvictedOwnLimit;
        }
    }
    let disruption = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == DISRUPTION && condition.status == "True");
    if let Some(disruption) = disruption {
        return match disruption.reason.as_deref() {
            Some("PreemptionByScheduler") => SandboxCause::Preempted,
            Some("DeletionByTaintManager" | "DeletionByPodGC") => SandboxCause::NodeLost,
            _ => SandboxCause::Disrupted,
        };
    }
    match status.reason.as_deref() {
        Some("NodeLost") => return SandboxCause::NodeLost,
        Some("Evicted" | "Terminated" | "NodeShutdown" | "Shutdown") => return SandboxCause::Disrupted,
        _ => {}
    }
    let reason = terminated.and_then(|t| t.reason.as_deref());
    // The runtime has lost the container, as after a restart of the node, and invented the exit code.
    if matches!(reason, Some("Unknown" | "ContainerStatusUnknown")) && !deleted {
        return SandboxCause::Unknown;
    }
    match terminated.map(|t| t.exit_code) {
        Some(0) => SandboxCause::Expired,
        // Only a gateway can cause this exit code.
        Some(code) if code == i32::from(RESET_EXIT) => SandboxCause::Deleted,
        Some(137 | 143) if deleted => SandboxCause::Deleted,
        // containerd reports this for every container in which any process ever ran out of memory, so it counts only if
        // no other reason is recorded.
        Some(137) if reason == Some("OOMKilled") => SandboxCause::OutOfMemory,
        Some(137) if matches!(reason, None | Some("Error")) => SandboxCause::Killed,
        // sandboxd ignores SIGTERM, so the policy cannot end it with one.
        Some(137 | 143) => SandboxCause::Unknown,
        Some(_) => SandboxCause::Exited,
        None if deleted => SandboxCause::Deleted,
        None => SandboxCause::Unknown,
    }
}

/// Whether a node under pressure evicted the pod for this pod's own use. The kubelet first evicts pods that use more
/// than they requested, and names their containers. Files and processes have no requests: there it begins with the pods
/// that have the most.
fn is_for_its_own_use(message: &str) -> bool {
    let names_ours = message.contains(&format!("Container {CONTAINER} was using"));
    let of_the_most = ["low on resource: inodes", "low on resource: pids"];
    names_ours || of_the_most.iter().any(|words| message.contains(words))
}

#[cfg(test)]
mod tests;
