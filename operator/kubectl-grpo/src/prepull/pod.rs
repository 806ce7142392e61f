//! The pod that has one node pull one image, and what its status says of the image.
//!
//! The kubelet pulls the image before it looks at the command, so the command need not exist in the image: a container
//! that cannot be started shows that the image is there.

use crate::pods::why::what_it_waits_for;
use crate::pods::{MANAGED_BY, container_security, pod_security};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::{Value, json};

/// Pods of one call carry its name here.
pub const CALL: &str = "grpo.dev/prepull";
/// No image has it.
const COMMAND: &str = "/grpo-prepull-runs-nothing";

/// What all pods of a call share.
#[derive(Clone, Debug, Default)]
pub struct Template {
    /// The name of the call, and the prefix of its pods' names.
    pub call: String,
    pub pull_secrets: Vec<String>,
    /// Of the pool's sandboxes: a runtime may keep images apart from others.
    pub runtime_class: Option<String>,
    /// The pods end by then, even if this program dies.
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
                // By the scheduler, which waits where a node is full: the kubelet would refuse the pod.
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

/// What a pod says of its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullStatus {
    Pulled,
    /// It is being pulled, or has not begun.
    Waits {
        why: Option<String>,
    },
    /// The kubelet has given up for now.
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
    // A container that is being created has no words that help.
    let why = what_it_waits_for(pod).filter(|why| !why.ends_with(": "));
    PullStatus::Waits { why }
}

/// None while nothing is known yet.
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
        // The kubelet tries it once more soon.
        "ErrImagePull" | "RegistryUnavailable" => PullStatus::Waits { why: Some(message) },
        // These come behind the pull: the image is there.
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
