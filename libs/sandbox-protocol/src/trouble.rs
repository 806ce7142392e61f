//! Images that cannot be pulled and pods that do not start, as a gateway reports them.

use serde::{Deserialize, Serialize};

use crate::ErrorCode;

/// An image that could not be pulled, and is not tried for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ImageTrouble {
    /// The image as in the lease, or sandboxd's image.
    pub image: String,
    /// The error code of a request for this image: `ImageUnavailable`, or `Unavailable` for sandboxd's own image.
    pub code: ErrorCode,
    pub message: String,
    /// Failures in a row.
    pub failures: u32,
    /// The time of the next try, unix milliseconds.
    pub until: i64,
}

/// A pod that does not start, so sandboxd in it cannot be reached: it has had no address for long, or the kubelet of
/// its node refuses pods again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StuckPod {
    pub pod: String,
    /// Empty while the pod has no node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The cluster's message about it.
    pub message: String,
    /// Since when, unix milliseconds.
    pub since: i64,
}
