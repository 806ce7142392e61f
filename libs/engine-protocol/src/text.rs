//! `POST /agent/v1/text`: one answer of a server that speaks only text, to messages with tools and tool calls.
//!
//! The driver sends it where the engine behind an agent is such a server ([`crate::ErrorCode::TextOnly`]). Messages and
//! the response have OpenAI's shape. There are no token ids and no logprobs, so nothing can be trained on an answer.
//! Clients of a pool use [`crate::chat`].

use serde::{Deserialize, Serialize};

use crate::completion::Usage;
use crate::penalties::Penalties;

pub const TEXT_PATH: &str = "/agent/v1/text";

/// A request for one answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextRequest {
    pub messages: Vec<TextMessage>,
    /// JSON text of an array in OpenAI's function form; empty without tools.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tools: String,
    pub max_tokens: u32,
    pub temperature: f64,
    pub top_p: f64,
    /// Keep the k likeliest tokens; 0 keeps all, and is not sent to the server.
    #[serde(default)]
    pub top_k: i64,
    /// Those that change nothing are not sent to the server.
    #[serde(default)]
    pub penalties: Penalties,
    pub seed: u64,
}

/// A message, in a request or a response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextMessage {
    /// `system`, `user`, `assistant` or `tool`.
    #[serde(default)]
    pub role: String,
    #[serde(default)]
    pub content: Option<String>,
    /// Only of an assistant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The name of `reasoning_content` in the responses of some servers.
    #[serde(default, skip_serializing)]
    pub reasoning: Option<String>,
    /// Only of an assistant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<TextCall>>,
    /// The call that this message answers; only of a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl TextMessage {
    /// A message without calls.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Some(content.into()),
            ..Self::default()
        }
    }
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextCall {
    #[serde(default)]
    pub id: String,
    /// `function`, the only type.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    pub function: TextFunction,
}

impl TextCall {
    pub fn new(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            kind: function(),
            function: TextFunction {
                name: name.into(),
                arguments: arguments.into(),
            },
        }
    }
}

fn function() -> String {
    "function".to_owned()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextFunction {
    pub name: String,
    /// JSON text of an object. A server may return any text.
    pub arguments: String,
}

/// The response, without the fields that are not read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextResponse {
    pub choices: Vec<TextChoice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextChoice {
    pub message: TextMessage,
    /// `stop`, `tool_calls`, `length`, or another word of the server.
    #[serde(default)]
    pub finish_reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_from_what_servers_write_beside_it() {
        let written = r#"{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":null,"refusal":null,"reasoning":"so","tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"bash","arguments":"{}"}}]},"logprobs":null,"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_tokens_details":null}}"#;
        let read: TextResponse = serde_json::from_str(written).unwrap();
        let message = &read.choices[0].message;
        assert_eq!(
            (message.content.as_deref(), message.reasoning.as_deref()),
            (None, Some("so"))
        );
        assert_eq!(message.tool_calls, Some(vec![TextCall::new("c1", "bash", "{}")]));
    }

    #[test]
    fn a_message_is_written_as_openai_reads_it() {
        let call = TextMessage {
            tool_calls: Some(vec![TextCall::new("c1", "bash", "{}")]),
            content: None,
            ..TextMessage::new("assistant", "")
        };
        let written = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":"{}"}}]}"#;
        assert_eq!(serde_json::to_string(&call).unwrap(), written);
        let plain = serde_json::to_string(&TextMessage::new("user", "hi")).unwrap();
        assert_eq!(plain, r#"{"role":"user","content":"hi"}"#);
    }
}
