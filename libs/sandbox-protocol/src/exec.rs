//! Commands in a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes_as_base64;

/// Run a command. The same id answers the first result, however often it is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecRequest {
    /// Chosen by the caller, unique within the lease.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 256), regex(pattern = "^[!-~]([ -~]*[!-~])?$"))
    )]
    pub id: String,
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1), extend("prefixItems" = [{"type": "string", "minLength": 1}]))
    )]
    pub argv: Vec<String>,
    /// Default: the image's working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Added to the container's own environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Name or number of the user to run as, optionally with `:group`; default: that of the image. Needs an image whose
    /// user is root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A shell script whose environment the command gets, such as `. /opt/miniconda3/bin/activate testbed`. It is run
    /// once in the sandbox, however many commands name it; its last command must succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// After so long the whole process tree is killed; what it had printed is kept.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 86400)))]
    pub timeout_seconds: u64,
    /// Output kept, head and tail; default [`crate::DEFAULT_OUTPUT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<u64>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Killed {
    OutOfMemory,
    Timeout,
    DiskFull,
    PidLimit,
    /// Somebody asked for it.
    Request,
}

/// Where a command is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecState {
    pub id: String,
    /// How it ended; none while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ExecResult>,
}

/// Ends a command, or sends it a signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KillRequest {
    pub id: String,
    /// For the command's process group. Default: the whole process tree is killed, what an ended command left running
    /// too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 31)))]
    pub signal: Option<i32>,
}

/// Part of what a command has printed so far, by its place in the whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputPart {
    pub id: String,
    /// Where `data` begins: later than asked for where what was there is not kept.
    pub from: u64,
    #[serde(with = "bytes_as_base64")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub data: Vec<u8>,
    /// Where the next part begins.
    pub next: u64,
    /// Bytes printed until now.
    pub written: u64,
    /// No more will come.
    pub ended: bool,
}

/// Binds sandboxd to a lease. From then on sandboxd accepts requests of this lease only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bind {
    pub lease: String,
    pub epoch: u64,
    pub ttl_seconds: u64,
}

/// Extends a lease from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenewRequest {
    pub ttl_seconds: u64,
}
