//! Short-lived pods of this plugin, and connections into pods.
//!
//! [`serving`] creates a pod that answers requests, and deletes it; [`connection`] sends requests to a pod through the
//! API server's port-forward; [`driver_image`] finds the image of such a pod; [`why`] reads from a pod why it does not
//! run.

pub mod connection;
pub mod driver_image;
pub mod serving;
pub mod why;

/// The label of this plugin's pods, and its value.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "kubectl-grpo");
/// User, group and volume group of these pods, as for all processes of the operator.
const USER: i64 = 65532;

/// The pod settings that the restricted Pod Security Standard requires.
pub fn pod_security() -> serde_json::Value {
    serde_json::json!({
        "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// The container settings that it requires, and a read-only root file system.
pub fn container_security() -> serde_json::Value {
    serde_json::json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]},
    })
}
