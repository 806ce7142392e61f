//! A request of any API in one form, and its answer.
//!
//! [`super::api`] makes a [`Request`] of a body, and a body of an [`Answer`]. What lies between knows no API.

pub use grpo_chat_template::{ChatMessage, Role, ToolCall};

/// What a client asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// JSON text of an array in OpenAI's function form, in the client's key order; "" where there are no tools.
    pub tools: String,
    /// At least one.
    pub messages: Vec<ChatMessage>,
    /// At least 1.
    pub max_tokens: Option<u32>,
    pub stream: bool,
    /// Chat completions say their usage in a stream only on request. The other APIs always do.
    pub include_usage: bool,
    /// The name that the client gave, which its answer repeats; "" if it gave none.
    pub model: String,
    /// What the client asked for beyond the run's settings, and did not get: field and JSON value. A value over
    /// 1,000 bytes is replaced by its size.
    pub overruled: Vec<(String, String)>,
}

/// What goes back to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Letters, digits, `-` and `_`, unique within the episode. Each API puts its own prefix before it.
    pub id: String,
    /// Seconds since 1970.
    pub created: i64,
    pub content: String,
    pub reasoning: Option<String>,
    pub calls: Vec<ToolCall>,
    pub usage: Usage,
}

/// How many tokens a request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}
