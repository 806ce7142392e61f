//! Pods that this plugin makes for a moment, and connections into pods.
//!
//! [`serving`] makes a pod that serves answers, and deletes it; [`connection`] asks a pod through the API server's
//! port-forward; [`driver_image`] finds the image such a pod needs; [`why`] reads from a pod why it does not run.

pub mod connection;
pub mod driver_image;
pub mod serving;
pub mod why;

/// The label of pods that this plugin makes, and its value.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "kubectl-grpo");
/// User, group and volume group of these pods, as of all processes of the operator.
const USER: i64 = 65532;

/// What the restricted Pod Security Standard asks of a pod.
pub fn pod_security() -> serde_json::Value {
    serde_json::json!({
        "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// What it asks of a container, and a root file system that is read only.
pub fn container_security() -> serde_json::Value {
    serde_json::json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]},
    })
}
