//! Why a sandbox ended, from what the cluster recorded. Facts only: this decides between a verdict and a Void.
//!
//! A policy must not be able to bring a Void about, so its own limits are its own fault. It cannot send SIGKILL to
//! process 1 of its own container, so an unexplained 137 came from outside.

use grpo_sandbox_protocol::{RESET_EXIT, SandboxCause};

use crate::slim_pod::{DISRUPTION, SlimPod};

/// Why the pod's sandbox is no more; `deleted` when the pod object itself is gone.
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
        // The kubelet's words for the limits of a pod, a container and a volume.
        let of_disk = ["ephemeral local storage", "local ephemeral storage", "EmptyDir volume"];
        if of_disk.iter().any(|words| message.contains(words)) {
            return SandboxCause::DiskFull;
        }
        if message.contains("exceeds") || message.contains("exceeded") {
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
    // The runtime has lost the container, as after a restart of the node, and made the exit code up.
    if matches!(reason, Some("Unknown" | "ContainerStatusUnknown")) && !deleted {
        return SandboxCause::Unknown;
    }
    match terminated.map(|t| t.exit_code) {
        Some(0) => SandboxCause::Expired,
        // Only a gateway can bring that about.
        Some(code) if code == i32::from(RESET_EXIT) => SandboxCause::Deleted,
        Some(137 | 143) if deleted => SandboxCause::Deleted,
        // containerd says so of every container in which anything ever ran out of memory, so that this counts only
        // where nothing else is the reason.
        Some(137) if reason == Some("OOMKilled") => SandboxCause::OutOfMemory,
        Some(137 | 143) => SandboxCause::Unknown,
        Some(_) => SandboxCause::Exited,
        None if deleted => SandboxCause::Deleted,
        None => SandboxCause::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grpo_sandbox_protocol::FaultOrigin;
    use serde_json::Value;

    fn of(status: &Value, deleted: bool) -> SandboxCause {
        let pod = serde_json::json!({"metadata": {"name": "s"}, "status": status});
        cause(&serde_json::from_value(pod).unwrap(), deleted)
    }

    /// Whatever the watch shows last, or what it skips, the holder hears the same.
    #[test]
    fn recorded_statuses_tell_the_policys_doing_from_the_infrastructures() {
        let faults: Vec<Value> = serde_yaml_ng::from_str(include_str!("cause/faults.yaml")).unwrap();
        for fault in &faults {
            let wanted: SandboxCause = serde_json::from_value(fault["cause"].clone()).unwrap();
            let steps = fault["steps"].as_array().unwrap();
            let is_deleted = steps.iter().any(|step| step.get("delete").is_some());
            if let Some(last) = steps.iter().rev().find(|step| step.get("status").is_some()) {
                assert_eq!(of(&last["status"], is_deleted), wanted, "{}", fault["fault"]);
            }
        }
        assert!(faults.len() >= 25);
    }

    #[test]
    fn only_what_the_policy_can_bring_about_is_its_fault() {
        use SandboxCause::*;
        for cause in [OutOfMemory, EvictedOwnLimit, DiskFull, Exited] {
            assert_eq!(cause.fault(), FaultOrigin::Workload);
        }
        for cause in [Deleted, NodeLost, Preempted, Disrupted, Expired, Unknown] {
            assert_eq!(cause.fault(), FaultOrigin::Infrastructure);
        }
    }

    #[test]
    fn a_pod_that_is_deleted_while_it_runs_was_deleted() {
        assert_eq!(
            of(&serde_json::json!({"phase": "Running"}), true),
            SandboxCause::Deleted
        );
        assert_eq!(of(&Value::Null, true), SandboxCause::Unknown);
    }
}
