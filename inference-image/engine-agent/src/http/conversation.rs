//! Reads a conversation as ordinary clients of OpenAI's API send it.
//!
//! Engines get a [`ChatRequest`], whose fields are all honoured. A client also sends fields with values that change
//! nothing, which are dropped, and other spellings, which are translated. What would change the answer and cannot be
//! honoured is refused with the field's name.

use grpo_engine_protocol::{ChatRequest, ErrorBody, ErrorCode};
use serde_json::{Map, Value, json};

/// Fields that would change the answer, with what to do instead.
const REFUSED: [(&str, &str); 11] = [
    ("stream", "an answer comes whole: set stream to false, or leave it out"),
    ("stream_options", "an answer comes whole: leave it out"),
    (
        "n",
        "an answer has one choice: leave it out, and send the request again for another answer",
    ),
    (
        "stop",
        "only the model's own end tokens end an answer: leave it out, and cut the answer at the client",
    ),
    ("tools", NO_TOOLS),
    ("tool_choice", NO_TOOLS),
    ("functions", NO_TOOLS),
    ("response_format", "an answer is free text: leave it out"),
    (
        "logprobs",
        "answers in text have no logprobs: leave it out, or send token ids to /v1/completions",
    ),
    ("top_logprobs", "answers in text have no logprobs: leave it out"),
    ("logit_bias", "it is not supported: leave it out"),
];
const NO_TOOLS: &str = "the model is not shown tools, and answers have no tool calls: leave it out, and use an agent \
                        that writes its commands as text";

/// The request in a client's body.
pub(super) fn read(body: &[u8]) -> Result<ChatRequest, ErrorBody> {
    let mut asked: Map<String, Value> = serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))?;
    asked.retain(|name, value| !changes_nothing(name, value));
    if let Some((name, why)) = REFUSED.iter().find(|(name, _)| asked.contains_key(*name)) {
        return Err(refused(name, why));
    }
    let mut limit: Option<u64> = None;
    // The old name and the new one; the lower limit holds.
    for name in ["max_tokens", "max_completion_tokens"] {
        let Some(given) = asked.remove(name) else { continue };
        let given = given
            .as_u64()
            .ok_or_else(|| refused(name, "it is not a number of tokens"))?;
        limit = Some(limit.map_or(given, |limit| limit.min(given)));
    }
    if let Some(limit) = limit {
        asked.insert("max_tokens".to_owned(), json!(limit.min(u32::MAX.into())));
    }
    if let Some(Value::Array(messages)) = asked.get_mut("messages") {
        for (at, message) in messages.iter_mut().enumerate() {
            as_text(at, message)?;
        }
    }
    serde_json::from_value(Value::Object(asked)).map_err(|error| invalid(error.to_string()))
}

/// Whether a field of the request has no effect on the answer.
fn changes_nothing(name: &str, value: &Value) -> bool {
    match name {
        _ if value.is_null() => true,
        // Labels for the owner of the server.
        "user" | "metadata" | "safety_identifier" | "prompt_cache_key" => true,
        "stream" | "logprobs" | "store" => *value == json!(false),
        "n" => *value == json!(1),
        "top_logprobs" => *value == json!(0),
        "stop" | "tools" | "functions" => *value == json!([]),
        "logit_bias" => *value == json!({}),
        // Without tools.
        "tool_choice" => *value == json!("none") || *value == json!("auto"),
        "parallel_tool_calls" => value.is_boolean(),
        "response_format" => *value == json!({"type": "text"}),
        "modalities" => *value == json!(["text"]),
        "service_tier" => *value == json!("auto") || *value == json!("default"),
        _ => false,
    }
}

/// Brings a message to a role and a text.
fn as_text(at: usize, message: &mut Value) -> Result<(), ErrorBody> {
    let field = |name: &str| format!("messages[{at}].{name}");
    let Value::Object(fields) = message else {
        return Err(refused(
            &format!("messages[{at}]"),
            "it is not an object with role and content",
        ));
    };
    let role = match fields.get("role").and_then(Value::as_str) {
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool" | "function") => {
            return Err(refused(
                &field("role"),
                "results of tools are not taken: send them with the role user",
            ));
        }
        _ => {
            return Err(refused(
                &field("role"),
                "a role is system, developer, user or assistant",
            ));
        }
    };
    fields.retain(|name, value| match name.as_str() {
        "role" | "content" => true,
        // LiteLLM returns here what the server's earlier answer had beside the text.
        "provider_specific_fields" => false,
        _ => !is_empty(value),
    });
    if let Some(name) = fields.keys().find(|name| !["role", "content"].contains(&name.as_str())) {
        let why = match name.as_str() {
            "tool_calls" | "function_call" => NO_TOOLS,
            _ => "the model is shown role and content only: remove it",
        };
        return Err(refused(&field(name), why));
    }
    let content = match fields.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Option<Vec<&str>> = parts.iter().map(text_of).collect();
            let why = "the model reads text only: send parts of type text";
            texts.ok_or_else(|| refused(&field("content"), why))?.join("\n")
        }
        _ => return Err(refused(&field("content"), "a content is a text or a list of texts")),
    };
    *message = json!({"role": role, "content": content});
    Ok(())
}

/// The text of a part of a message. Marks for a cache beside it have no effect.
fn text_of(part: &Value) -> Option<&str> {
    let kind = part.get("type").and_then(Value::as_str);
    part.get("text")
        .and_then(Value::as_str)
        .filter(|_| kind == Some("text"))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn refused(field: &str, why: &str) -> ErrorBody {
    invalid(format!("{field}: {why}"))
}

fn invalid(message: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::InvalidRequest, message)
}

#[cfg(test)]
mod tests;
