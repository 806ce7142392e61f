//! What a gateway asks of sandboxd for its own sake: what the sandbox can reach, and whether something runs in it.

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

/// Where a connection came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeReply {
    pub reached: Vec<SocketAddr>,
}

/// What goes on in a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// Commands that run, and sessions in which another program than their first has the terminal or an answer is waited for.
    pub running: u32,
}
