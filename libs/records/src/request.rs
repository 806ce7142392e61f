//! What a turn was asked by a command-line agent: from the requests of an episode its rows can be found again.
//!
//! Requests are compared by checksums of their canonical form, which the driver's recording endpoint computes. All of
//! them are hexadecimal, of 16 bytes.

use serde::{Deserialize, Serialize};

/// The request that a turn answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestRecord {
    /// The API that the agent speaks: `ChatCompletions`, `Responses` or `Messages`.
    pub api: String,
    /// Of the whole request: a retry has the same.
    pub key: String,
    /// Of its tools.
    pub tools: String,
    /// Of its messages.
    pub messages: String,
    /// Of its messages and the answer, as a request has them that extends this one.
    pub answered: String,
    /// The same where the agent left the answer's reasoning out; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_without_reasoning: Option<String>,
    /// Of the answer alone, without its reasoning; absent where it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// Why the turn does not continue a row; absent where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
    /// Messages behind the last answer that are no results of its calls, where it had calls: reminders of the agent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub injected: u32,
    /// What the agent asked for beyond the run's sampling settings, and did not get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overruled: Vec<Overruled>,
}

/// Why a turn opened a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Branch {
    /// The first of the episode.
    First,
    /// A conversation of its own: it repeats no answer. A sub-agent, a side question, a summary.
    Conversation,
    /// Other tools, or another limit of tokens, for a history that is known.
    OtherSettings,
    /// The last answer came back without its reasoning, which the chat template would show.
    DroppedReasoning,
    /// An answer came back with other words or calls.
    ChangedAnswer,
    /// An answer was left out, and the conversation went on from the request before it.
    LeftOutAnswer,
    /// It goes on behind an answer that another turn went on behind before.
    SecondContinuation,
    /// Answers came back in another history: it was compacted, cut or reordered, or results in it were shortened.
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
