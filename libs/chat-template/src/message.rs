//! The parts of a prompt, before a template renders them. JSON stays text here, to keep the author's key order and
//! number spelling.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// Its name in templates, in the APIs and in records.
    pub fn word(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A message as a template sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    pub role: Role,
    pub content: String,
    /// The template's `reasoning_content`; only for an assistant.
    pub reasoning: Option<String>,
    /// Only for an assistant.
    pub tool_calls: Vec<ToolCall>,
    /// The call that this message answers; only for a tool.
    pub tool_call_id: Option<String>,
}

impl ChatMessage {
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }

    /// The result of the call `id`.
    pub fn tool(id: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            tool_call_id: Some(id.into()),
            ..Self::new(Role::Tool, content)
        }
    }
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Unique within the episode; the driver creates the ids of sampled calls.
    pub id: String,
    pub name: String,
    /// JSON text of an object, as it was sampled or sent.
    pub arguments: String,
}

/// The parts of a prompt other than messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptShape {
    /// JSON text of an array in OpenAI's function form, as its author wrote it; empty means no tools.
    pub tools: String,
    /// False: the template receives `enable_thinking=false`. True: the template's default applies.
    pub thinking: bool,
}

impl Default for PromptShape {
    fn default() -> Self {
        Self {
            tools: String::new(),
            thinking: true,
        }
    }
}
