//! The parts of a turn's messages that neither its texts nor its ids hold.
//!
//! The driver records them with each turn. With them an episode can be written as the messages of a chat API
//! ([`crate::dataset`]), also for a model with another tokenizer or chat template.

use serde::{Deserialize, Serialize};

/// Tags that models write around their reasoning, and before a call.
pub const THINK: &str = "<think>";
pub const THOUGHT: &str = "</think>";
pub const CALL: &str = "<tool_call>";
/// Stands between the messages of an observation in its text.
pub const BETWEEN: &str = "\n\n";

/// The parts of one turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChatTurn {
    /// Only on a turn that opens a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<ChatPrompt>,
    /// Of each message of the turn's opening; empty if all of them are only texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub opening: Vec<MessageParts>,
    /// The text of an answer with calls, without its reasoning and its calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The messages of the observation; empty if it is one message of the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observation: Vec<ObservedMessage>,
    /// The server returned text. The ids are the chat template's and the logprobs are 0: nothing may be trained on
    /// them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub text_only: bool,
}

/// The parts of a row's prompt other than messages, and where its messages begin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChatPrompt {
    /// JSON text of an array in OpenAI's function form; empty without tools.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tools: String,
    /// False: the chat template received `enable_thinking=false`.
    pub thinking: bool,
    /// The turn whose answer precedes the opening; absent if the row begins with the opening. The history that a
    /// built-in loop trimmed or stripped follows from its turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u32>,
    /// The history has earlier answers without their reasoning.
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_reasoning: bool,
}

/// The parts of a message besides role and text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageParts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<CalledTool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// One tool call in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalledTool {
    /// Its result refers to this id; unique within the episode.
    pub id: String,
    pub name: String,
    /// JSON text of an object.
    pub arguments: String,
}

/// A message of an observation. Its text is the next `bytes` bytes of the observation's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedMessage {
    pub role: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    pub bytes: usize,
}

/// Splits an answer into reasoning and the rest. The opening tag may be missing, because a template may have opened the
/// reasoning in the prompt; then a closing tag after a call does not count, because an argument may spell it. Reasoning
/// without a closing tag is the whole answer.
pub fn reasoning_of(answer: &str) -> (Option<&str>, &str) {
    let opened = answer.trim_start().strip_prefix(THINK);
    let (reasoning, rest) = match (opened, answer.split_once(THOUGHT)) {
        (Some(opened), _) => opened.split_once(THOUGHT).unwrap_or((opened, "")),
        (None, Some((reasoning, rest))) if !reasoning.contains(CALL) => (reasoning, rest),
        (None, _) => return (None, answer),
    };
    (Some(reasoning), rest.trim_start_matches('\n'))
}

fn is_false(value: &bool) -> bool {
    !*value
}
