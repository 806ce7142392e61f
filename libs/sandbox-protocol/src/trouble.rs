//! Images that cannot be had, as a gateway shows them.

use serde::{Deserialize, Serialize};

use crate::ErrorCode;

/// An image that could not be pulled and is left alone for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ImageTrouble {
    /// The task's image as leases name it, or sandboxd's.
    pub image: String,
    /// What whoever asks for it is answered: `ImageUnavailable`, or `Unavailable` where sandboxd's image is the one.
    pub code: ErrorCode,
    pub message: String,
    /// Failures in a row.
    pub failures: u32,
    /// When it is tried again, unix milliseconds.
    pub until: i64,
}
