//! Why a sandbox ended, from what the cluster recorded. Facts only: this decides between a verdict and a Void.
//!
//! A policy must not be able to bring a Void about, so its own limits are its own fault. It cannot send SIGKILL to process 1 of its own
//! container, so an unexplained 137 came from outside.

use grpo_sandbox_protocol::SandboxCause;

use crate::seen::{DISRUPTION, Pod};

/// Why the pod's sandbox is no more; `deleted` when the pod object itself is gone.
pub fn cause(pod: &Pod, deleted: bool) -> SandboxCause {
    let Some(status) = &pod.status else {
        return SandboxCause::Unknown;
    };
    let terminated = status
        .container_statuses
        .iter()
        .flatten()
        .flat_map(|container| [&container.state, &container.last_state])
        .find_map(|state| state.as_ref()?.terminated.as_ref());
    if terminated.is_some_and(|t| t.reason.as_deref() == Some("OOMKilled")) {
        return SandboxCause::OutOfMemory;
    }
    let message = status.message.as_deref().unwrap_or_default();
    if status.reason.as_deref() == Some("Evicted") {
        if message.contains("ephemeral local storage") || message.contains("emptyDir volume") {
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
    match terminated.map(|t| t.exit_code) {
        Some(0) => SandboxCause::Expired,
        Some(137 | 143) if deleted => SandboxCause::Deleted,
        Some(137 | 143) => SandboxCause::Unknown,
        Some(_) => SandboxCause::Exited,
        None if deleted => SandboxCause::Deleted,
        None => SandboxCause::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grpo_sandbox_protocol::Fault;

    fn of(status: &str, deleted: bool) -> SandboxCause {
        cause(
            &serde_yaml_ng::from_str(&format!("metadata: {{name: s}}\nstatus:\n{status}")).unwrap(),
            deleted,
        )
    }

    const OOM_V2: &str = "  phase: Failed
  containerStatuses:
  - {name: sandbox, image: i, imageID: i, ready: false, restartCount: 0, state: {terminated: {exitCode: 137, reason: OOMKilled}}}";
    const KILLED: &str = "  phase: Failed
  containerStatuses:
  - {name: sandbox, image: i, imageID: i, ready: false, restartCount: 0, state: {terminated: {exitCode: 137, reason: Error}}}";
    const CRASHED: &str = "  phase: Failed
  containerStatuses:
  - {name: sandbox, image: i, imageID: i, ready: false, restartCount: 0, state: {terminated: {exitCode: 101, reason: Error}}}";

    #[test]
    fn recorded_statuses_tell_the_policys_doing_from_the_infrastructures() {
        for (status, deleted, wanted, fault) in [
            (OOM_V2, false, SandboxCause::OutOfMemory, Fault::Workload),
            (KILLED, false, SandboxCause::Unknown, Fault::Infrastructure),
            (KILLED, true, SandboxCause::Deleted, Fault::Infrastructure),
            (CRASHED, false, SandboxCause::Exited, Fault::Workload),
            (
                "  phase: Failed\n  reason: Evicted\n  message: Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.",
                false,
                SandboxCause::DiskFull,
                Fault::Workload,
            ),
            (
                "  phase: Failed\n  reason: Evicted\n  message: 'The node was low on resource: memory.'",
                false,
                SandboxCause::Disrupted,
                Fault::Infrastructure,
            ),
            (
                "  phase: Failed\n  conditions: [{type: DisruptionTarget, status: 'True', reason: PreemptionByScheduler}]",
                true,
                SandboxCause::Preempted,
                Fault::Infrastructure,
            ),
            (
                "  phase: Running\n  conditions: [{type: DisruptionTarget, status: 'True', reason: DeletionByTaintManager}]",
                true,
                SandboxCause::NodeLost,
                Fault::Infrastructure,
            ),
            ("  phase: Running", true, SandboxCause::Deleted, Fault::Infrastructure),
        ] {
            assert_eq!(of(status, deleted), wanted, "{status}");
            assert_eq!(wanted.fault(), fault, "{status}");
        }
    }
}
