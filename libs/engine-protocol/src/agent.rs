//! The weights version that a replica should serve, and the version that it serves.
//!
//! Orders are levels, not events: the driver repeats the wanted version until the status reports it as served.

use serde::{Deserialize, Serialize};

/// `PUT /agent/v1/weights`: serve this version from now on. `PUT /agent/v1/prefetch`: pull it to local disk; the served
/// version does not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WeightsOrder {
    /// `<lineage>-v<step>`.
    pub version: String,
    /// URL of the folder with `manifest.json` and its files, such as `http://demo-driver:8070/weights/a-v1`.
    pub source: String,
    /// SHA-256 of the bytes of `manifest.json`, lower-case hex.
    pub manifest_sha256: String,
    /// The replicas that get this order and pass its files on to each other. Left out: all files come from `source`.
    /// Only for agents whose status has `relays`: others refuse the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<Relay>,
}

impl WeightsOrder {
    /// Whether both orders are for the same files of the same source; other agents may pass them on.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.version, &self.source, &self.manifest_sha256) == (&other.version, &other.source, &other.manifest_sha256)
    }
}

/// Agents that pass chunks of files on to each other, so that the source sends each file about once instead of once for
/// each of them. Chunk `c` of a version's file `f` is fetched from the source by the member `(c + f) %
/// members.len()`, and by the others from that member: `GET /agent/v1/chunks/<version>/<file>/<c>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Relay {
    /// Base URLs of the agents, in the same order for all of them.
    pub members: Vec<String>,
    /// Index of the agent that gets this order.
    pub own: usize,
}

impl Relay {
    /// Bytes of a chunk; the last one of a file may be shorter.
    pub const CHUNK: u64 = 16 << 20;
    /// Most members: more than a pool has replicas.
    pub const MOST: usize = 1024;
}

/// `PUT /agent/v1/sleep`: the engine gives the memory of its devices back and samples nothing, or takes it up again.
///
/// A level, as an order of weights is: the driver repeats it until the status shows it. An agent without this order
/// leaves its engine as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SleepOrder {
    pub asleep: bool,
}

/// `GET /agent/v1/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// A new value means a new process, which knows none of the earlier orders.
    pub instance: String,
    /// The version that the engine reports. `None` while the engine does not answer, or is asleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<String>,
    /// The version of the last order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    pub state: AgentState,
    /// What the agent waits for or what failed, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Checksum of the loaded tensors, as the engine reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_sha256: Option<String>,
    /// The version of the last `PUT /agent/v1/prefetch`, once all of it is on local disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulled: Option<String>,
    /// Whether the last load changed the tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
    /// Whether it passes files on to other agents, and gets files from them: see [`Relay`].
    #[serde(default)]
    pub relays: bool,
}

impl AgentStatus {
    /// The status of an agent whose engine serves this version and that has no order.
    pub fn serving(version: &str) -> Self {
        Self {
            instance: "instance".to_owned(),
            serving: Some(version.to_owned()),
            wanted: None,
            state: AgentState::Idle,
            message: None,
            loaded_sha256: None,
            pulled: None,
            changed: None,
            relays: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentState {
    /// The engine does not answer yet, or has stopped answering.
    Booting,
    /// The engine serves the wanted version, or no version is wanted.
    Idle,
    Pulling,
    Loading,
    /// The engine has given the memory of its devices back, as ordered, and serves nothing until it is told to wake up.
    Asleep,
    /// The last attempt failed; `serving` is still served. The agent retries a few times, and again on the next order.
    Failed,
}

#[cfg(test)]
mod tests;
