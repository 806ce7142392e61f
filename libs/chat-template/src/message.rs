//! What a prompt is made of, before a template has seen it. JSON stays text here, so that the order of keys and the
//! spelling of numbers are those of its author.

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
    /// `reasoning_content` of the template; only an assistant has it.
    pub reasoning: Option<String>,
    /// Only an assistant has them.
    pub tool_calls: Vec<ToolCall>,
    /// The call that this message answers; only a tool has it.
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

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Unique within the episode; the driver issues those of sampled calls.
    pub id: String,
    pub name: String,
    /// JSON text of an object, as it was sampled or sent.
    pub arguments: String,
}

/// What a prompt has besides messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptShape {
    /// JSON text of an array in OpenAI's function form, as its author wrote it; empty: no tools.
    pub tools: String,
    /// False: the template is told `enable_thinking=false`. True: the template decides, as it does by default.
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
