//! Images that cannot be had and pods that do not start, as a gateway shows them.

use serde::{Deserialize, Serialize};

use crate::ErrorCode;

/// An image that could not be pulled and is left alone for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ImageTrouble {
    /// The task's image as leases name it, or sandboxd's.
    pub image: String,
    /// The error code of a request for this image: `ImageUnavailable`, or `Unavailable` for sandboxd's own image.
    pub code: ErrorCode,
    pub message: String,
    /// Failures in a row.
    pub failures: u32,
    /// When it is tried again, unix milliseconds.
    pub until: i64,
}

/// A pod that has had no address for long: sandboxd in it cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StuckPod {
    pub pod: String,
    /// Empty while no node has been found for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// What the cluster says about it.
    pub message: String,
    /// Since when, unix milliseconds.
    pub since: i64,
}
