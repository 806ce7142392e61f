//! The gateway's own questions to sandboxd: what the sandbox can reach and use, and whether a command runs in it.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Maximum addresses in one probe.
pub const MAX_PROBED: usize = 32;

/// Try to connect to each address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProbeRequest {
    pub addresses: Vec<SocketAddr>,
    /// For all addresses together.
    pub timeout_millis: u64,
}

/// The reachable addresses and the limits of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeReply {
    /// Addresses that accepted a connection.
    pub reached: Vec<SocketAddr>,
    pub limits: Limits,
}

/// The kernel's limits, read from the sandbox's control group. `None`: no limit.
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
    /// Root inside the sandbox is another user outside.
    pub user_namespace: bool,
}

/// The activity in a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// Commands that run, and sessions that are busy: an input waits for its answer, or another program than the
    /// session's first has the terminal.
    pub running: u32,
}
