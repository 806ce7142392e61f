//! Which weights a replica should serve, and which it does.
//!
//! Orders are levels, not events: the driver repeats the version it wants until the status says that it serves.

use serde::{Deserialize, Serialize};

/// `PUT /agent/v1/weights`: serve this version from now on. `PUT /agent/v1/prefetch`: bring it to local disk, and go on
/// serving what serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WeightsOrder {
    /// `<lineage>-v<step>`.
    pub version: String,
    /// Where `manifest.json` and the files it names are, such as `http://demo-driver:8070/weights/a-v1`.
    pub source: String,
    /// Of the bytes of `manifest.json`, lower-case hex.
    pub manifest_sha256: String,
}

/// `GET /agent/v1/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// Another value means another process: everything told to the earlier one is forgotten.
    pub instance: String,
    /// The version the engine says it serves; nothing while the engine does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<String>,
    /// The version of the last order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    pub state: AgentState,
    /// What is being waited for or what failed, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Checksum of the tensors the engine holds, by its own account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_sha256: Option<String>,
    /// The version that the last `PUT /agent/v1/prefetch` named, once it is whole on local disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulled: Option<String>,
    /// Whether the last load brought other tensors than those before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentState {
    /// The engine does not answer (yet, or any more).
    Booting,
    /// The engine serves what is wanted, or nothing in particular is wanted.
    Idle,
    Pulling,
    Loading,
    /// The last attempt failed; `serving` still serves. Retried by itself a few times, and again on the next order.
    Failed,
}

#[cfg(test)]
mod tests;
