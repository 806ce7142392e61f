//! The memory of an episode's tools between turns. It is recorded with each turn, so that a restarted driver has it
//! too.

use super::breakpoints::Breakpoints;
use serde::{Deserialize, Serialize};

/// As it is recorded with a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    #[serde(default, skip_serializing_if = "Breakpoints::is_empty")]
    pub breakpoints: Breakpoints,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debugger: Option<Debugger>,
}

/// A running session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Debugger {
    pub session: String,
    /// The command line that it was started with.
    pub entry: String,
    /// How many inputs were typed.
    pub inputs: u32,
    /// The file of the frame that the policy saw last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame: Option<String>,
    /// The code was rewritten since it began.
    #[serde(default)]
    pub stale: bool,
}

#[cfg(test)]
mod tests;
