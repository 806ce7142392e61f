//! A request of any API in one form, and its answer.
//!
//! [`super::api`] turns a body into a [`Request`], and an [`Answer`] into a body. The code in between knows no API.

pub use grpo_chat_template::{ChatMessage, Role, ToolCall};

/// What a client asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// JSON text of an array in OpenAI's function form, in the client's key order; "" without tools.
    pub tools: String,
    /// At least one.
    pub messages: Vec<ChatMessage>,
    /// At least 1.
    pub max_tokens: Option<u32>,
    pub stream: bool,
    /// Whether a stream of chat completions reports usage. The other APIs always do.
    pub include_usage: bool,
    /// Whether a stream of Gemini's API is one JSON array, and no server-sent events.
    pub array: bool,
    /// The name that the client gave, which its answer repeats; "" if it gave none.
    pub model: String,
    /// What the client asked for beyond the run's settings, and did not get: field and JSON value. A value over
    /// 1,000 bytes is replaced by its size.
    pub overruled: Vec<(String, String)>,
}

/// The answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Letters, digits, `-` and `_`, unique within the episode. Each API puts its own prefix before it.
    pub id: String,
    /// Seconds since 1970.
    pub created: i64,
    pub content: String,
    pub reasoning: Option<String>,
    pub calls: Vec<ToolCall>,
    /// The limit that the client gave cut it off; then it has no calls.
    pub cut: bool,
    pub usage: Usage,
}

/// The number of tokens of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}
