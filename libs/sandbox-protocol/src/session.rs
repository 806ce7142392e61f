//! Interactive programs behind a terminal: a shell, a debugger.
//!
//! No signal tells for certain that a program waits for input. Two things indicate it: a prompt that the caller
//! describes, and silence.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A session to start. A second request with the same id gets the existing session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRequest {
    /// Chosen by the caller, unique within the lease.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256)))]
    pub id: String,
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1), extend("prefixItems" = [{"type": "string", "minLength": 1}]))
    )]
    pub argv: Vec<String>,
    /// As for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// As for a command; `TERM` is `dumb` by default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// As for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// As for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activate: Option<String>,
}

/// Input for a session. The reply comes when the program seems to wait for more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionInput {
    pub session: String,
    /// Chosen by the caller, unique within the session: a second request types nothing and gets the first reply.
    pub id: String,
    /// The typed text, with its newline. A terminal takes lines of at most 4095 bytes. Empty: only wait.
    pub text: String,
    /// A regular expression for the prompt, matched at the end of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// With `prompt`: the time that it must stay. Without: after this time without output the program is taken to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_millis: Option<u64>,
    /// The reply comes after this time at the latest; the program continues.
    pub timeout_millis: u64,
}

/// The output since the last reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionReply {
    /// The input's id.
    pub id: String,
    pub output: String,
    /// Bytes left out between head and tail.
    pub omitted_bytes: u64,
    pub until: Until,
    /// Whether another process than the session's first has the terminal: a shell still runs a program.
    pub busy: bool,
    /// The end of the program, if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// Why the wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Until {
    Prompt,
    Idle,
    Timeout,
    Ended,
}

/// A session to end, with all of its processes. A session that does not exist counts as ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CloseRequest {
    pub id: String,
}
