//! `POST /v1/chat/completions` in OpenAI's shape: text in, text out, in the model's own chat template.
//!
//! For answers that are read and not trained on, such as those of a run's judge. Tokens for training are sampled by
//! [`crate::completion`], as token ids. The request type has only fields that are honoured; unknown fields are refused.

use serde::{Deserialize, Serialize};

use crate::completion::Usage;
use crate::penalties::{Penalties, of_request};

/// A request for one answer to a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    /// As in [`crate::CompletionRequest`].
    #[serde(default)]
    pub model: String,
    pub messages: Vec<ChatText>,
    /// Maximum number of tokens in the answer, its end token included. Absent: the rest of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    #[serde(default = "one")]
    pub temperature: f64,
    #[serde(default = "one")]
    pub top_p: f64,
    /// Keep the k likeliest tokens; absent keeps all. OpenAI's own servers do not support it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// As in [`crate::Penalties`]; absent changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
    /// Without a seed the engine draws one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl ChatRequest {
    /// The sampling settings beyond temperature, `top_p` and `top_k`.
    pub fn penalties(&self) -> Penalties {
        of_request(
            self.min_p,
            self.presence_penalty,
            self.frequency_penalty,
            self.repetition_penalty,
        )
    }

    /// Sets the penalties. A penalty that changes nothing is not sent.
    pub fn with_penalties(self, penalties: Penalties) -> Self {
        let [min_p, presence_penalty, frequency_penalty, repetition_penalty] = penalties.given();
        Self {
            min_p,
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            ..self
        }
    }
}

fn one() -> f64 {
    1.0
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatText {
    pub role: ChatRole,
    pub content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChatRole {
    System,
    User,
    Assistant,
}

/// The response, without the fields that the caller does not read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatResponse {
    #[serde(default)]
    pub model: String,
    pub choices: Vec<ChatChoice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatChoice {
    #[serde(default)]
    pub index: u32,
    pub message: ChatAnswer,
    /// `stop`, `length`, or another word of the server.
    #[serde(default)]
    pub finish_reason: Option<String>,
}

/// The model's message. The content may be absent if the server separates the reasoning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatAnswer {
    #[serde(default = "assistant")]
    pub role: String,
    #[serde(default)]
    pub content: Option<String>,
}

fn assistant() -> String {
    "assistant".to_owned()
}

impl ChatAnswer {
    /// An answer with this text.
    pub fn text(content: String) -> Self {
        Self {
            role: assistant(),
            content: Some(content),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_written_as_openai_reads_it() {
        let request = ChatRequest {
            model: "judge".into(),
            messages: vec![ChatText {
                role: ChatRole::User,
                content: "good?".into(),
            }],
            max_tokens: Some(8),
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: None,
            presence_penalty: None,
            frequency_penalty: None,
            repetition_penalty: None,
            seed: Some(3),
        };
        let written = r#"{"model":"judge","messages":[{"role":"user","content":"good?"}],"max_tokens":8,"temperature":1.0,"top_p":1.0,"seed":3}"#;
        assert_eq!(serde_json::to_string(&request).unwrap(), written);
        assert_eq!(serde_json::from_str::<ChatRequest>(written).unwrap(), request);
        let biased = written.replace("\"seed\"", "\"logit_bias\"");
        assert!(serde_json::from_str::<ChatRequest>(&biased).is_err());
        let penalties = Penalties {
            min_p: 0.1,
            ..Penalties::default()
        };
        let written = serde_json::to_value(request.with_penalties(penalties)).unwrap();
        assert_eq!(
            (&written["min_p"], written.get("presence_penalty")),
            (&0.1.into(), None)
        );
    }

    #[test]
    fn an_answer_is_read_from_what_servers_write_beside_it() {
        let written = r#"{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":null,"reasoning_content":"so"},"logprobs":null,"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_tokens_details":null}}"#;
        let read: ChatResponse = serde_json::from_str(written).unwrap();
        assert_eq!(read.choices[0].message.content, None);
    }
}
