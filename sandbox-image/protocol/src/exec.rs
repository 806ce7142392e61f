//! Commands in a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Run a command. The same id answers the first result, however often it is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecRequest {
    /// Chosen by the caller, unique within the lease.
    pub id: String,
    pub argv: Vec<String>,
    /// Default: the image's working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Added to the container's own environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// After so long the whole process tree is killed; what it had printed is kept.
    pub timeout_seconds: u64,
    /// Output kept, head and tail; default [`crate::DEFAULT_OUTPUT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<u64>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecResult {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub timed_out: bool,
    /// stdout and stderr in the order they were written; bytes that are no UTF-8 are replaced.
    pub output: String,
    /// Bytes left out between head and tail.
    pub omitted_bytes: u64,
    pub duration_millis: u64,
    /// Which limit killed it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killed: Option<Killed>,
}

/// Which limit killed a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Killed {
    OutOfMemory,
    Timeout,
    DiskFull,
    PidLimit,
}

/// Binds sandboxd to a lease; from then on it obeys nobody else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bind {
    pub lease: String,
    pub epoch: u64,
    pub ttl_seconds: u64,
}

/// Extends a lease from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenewRequest {
    pub ttl_seconds: u64,
}
