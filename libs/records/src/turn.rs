//! One turn of an episode, durable before the next one begins.
//!
//! While the agent works each turn is a file of its own, with the ids that it adds and no others. When the episode has
//! ended its rows hold every id ([`crate::rows`]) and its record every turn without ids ([`crate::episode`]); the
//! turns' files are removed.

use crate::record::{Record, Writer};
use crate::request::RequestRecord;
use crate::rows::ExpertsSpan;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// `…/turns/<t>.json`: what was sampled, what was done, what came back; as ids, with the text beside it for people.
///
/// A turn that opens a row carries the ids of its whole prompt. From then on the prompt of a turn in that row is
/// everything before it: prompt, sampled and observation ids of the row's earlier turns, in order, and then its own
/// prompt ids, if it has some. Built-in loops write what follows an answer as that turn's observation; behind a
/// command-line agent it is known when the next request comes, and is that one's prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnRecord {
    pub schema: u32,
    pub writer: Writer,
    pub episode: String,
    pub turn: u32,
    /// The lease the turn ran under: an episode may go on after a restart only in the same sandbox.
    pub lease: String,
    /// The earlier turns that its history is without; where the history was trimmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
    /// The messages that the prompt's ids were rendered from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub opening: Vec<Message>,
    /// Which row of the episode has the answer. The first turn of a row opens it.
    #[serde(default)]
    pub row: u32,
    /// How many tokens the engine was given.
    pub prompt_length: usize,
    /// How many ids were sampled, and how many are glue and observation.
    pub sampled_length: usize,
    pub observation_length: usize,
    /// The prompt's ids beyond what the row has already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompt: Vec<u32>,
    pub seed: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sampled: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<f32>,
    pub weights: String,
    /// Why sampling ended, in the engine's words: `stop` or `length`.
    pub finish: String,
    /// Which experts the tokens went through that no earlier turn had; where the run records that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertsSpan>,
    /// What was sampled, as text.
    pub text: String,
    /// What a command-line agent asked for; no other agent has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestRecord>,
    pub action: TurnAction,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecSummary>,
    /// Glue and observation: ids that the policy did not sample. Empty on the last turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observation: Vec<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub observation_text: String,
    /// What the agent has to know in its next turns, such as breakpoints; only the agent reads it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub memory: Value,
    /// Set on the last turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EpisodeEnd>,
    /// Milliseconds that sampling and executing took, and how much of them was waiting for the infrastructure.
    pub sample_millis: u64,
    pub exec_millis: u64,
    pub waited_millis: u64,
    /// Seconds since the epoch.
    pub at: i64,
}

impl Record for TurnRecord {}

impl TurnRecord {
    /// The record as it stands beside the rows that hold its ids.
    pub fn without_ids(&self) -> Self {
        Self {
            sampled_length: self.sampled.len(),
            observation_length: self.observation.len(),
            prompt: Vec::new(),
            sampled: Vec::new(),
            logprobs: Vec::new(),
            observation: Vec::new(),
            ..self.clone()
        }
    }
}

/// Turns `from..to` of an episode, left out of a history that did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    pub from: u32,
    pub to: u32,
}

/// One message, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    pub role: String,
    pub content: String,
    /// Tokens this message takes in the sequence, glue included.
    pub tokens: usize,
    /// For what the policy wrote: what its command came to, such as `exit 1 in 120 ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What the policy's text was taken to mean. Each agent has kinds of its own; only an agent reads its payloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnAction {
    pub kind: String,
    /// As the kind has it; left out where the kind says everything.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub payload: Value,
}

