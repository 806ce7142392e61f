//! One turn of an episode, durable before the next one begins.
//!
//! While the agent works, each turn is a separate file with only the ids that it adds. When the episode has ended, its
//! rows hold every id ([`crate::rows`]) and its record every turn without ids ([`crate::episode`]); the turns' files
//! are removed.

mod payload;

pub use payload::ActionPayload;

use crate::chat::{CalledTool, ChatTurn};
use crate::record::{Record, Writer};
use crate::request::RequestRecord;
use crate::rows::ExpertsSpan;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// `…/turns/<t>.json`: the sampled answer, the action and the observation; as ids, with the text for display.
///
/// A turn that opens a row has the ids of its whole prompt. A later turn's prompt in that row is the prompt, sampled
/// and observation ids of the row's earlier turns, in order, and then its own prompt ids, if any. Built-in loops record
/// the ids after an answer as that turn's observation. With a command-line agent they are known only at the next
/// request, and belong to that request's prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnRecord {
    pub schema: u32,
    pub writer: Writer,
    pub episode: String,
    pub turn: u32,
    /// The lease of the turn: after a restart an episode may continue only in the same sandbox.
    pub lease: String,
    /// The earlier turns that were trimmed from its history, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
    /// The messages that the prompt's ids were rendered from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub opening: Vec<Message>,
    /// The row of the episode that contains the answer. The first turn of a row opens it.
    #[serde(default)]
    pub row: u32,
    /// The number of tokens that the engine received.
    pub prompt_length: usize,
    /// The number of sampled ids, and of glue and observation ids.
    pub sampled_length: usize,
    pub observation_length: usize,
    /// The prompt's ids that the row does not have yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompt: Vec<u32>,
    pub seed: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sampled: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<f32>,
    pub weights: String,
    /// Why sampling ended, as the engine reports it: `stop` or `length`.
    pub finish: String,
    /// The experts of the tokens that no earlier turn covers, if the run records them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertsSpan>,
    /// The sampled text.
    pub text: String,
    /// The request of a command-line agent; absent for other agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestRecord>,
    /// The parts of its messages that are in no other field. Drivers of earlier versions did not record them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<ChatTurn>,
    pub action: TurnAction,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecSummary>,
    /// Glue and observation ids, which the policy did not sample. Empty on the last turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observation: Vec<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub observation_text: String,
    /// State that the agent needs in later turns, such as breakpoints; only the agent reads it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub memory: Value,
    /// Set on the last turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EpisodeEnd>,
    /// Milliseconds of sampling and of execution, and how much of them was spent waiting for the infrastructure.
    pub sample_millis: u64,
    pub exec_millis: u64,
    pub waited_millis: u64,
    /// Unix time in seconds.
    pub at: i64,
}

impl Record for TurnRecord {}

impl TurnRecord {
    /// The record as stored beside the rows that hold its ids.
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

    /// Whether its answer came as text, so that its ids and logprobs are not a policy's.
    pub fn is_text_only(&self) -> bool {
        self.chat.as_ref().is_some_and(|chat| chat.text_only)
    }
}

/// Turns `from..to` of an episode, trimmed from a history that did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    pub from: u32,
    pub to: u32,
}

/// One message, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    pub role: String,
    pub content: String,
    /// Tokens of this message in the sequence, glue included.
    pub tokens: usize,
    /// For the policy's messages: the result of the command, such as `exit 1 in 120 ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The action parsed from the policy's text. Each agent has its own kinds; only an agent reads its payloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnAction {
    pub kind: String,
    /// The format depends on the kind; absent if the kind says everything.
    #[serde(default, skip_serializing_if = "ActionPayload::is_null")]
    pub payload: ActionPayload,
}

impl TurnAction {
    /// A shell command: `{command}`.
    pub const COMMAND: &str = "Command";
    /// An answer without an action, or with several: `{blocks}` is their number. Nothing was run.
    pub const FORMAT_ERROR: &str = "FormatError";
    /// The answer was cut off, so its action is unknown. Nothing was run.
    pub const TRUNCATED: &str = "Truncated";
    /// Tool calls: `{calls: [{id, name, arguments}]}`, in the order of the answer; arguments are the sampled text.
    pub const CALLS: &str = "Calls";
    /// A call that cannot be parsed: `{why}`. No call of the answer was run.
    pub const MALFORMED_CALL: &str = "MalformedCall";
    /// An answer without a call, which a command-line agent takes for the end of its work or for a report.
    pub const ANSWER: &str = "Answer";

    pub fn new(kind: impl Into<String>, payload: Value) -> Self {
        Self {
            kind: kind.into(),
            payload: payload.into(),
        }
    }

    pub fn command(command: impl Into<String>) -> Self {
        Self {
            kind: Self::COMMAND.to_owned(),
            payload: ActionPayload::command(command),
        }
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

    /// The calls of a [`TurnAction::CALLS`] action, in order; `None` for any other kind.
    pub fn as_calls(&self) -> Option<Vec<CalledTool>> {
        (self.kind == Self::CALLS).then(|| Vec::deserialize(self.payload.get("calls")?).ok())?
    }

    /// Why a call could not be parsed; `None` for any other kind.
    pub fn malformed(&self) -> Option<&str> {
        (self.kind == Self::MALFORMED_CALL).then(|| self.payload.text("why"))?
    }

    /// The command of a [`TurnAction::COMMAND`] action; `None` for any other kind.
    pub fn as_command(&self) -> Option<&str> {
        (self.kind == Self::COMMAND).then(|| self.payload.text("command"))?
    }

    /// How many actions an answer had instead of one; `None` for any other kind.
    pub fn blocks(&self) -> Option<u64> {
        (self.kind == Self::FORMAT_ERROR).then(|| self.payload.get("blocks")?.as_u64())?
    }

    /// False if the answer has no action that could be run.
    pub fn is_action(&self) -> bool {
        ![Self::FORMAT_ERROR, Self::TRUNCATED, Self::MALFORMED_CALL].contains(&self.kind.as_str())
    }
}

/// Why an agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EpisodeEnd {
    /// The command's output began with the sentinel, the tool that runs the task's tests saw all of them pass, or the
    /// command-line agent ended by itself.
    Submitted,
    TurnLimit,
    /// No room was left for an answer or for the observation.
    ContextFull,
    /// The episode reached its token limit, counted after its first prompt.
    TokenLimit,
    /// The policy's own time ran out.
    EpisodeTimeout,
    /// The policy exhausted its sandbox: memory, disk or processes.
    SandboxExhausted,
    /// A call cannot be parsed: a command-line agent would repair and run it.
    MalformedCall,
    /// An answer was cut at the token limit of one request: a command-line agent would run the remaining part. Or a
    /// server that speaks only text refused to answer what the policy wrote.
    AnswerCut,
    /// A command-line agent changed its history so often that the episode reached its maximum number of rows.
    RowLimit,
    /// The infrastructure failed; the outcome has the cause.
    Aborted,
}

impl EpisodeEnd {
    /// True if a limit ended the episode, not the policy.
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

/// The result of a command.
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
