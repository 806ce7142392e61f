//! What a gateway asks of sandboxd for its own sake: what the sandbox can reach and use, and whether something runs in
//! it.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Most addresses in one probe.
pub const MAX_PROBED: usize = 32;

/// Try to connect to each address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProbeRequest {
    pub addresses: Vec<SocketAddr>,
    /// For all of them together.
    pub timeout_millis: u64,
}

/// What a sandbox found out about its walls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeReply {
    /// Where a connection came about.
    pub reached: Vec<SocketAddr>,
    pub limits: Limits,
}

/// What the kernel bounds, as the sandbox's control group says it. None: no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Thousandths of a processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Root inside is somebody else outside.
    pub user_namespace: bool,
}

/// The activity in a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// Commands that run, and sessions in which another program than their first has the terminal or an answer is
    /// waited for.
    pub running: u32,
}
