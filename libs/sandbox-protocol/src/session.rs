//! Programs that are talked to: a shell, a debugger, behind a terminal.
//!
//! Nothing tells for certain that a program waits for input. Two things show it: a prompt that the caller describes,
//! and silence.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Begin a session. The same id answers the session that is there.
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
    /// As for a command; `TERM` is `dumb` unless given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// As for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// As for a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activate: Option<String>,
}

/// Type something, and wait until the program seems to want more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionInput {
    pub session: String,
    /// Chosen by the caller, unique within the session: asking again with it types nothing and gets the first reply.
    pub id: String,
    /// As typed, so a line needs its newline. A terminal takes no line of more than 4095 bytes. Empty: only wait.
    pub text: String,
    /// A regular expression for the prompt, sought at the end of what was printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// With `prompt`: how long it has to stand there. Without: after so long a silence the program is taken to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_millis: Option<u64>,
    /// The reply comes after so long at the latest; the program runs on.
    pub timeout_millis: u64,
}

/// What was printed since the last reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionReply {
    /// Of the input.
    pub id: String,
    pub output: String,
    /// Bytes left out between head and tail.
    pub omitted_bytes: u64,
    pub until: Until,
    /// Another process than the session's first has the terminal: a shell still runs something.
    pub busy: bool,
    /// How the program ended, where it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// What ended the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Until {
    Prompt,
    Idle,
    Timeout,
    Ended,
}

/// End a session and all that it has started. One that is not there has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CloseRequest {
    pub id: String,
}
