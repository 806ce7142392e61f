//! What a server says when it refuses a request, in OpenAI's format or in another one.
//!
//! The body of the answer goes in. Out come the server's words and what they are about: a field of the request, the
//! length of the conversation, an answer that was cut. OpenAI names the field in `param`; gateways often keep only the
//! text.

use std::time::{Duration, SystemTime};

use serde_json::Value;

/// The beginning of a message that is compared with known words, in characters. What follows may repeat the
/// conversation, whose words decide nothing here.
const COMPARED: usize = 200;
/// How much is kept of another server's answer that a gateway repeats, in characters.
const REPEATED: usize = 500;

/// Settings of a run that change what is sampled, by their names in requests.
const SETTINGS: [&str; 7] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
];
/// Codes for a field that the server does not take, at all or with this value.
const UNSUPPORTED_CODES: [&str; 3] = ["unsupported_parameter", "unsupported_value", "unknown_parameter"];
/// Words for it, as [`ServerRefusal::compared`] writes them.
const UNSUPPORTED_WORDS: [&str; 8] = [
    "unsupported",
    "not support",
    "n't support",
    "unrecognized",
    "unknown",
    "extra inputs",
    "extraforbidden",
    "not permitted",
];
/// Words for a conversation that is too long. vLLM has others if `max_tokens` alone is too large.
const TOO_LONG: [&str; 6] = [
    "context length",
    "greater than max_model_len",
    // vLLM, of a prompt that is too long by itself; SGLang, of one for which its cache is too small.
    "maximum model length",
    "tokens) exceeds the maximum allowed length",
    "context size",
    "context window",
];

/// The body of a refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerRefusal {
    /// The server's words, if the body has any.
    pub message: Option<String>,
    param: Option<String>,
    code: Option<String>,
}

impl ServerRefusal {
    pub fn of(body: &[u8]) -> Self {
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            return Self::default();
        };
        let error = body.get("error").filter(|error| error.is_object()).unwrap_or(&body);
        let text = |from: &Value, name: &str| from.get(name).and_then(Value::as_str).map(str::to_owned);
        let detail = || {
            let detail = body.get("detail").filter(|detail| !detail.is_null())?;
            Some(match detail.as_str() {
                Some(words) => words.to_owned(),
                None => without_inputs(detail).to_string(),
            })
        };
        let mut message = text(error, "message")
            .or_else(|| text(&body, "error"))
            .or_else(|| text(&body, "message"))
            .or_else(detail);
        // OpenRouter's own message says only that the server behind it refused.
        let behind = error.pointer("/metadata/raw").and_then(Value::as_str);
        if let (Some(message), Some(behind)) = (&mut message, behind) {
            message.push_str(": ");
            message.extend(behind.chars().take(REPEATED));
        }
        Self {
            message,
            param: text(error, "param"),
            code: text(error, "code"),
        }
    }

    /// Whether the server takes the field, but not this value of it.
    pub fn is_of_a_value(&self) -> bool {
        self.code.as_deref() == Some("unsupported_value") || self.compared().contains("unsupported value")
    }

    /// Whether the conversation and its answer are too long for the model.
    pub fn is_too_long(&self) -> bool {
        let message = self.message.as_deref().unwrap_or_default().to_lowercase();
        self.code.as_deref() == Some("context_length_exceeded") || TOO_LONG.iter().any(|words| message.contains(words))
    }

    /// Whether the model reasoned until the limit of the answer. OpenAI's servers refuse such a request afterwards.
    pub fn is_cut_answer(&self) -> bool {
        let words = "could not finish the message because maxtokens";
        self.compared().contains(words)
    }

    /// The first of these fields that the server does not take, at all or with this value.
    pub fn unsupported<'a>(&self, fields: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
        let compared = self.compared();
        let has_code = self
            .code
            .as_deref()
            .is_some_and(|code| UNSUPPORTED_CODES.contains(&code));
        let has_words = UNSUPPORTED_WORDS.iter().any(|words| compared.contains(words));
        if self.is_too_long() || !(has_code || has_words) {
            return None;
        }
        let is_param = |field: &&str| self.param.as_deref() == Some(*field);
        fields
            .clone()
            .find(is_param)
            .or_else(|| fields.clone().find(|field| names(&compared, field)))
    }

    /// The sampling setting that the server refuses, at all or with this value.
    pub fn setting(&self) -> Option<&'static str> {
        let param = self.param.as_deref();
        let named = SETTINGS.into_iter().find(|setting| param == Some(*setting));
        named.or_else(|| self.unsupported(SETTINGS.into_iter()))
    }

    /// The beginning of the message in lower case and without `_`, so that `top_p` equals `topP`.
    fn compared(&self) -> String {
        let message = self.message.as_deref().unwrap_or_default();
        let letters = message.chars().take(COMPARED).filter(|letter| *letter != '_');
        letters.flat_map(char::to_lowercase).collect()
    }
}

/// Whether the field is a word of the text.
fn names(compared: &str, field: &str) -> bool {
    let field = field.replace('_', "");
    let is_between = |letter: char| !(letter.is_alphanumeric() || letter == '-');
    compared.split(is_between).any(|word| word == field)
}

/// The whole seconds that a header `Retry-After` asks its reader to wait: it has seconds, or a date.
pub fn wait_asked(header: &str, now: SystemTime) -> Option<u64> {
    let header = header.trim();
    let wait = match header.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok()?,
        Err(_) => {
            let date = httpdate::parse_http_date(header).ok()?;
            date.duration_since(now).unwrap_or_default()
        }
    };
    Some(wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)))
}

/// FastAPI's list of faults without the repeated input: words of a conversation must not be read as the server's.
fn without_inputs(detail: &Value) -> Value {
    let mut detail = detail.clone();
    for fault in detail.as_array_mut().into_iter().flatten() {
        if let Some(fault) = fault.as_object_mut() {
            fault.retain(|name, _| !["input", "ctx", "url"].contains(&name.as_str()));
        }
    }
    detail
}

#[cfg(test)]
mod tests;
