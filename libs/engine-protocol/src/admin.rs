//! The embedded engine's admin API. It is bound to loopback, so only the agent in the same pod reaches it.

use serde::{Deserialize, Serialize};

/// `POST /admin/load`: serve what is in `dir` (config.json, model.safetensors) as `version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadRequest {
    pub dir: String,
    pub version: String,
    /// The required checksum of the tensors. On a mismatch the engine refuses the load and keeps the earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// The engine serves `version` to every new request; running ones finish on the version that they started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadResponse {
    pub version: String,
    /// Checksum of the tensors in memory: `tensorsSha256` in a manifest.
    pub sha256: String,
}

/// `GET /admin/state`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineState {
    pub version: String,
    pub sha256: String,
    /// Earlier versions that still have running rows.
    #[serde(default)]
    pub draining: Vec<String>,
    /// Whether it has given its memory back and samples nothing: after `POST /admin/sleep`, until `POST /admin/wake`.
    /// Both have no body and answer when it is so; waking reads the version again from the folder that it was loaded
    /// from.
    #[serde(default)]
    pub asleep: bool,
    pub running: u64,
    pub waiting: u64,
    pub max_rows: u32,
    pub max_context: u32,
}
