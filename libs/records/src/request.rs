//! The request of a command-line agent that a turn answers. The rows of an episode can be derived again from its
//! requests.
//!
//! Requests are compared by checksums of their canonical form, which the driver's recording endpoint computes. All of
//! them are 16 bytes, in hexadecimal.

use serde::{Deserialize, Serialize};

/// The request that a turn answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestRecord {
    /// The API that the agent speaks: `ChatCompletions`, `Responses`, `Messages` or `GenerateContent`.
    pub api: String,
    /// Checksum of the whole request; a retry has the same.
    pub key: String,
    /// Checksum of its tools.
    pub tools: String,
    /// Checksum of its messages.
    pub messages: String,
    /// Checksum of its messages and the answer, in the form that a request which extends this one has.
    pub answered: String,
    /// The same, for an agent that leaves out the answer's reasoning; absent for an answer without reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_without_reasoning: Option<String>,
    /// Checksum of the answer alone, without its reasoning; absent if it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// Why the turn does not continue a row; absent if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
    /// The number of messages after the last answer that are not results of its calls, if it had calls: the agent's
    /// reminders.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub injected: u32,
    /// Settings that the agent requested, other than the run's sampling settings; they were overruled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overruled: Vec<Overruled>,
}

/// Why a turn opened a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Branch {
    /// The first turn of the episode.
    First,
    /// A separate conversation: it repeats no answer. A sub-agent, a side question, a summary.
    Conversation,
    /// Other tools, or another token limit, for a known history.
    OtherSettings,
    /// The last answer came back without its reasoning, which the chat template would show.
    DroppedReasoning,
    /// An answer came back with changed text or calls.
    ChangedAnswer,
    /// An answer was left out, and the conversation continued from the request before it.
    LeftOutAnswer,
    /// It continues after an answer that another turn already continued.
    SecondContinuation,
    /// Answers came back in a changed history: it was compacted, cut or reordered, or results in it were shortened.
    ChangedHistory,
}

/// A field of a request and its value, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overruled {
    pub field: String,
    pub value: String,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
