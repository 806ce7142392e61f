//! The pod that makes one node pull one image, and the image's state as its status shows it.
//!
//! The kubelet pulls the image before it looks at the command, so the command need not exist in the image: a container
//! that cannot start proves that the image is there.

use crate::pods::why::what_it_waits_for;
use crate::pods::{MANAGED_BY, container_security, pod_security};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::{Value, json};

/// The label with the name of the call.
pub const CALL: &str = "grpo.dev/prepull";
/// No image has this command.
const COMMAND: &str = "/grpo-prepull-runs-nothing";

/// The settings of all pods of a call.
#[derive(Clone, Debug, Default)]
pub struct Template {
    /// The name of the call, and the prefix of its pods' names.
    pub call: String,
    pub pull_secrets: Vec<String>,
    /// The runtime class of the pool's sandboxes: a runtime may keep its images apart.
    pub runtime_class: Option<String>,
    /// The pods end after this time, even if this program dies.
    pub deadline_seconds: u64,
}

impl Template {
    pub fn name(&self, pull: usize, attempt: u32) -> String {
        format!("{}-{pull}-{attempt}", self.call)
    }

    pub fn pod(&self, name: &str, node: &str, image: &str) -> Value {
        let secrets: Vec<Value> = self.pull_secrets.iter().map(|name| json!({"name": name})).collect();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {MANAGED_BY.0: MANAGED_BY.1, CALL: self.call}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "activeDeadlineSeconds": self.deadline_seconds,
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "securityContext": pod_security(),
                "imagePullSecrets": secrets,
                "runtimeClassName": self.runtime_class,
                // The scheduler places the pod, and waits if a node is full, where the kubelet would refuse the pod.
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
                ]}}},
                "tolerations": [{"operator": "Exists"}],
                "containers": [{
                    "name": "image",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": [COMMAND],
                    "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}},
                    "securityContext": container_security(),
                }],
            },
        })
    }
}

/// The image's state, from its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullStatus {
    Pulled,
    /// The pull is under way, or has not begun.
    Waits {
        why: Option<String>,
    },
    /// The kubelet has stopped for now.
    Failed {
        message: String,
    },
    /// The kubelet will never try.
    Refused {
        message: String,
    },
    /// The pod has ended without the image.
    Ended {
        message: String,
    },
}

pub fn seen(pod: &Pod) -> PullStatus {
    let Some(status) = &pod.status else {
        return PullStatus::Waits { why: None };
    };
    let container = status.container_statuses.iter().flatten().next();
    if let Some(seen) = container.and_then(of_container) {
        return seen;
    }
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        let reason = status.reason.as_deref().unwrap_or("its pod ended");
        let message = status.message.as_deref().unwrap_or_default();
        return PullStatus::Ended {
            message: format!("{reason}: {message}"),
        };
    }
    // The kubelet's text for a container that is being created does not help.
    let why = what_it_waits_for(pod).filter(|why| !why.ends_with(": "));
    PullStatus::Waits { why }
}

/// `None` while nothing is known yet.
fn of_container(status: &ContainerStatus) -> Option<PullStatus> {
    if !status.image_id.is_empty() {
        return Some(PullStatus::Pulled);
    }
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let message = match waiting.message.as_deref().unwrap_or_default() {
        "" => reason.to_owned(),
        message => message.to_owned(),
    };
    Some(match reason {
        "ImagePullBackOff" => PullStatus::Failed { message },
        "InvalidImageName" | "ErrImageNeverPull" | "SignatureValidationFailed" => PullStatus::Refused { message },
        // The kubelet soon tries again.
        "ErrImagePull" | "RegistryUnavailable" => PullStatus::Waits { why: Some(message) },
        // These come after the pull: the image is there.
        "CreateContainerConfigError"
        | "CreateContainerError"
        | "RunContainerError"
        | "PreStartHookError"
        | "PreCreateHookError"
        | "PostStartHookError"
        | "CrashLoopBackOff" => PullStatus::Pulled,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