impl TurnAction {
    /// A shell command: `{command}`.
    pub const COMMAND: &str = "Command";
    /// An answer without an action, or with several: `{blocks}`, how many there were. Nothing was run.
    pub const FORMAT_ERROR: &str = "FormatError";
    /// The answer was cut off, so its action is unknown. Nothing was run.
    pub const TRUNCATED: &str = "Truncated";
    /// Calls of tools: `{calls: [{id, name, arguments}]}`, in the order of the answer; arguments as the text that was
    /// sampled.
    pub const CALLS: &str = "Calls";
    /// A call that cannot be read: `{why}`. Nothing of the answer was run.
    pub const MALFORMED_CALL: &str = "MalformedCall";
    /// An answer without a call, which a command-line agent takes for the end of its work or for a report.
    pub const ANSWER: &str = "Answer";

    pub fn new(kind: impl Into<String>, payload: Value) -> Self {
        Self {
            kind: kind.into(),
            payload,
        }
    }

    pub fn command(command: impl Into<String>) -> Self {
        Self::new(Self::COMMAND, json!({ "command": command.into() }))
    }

    pub fn format_error(blocks: u32) -> Self {
        Self::new(Self::FORMAT_ERROR, json!({ "blocks": blocks }))
    }

    pub fn truncated() -> Self {
        Self::new(Self::TRUNCATED, Value::Null)
    }

    pub fn calls(calls: &[CalledTool]) -> Self {
        Self::new(Self::CALLS, json!({ "calls": calls }))
    }

    pub fn malformed_call(why: impl Into<String>) -> Self {
        Self::new(Self::MALFORMED_CALL, json!({ "why": why.into() }))
    }

    pub fn answer() -> Self {
        Self::new(Self::ANSWER, Value::Null)
    }

    /// The calls of an action of that kind, in order.
    pub fn as_calls(&self) -> Option<Vec<CalledTool>> {
        (self.kind == Self::CALLS).then(|| Vec::deserialize(&self.payload["calls"]).ok())?
    }

    /// Why a call could not be read; nothing for any other kind.
    pub fn malformed(&self) -> Option<&str> {
        (self.kind == Self::MALFORMED_CALL).then(|| self.payload["why"].as_str())?
    }

    /// The command of an action of that kind.
    pub fn as_command(&self) -> Option<&str> {
        (self.kind == Self::COMMAND).then(|| self.payload["command"].as_str())?
    }

    /// How many actions an answer had that should have had one; nothing for any other kind.
    pub fn blocks(&self) -> Option<u64> {
        (self.kind == Self::FORMAT_ERROR).then(|| self.payload["blocks"].as_u64())?
    }

    /// False where the answer has no action that could be carried out.
    pub fn is_action(&self) -> bool {
        ![Self::FORMAT_ERROR, Self::TRUNCATED, Self::MALFORMED_CALL].contains(&self.kind.as_str())
    }
}

/// One call of a tool in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalledTool {
    /// What its result refers to; unique within the episode.
    pub id: String,
    pub name: String,
    /// JSON text of an object.
    pub arguments: String,
}

/// Why an agent's loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EpisodeEnd {
    /// The command's output began with the sentinel, the tool that runs the task's tests saw all of them pass, or the
    /// command-line agent ended by itself.
    Submitted,
    TurnLimit,
    /// There was no room left for an answer or for the observation.
    ContextFull,
    /// The episode had as many tokens after its first prompt as it may have.
    TokenLimit,
    /// The policy's own time was up.
    EpisodeTimeout,
    /// The policy used its sandbox up: memory, disk or processes.
    SandboxExhausted,
    /// A call that cannot be read: a command-line agent would repair it and carry it out.
    MalformedCall,
    /// An answer was cut at the tokens of one call: a command-line agent would carry out what is left of it.
    AnswerCut,
    /// A command-line agent changed its history so often that the episode has as many rows as it may have.
    RowLimit,
    /// The infrastructure gave way; the outcome says how.
    Aborted,
}

impl EpisodeEnd {
    /// True where a limit ended the episode, not the policy.
    pub fn is_truncation(self) -> bool {
        matches!(
            self,
            Self::TurnLimit
                | Self::ContextFull
                | Self::TokenLimit
                | Self::EpisodeTimeout
                | Self::AnswerCut
                | Self::RowLimit
        )
    }
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
