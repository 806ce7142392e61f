//! One turn of an episode, durable before the next one begins.

use crate::batch::ExpertsSpan;
use crate::record::{Record, Writer};
use serde::{Deserialize, Serialize};

/// `…/turns/<t>.json`: what was sampled, what was done, what came back; as ids, with the text beside it for people.
///
/// Turn 0 carries the ids of the whole prompt. From then on the prompt of a turn is everything before it:
/// prompt, sampled and observation ids of all earlier turns, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnRecord {
    pub schema: u32,
    pub writer: Writer,
    pub episode: String,
    pub turn: u32,
    /// The lease the turn ran under: an episode may go on after a restart only in the same sandbox.
    pub lease: String,
    /// How many tokens the engine was given.
    pub prompt_length: usize,
    /// The prompt's ids; only turn 0 has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompt: Vec<u32>,
    pub seed: u64,
    pub sampled: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub weights: String,
    /// Why sampling ended, in the engine's words: `stop` or `length`.
    pub finish: String,
    /// Which experts the tokens went through that no earlier turn had; where the run records that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertsSpan>,
    /// What was sampled, as text.
    pub text: String,
    pub action: TurnAction,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecSummary>,
    /// Glue and observation: ids that nobody sampled. Empty on the last turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observation: Vec<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub observation_text: String,
    /// Set on the last turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<crate::episode::EpisodeEnd>,
    /// Milliseconds that sampling and executing took, and how much of them was waiting for the infrastructure.
    pub sample_millis: u64,
    pub exec_millis: u64,
    pub waited_millis: u64,
    /// Seconds since the epoch.
    pub at: i64,
}

impl Record for TurnRecord {}

/// What the policy's text was taken to mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum TurnAction {
    /// Exactly one block: its command.
    Command { command: String },
    /// None, or several: nothing was run.
    FormatError { blocks: u32 },
    /// The answer was cut off, so what it would have said is not known.
    Truncated,
}

/// What running the command came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecSummary {
    pub exec: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub timed_out: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killed: Option<String>,
    pub output_bytes: u64,
    pub omitted_bytes: u64,
    pub duration_millis: u64,
}
