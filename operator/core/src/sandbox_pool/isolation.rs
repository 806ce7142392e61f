//! Conditions from the experiments of a SandboxPool's (`grpo.dev`) gateway: whether sandboxes reach nothing, whether
//! the kernel limits them, whether their images can be pulled, whether their pods start.

use grpo_contracts::reason::Reason;
use grpo_crds::SandboxPoolSpec;
use grpo_sandbox_protocol::{EgressReport, ImageTrouble, Limits, PoolReport, StuckPod};

use crate::conditions::ConditionStatus;

pub const EGRESS_BLOCKED: &str = "EgressBlocked";
pub const LIMITS_ENFORCED: &str = "LimitsEnforced";
pub const IMAGES_AVAILABLE: &str = "ImagesAvailable";
pub const SANDBOXES_START: &str = "SandboxesStart";

/// Number of images and pods named in a message; the others usually have the same cause.
const NAMED: usize = 3;

/// One condition.
pub struct Finding {
    pub type_: &'static str,
    pub status: ConditionStatus,
    pub reason: Reason,
    pub message: String,
}

/// In the order in which they are shown.
pub fn findings(spec: &SandboxPoolSpec, report: Option<&PoolReport>) -> [Finding; 4] {
    let none = PoolReport::default();
    let report = report.unwrap_or(&none);
    [
        egress(spec, report.egress.as_ref()),
        limits(spec, report.limits.as_ref()),
        images(&report.troubles),
        starts(&report.stuck),
    ]
}

fn egress(spec: &SandboxPoolSpec, found: Option<&EgressReport>) -> Finding {
    let (status, reason, what) = match found {
        None => (
            ConditionStatus::Unknown,
            Reason::NotProbed,
            "no sandbox has tried yet what it can reach".to_owned(),
        ),
        Some(EgressReport { failed: Some(why), .. }) => (
            ConditionStatus::Unknown,
            Reason::ProbeFailed,
            format!("what sandboxes can reach could not be tried: {why}"),
        ),
        Some(found) if found.is_blocked() => {
            let message = format!(
                "a sandbox tried to reach {}, and reached nothing",
                found.tried.join(", ")
            );
            return Finding {
                type_: EGRESS_BLOCKED,
                status: ConditionStatus::True,
                reason: Reason::NothingReached,
                message,
            };
        }
        Some(found) => (
            ConditionStatus::False,
            Reason::Reached,
            format!("a sandbox reached {}: {}", found.reached.join(", "), found.cause()),
        ),
    };
    let leases = match (spec.allow_unenforced, &status) {
        (true, _) => "leases are given all the same, because allowUnenforced is true",
        (false, ConditionStatus::Unknown) => "leases wait for it, unless allowUnenforced is true",
        (false, _) => "leases are refused, unless allowUnenforced is true",
    };
    Finding {
        type_: EGRESS_BLOCKED,
        status,
        reason,
        message: format!("{what}; {leases}"),
    }
}

fn limits(spec: &SandboxPoolSpec, found: Option<&Limits>) -> Finding {
    let Some(found) = found else {
        return Finding {
            type_: LIMITS_ENFORCED,
            status: ConditionStatus::Unknown,
            reason: Reason::NotProbed,
            message: "no sandbox has looked yet what it is bounded by".to_owned(),
        };
    };
    let mut bounds = Vec::new();
    let mut missing = Vec::new();
    match found.memory_bytes {
        Some(bytes) => bounds.push(format!("memory {} MiB", bytes >> 20)),
        None => missing.push("memory (set resources.limits.memory)"),
    }
    match found.cpu_millis {
        Some(millis) => bounds.push(format!("CPU {millis}m")),
        None => missing.push("CPU (set resources.limits.cpu)"),
    }
    match found.processes {
        Some(count) => bounds.push(format!("{count} processes")),
        // The kubelet limits the processes of the pod, which a container does not see.
        None => bounds.push("processes as the kubelet's podPidsLimit says".to_owned()),
    }
    let limits = spec.bounded_resources().limits.unwrap_or_default();
    match limits.get("ephemeral-storage") {
        Some(disk) => bounds.push(format!("disk {} (by eviction)", disk.0)),
        None => missing.push("disk (set resources.limits.ephemeral-storage)"),
    }
    let root = match (found.user_namespace, spec.user_namespaces) {
        (true, _) => "root inside is an unprivileged user outside",
        (false, true) => "root inside is root outside, although userNamespaces is true",
        (false, false) => "root inside is root outside, because userNamespaces is false",
    };
    bounds.push(root.to_owned());
    let bounds = bounds.join(", ");
    let bounded = missing.is_empty() && (found.user_namespace || !spec.user_namespaces);
    Finding {
        type_: LIMITS_ENFORCED,
        status: ConditionStatus::of(bounded),
        reason: if bounded { Reason::Bounded } else { Reason::Unbounded },
        message: match missing.is_empty() {
            true => format!("a sandbox has: {bounds}"),
            false => format!("a sandbox has no bound on {}; it has: {bounds}", missing.join(", ")),
        },
    }
}

fn images(troubles: &[ImageTrouble]) -> Finding {
    let told = |trouble: &ImageTrouble| {
        format!(
            "{} (failed {} times in a row): {}",
            trouble.image, trouble.failures, trouble.message
        )
    };
    let named: Vec<String> = troubles.iter().take(NAMED).map(told).collect();
    let more = match troubles.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let (reason, message) = match named.is_empty() {
        true => (
            Reason::NoneFailed,
            "all recently requested images were pulled".to_owned(),
        ),
        false => (
            Reason::ImageUnavailable,
            format!(
                "{}{more}. Correct the name, or bring the image to where the nodes can pull it",
                named.join("; ")
            ),
        ),
    };
    Finding {
        type_: IMAGES_AVAILABLE,
        status: ConditionStatus::of(named.is_empty()),
        reason,
        message,
    }
}

fn starts(stuck: &[StuckPod]) -> Finding {
    let told = |stuck: &StuckPod| match stuck.node.is_empty() {
        true => format!("{}: {}", stuck.pod, stuck.message),
        false => format!("{} on node {}: {}", stuck.pod, stuck.node, stuck.message),
    };
    let named: Vec<String> = stuck.iter().take(NAMED).map(told).collect();
    let (reason, message) = match named.is_empty() {
        true => (Reason::NoneStuck, "every sandbox's pod gets an address".to_owned()),
        false => (
            Reason::NoAddress,
            format!(
                "pods of sandboxes do not start: {}. Wait for a pod that has no node yet or pulls an image; for refused pods, free or correct the node; otherwise repair the network or the container runtime of the node",
                named.join("; ")
            ),
        ),
    };
    Finding {
        type_: SANDBOXES_START,
        status: ConditionStatus::of(named.is_empty()),
        reason,
        message,
    }
}

#[cfg(test)]
mod tests;
