//! Commands in a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes_as_base64;

/// A command. A second request with the same id gets the first result.
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
    /// Added to the container's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Name or number of the command's user, optionally with `:group`. Default: the image's user. Another user needs an
    /// image whose user is root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A shell script whose environment the command gets, such as `. /opt/miniconda3/bin/activate testbed`. It runs
    /// once in a sandbox, for all commands that name it; its last command must succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// After this time the whole process tree is killed; its output is kept.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 86400)))]
    pub timeout_seconds: u64,
    /// Bytes of output that are kept, head and tail. Default: [`crate::DEFAULT_OUTPUT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<u64>,
}

/// The result of a command.
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
    /// stdout and stderr in the order they were written; bytes that are not UTF-8 are replaced.
    pub output: String,
    /// Bytes left out between head and tail.
    pub omitted_bytes: u64,
    pub duration_millis: u64,
    /// The limit that killed the command, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killed: Option<Killed>,
}

/// The limit that killed a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Killed {
    OutOfMemory,
    Timeout,
    DiskFull,
    PidLimit,
    /// A request, such as a kill or the end of the lease.
    Request,
}

/// The state of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecState {
    pub id: String,
    /// Absent while the command runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ExecResult>,
}

/// Kills a command, or sends it a signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KillRequest {
    pub id: String,
    /// A signal for the command's process group. Default: the whole process tree is killed, also processes that an
    /// ended command left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 31)))]
    pub signal: Option<i32>,
}

/// A part of a command's output, by its place in the whole output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputPart {
    pub id: String,
    /// The first byte of `data`. Later than requested if the bytes before it are not kept.
    pub from: u64,
    #[serde(with = "bytes_as_base64")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub data: Vec<u8>,
    /// The first byte of the next part.
    pub next: u64,
    /// Bytes of output until now.
    pub written: u64,
    /// Whether the output is complete.
    pub ended: bool,
}

/// Binds sandboxd to a lease: it then accepts requests of this lease only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bind {
    pub lease: String,
    pub epoch: u64,
    pub ttl_seconds: u64,
}

/// Gives a lease this much time from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenewRequest {
    pub ttl_seconds: u64,
}
