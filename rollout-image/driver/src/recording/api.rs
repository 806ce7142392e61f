//! The four APIs, as pure functions: bytes in, bytes out.
//!
//! [`Api::decode`] turns a body into a [`Request`] or a [`BadRequest`], which [`Api::bad_request`] turns into the API's
//! own 400. [`Api::answer`] turns an [`Answer`] into a body, [`Api::events`] into a stream.
//!
//! Differences between clients are removed here, because the next request is matched with the rows by the content of
//! its messages: text parts are joined, null is no text, tools have OpenAI's function form, a picture in a result is
//! a note. Otherwise the model's input is never changed: arguments stay the client's text. Bodies are hostile: every
//! count is bounded, and JSON that a later reader would refuse is refused here. The server bounds the size of a body
//! before.
//!
//! An answer is streamed when it is whole: its text in one delta, each call in one delta with all its arguments,
//! because clients repair and execute a call that was cut off.

use super::request::{Answer, Request};
use json::Fields;
use serde_json::{Value, json};

mod chat;
mod encode;
mod gemini;
mod json;
mod messages;
mod responses;

pub use self::gemini::ModelMethod;

/// Most messages, or items, of a request.
const MOST_MESSAGES: usize = 4096;
/// Most tools of a request.
const MOST_TOOLS: usize = 512;
/// Most text parts, blocks or calls of a message.
const MOST_PARTS: usize = 1024;

/// The API that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// OpenAI's `/v1/chat/completions`.
    ChatCompletions,
    /// OpenAI's `/v1/responses`.
    Responses,
    /// Anthropic's `/v1/messages`, and its `/v1/messages/count_tokens`.
    Messages,
    /// The methods `generateContent`, `streamGenerateContent` and `countTokens` of Google's `/v1beta/models/{model}`.
    GenerateContent,
}

/// Why a body is refused, in words for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{message}", .field, if .field.is_empty() { "" } else { ": " })]
pub struct BadRequest {
    /// The field in the body, such as `messages[3].content[1]`; "" for the whole body.
    pub field: String,
    pub message: String,
}

impl BadRequest {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl Api {
    /// The request of a body. [`ModelMethod::apply`] adds what the path says, in Gemini's API.
    pub fn decode(self, body: &[u8]) -> Result<Request, BadRequest> {
        let text = std::str::from_utf8(body)
            .map_err(|error| BadRequest::new("", format!("the body is no UTF-8 from byte {}", error.valid_up_to())))?;
        self.read(text).or_else(|bad| match json::mended(text) {
            // JavaScript cuts texts within a surrogate pair, and writes the half that is left.
            Some(mended) => self.read(&mended),
            None => Err(bad),
        })
    }

    fn read(self, text: &str) -> Result<Request, BadRequest> {
        let fields: Fields = json::read("", text)?;
        match self {
            Self::ChatCompletions => chat::decode(&fields),
            Self::Responses => responses::decode(&fields),
            Self::Messages => messages::decode(&fields),
            Self::GenerateContent => gemini::decode(fields),
        }
    }

    /// The body of a finished answer.
    pub fn answer(self, request: &Request, answer: &Answer) -> Vec<u8> {
        match self {
            Self::ChatCompletions => chat::answer(request, answer),
            Self::Responses => responses::answer(request, answer),
            Self::Messages => messages::answer(request, answer),
            Self::GenerateContent => gemini::answer(request, answer),
        }
    }

    /// A stream for the answer with this id and time.
    pub fn events<'a>(self, request: &'a Request, id: &'a str, created: i64) -> Events<'a> {
        Events {
            api: self,
            head: Head { request, id, created },
            sent: 0,
        }
    }

    /// The body of a 400.
    pub fn bad_request(self, bad: &BadRequest) -> Vec<u8> {
        let field = Some(bad.field.as_str()).filter(|field| !field.is_empty());
        self.error_at(400, &bad.to_string(), field)
    }

    /// The body of an error with this status, from 400 on.
    pub fn error(self, status: u16, message: &str) -> Vec<u8> {
        self.error_at(status, message, None)
    }

    fn error_at(self, status: u16, message: &str, field: Option<&str>) -> Vec<u8> {
        let kind = match (self, status) {
            (Self::GenerateContent, _) => canonical(status),
            (_, 401) => "authentication_error",
            (_, 403) => "permission_error",
            (_, 429) => "rate_limit_error",
            (Self::Messages, 404) => "not_found_error",
            (Self::Messages, 413) => "request_too_large",
            (Self::Messages, 529) => "overloaded_error",
            (Self::Messages, 500..) => "api_error",
            (_, 500..) => "server_error",
            _ => "invalid_request_error",
        };
        encode::body(&match self {
            Self::Messages => json!({ "type": "error", "error": { "type": kind, "message": message } }),
            Self::GenerateContent => json!({ "error": { "code": status, "message": message, "status": kind } }),
            _ => json!({ "error": { "message": message, "type": kind, "param": field, "code": null } }),
        })
    }

    /// The list of models: only the policy.
    pub fn models(self, model: &str) -> Vec<u8> {
        let listed = self.listed(model);
        encode::body(&match self {
            Self::Messages => json!({ "data": [listed], "has_more": false, "first_id": model, "last_id": model }),
            Self::GenerateContent => json!({ "models": [listed] }),
            _ => json!({ "object": "list", "data": [listed] }),
        })
    }

    /// The policy, under the name by which a client asks for it.
    pub fn model(self, name: &str) -> Vec<u8> {
        encode::body(&self.listed(name))
    }

    fn listed(self, model: &str) -> Value {
        match self {
            Self::Messages => json!({
                "type": "model",
                "id": model,
                "display_name": model,
                "created_at": "1970-01-01T00:00:00Z",
                "lifecycle": "active",
            }),
            Self::GenerateContent => json!({
                "name": format!("models/{model}"),
                "version": "1",
                "displayName": model,
                "supportedGenerationMethods": ["generateContent", "countTokens"],
            }),
            _ => json!({ "id": model, "object": "model", "created": 0, "owned_by": "grpo-operator" }),
        }
    }

    /// How many tokens a request would take: `/v1/messages/count_tokens`, `/v1/responses/input_tokens` and
    /// `countTokens`.
    pub fn token_count(self, tokens: usize) -> Vec<u8> {
        encode::body(&match self {
            Self::Messages => json!({ "input_tokens": tokens }),
            Self::GenerateContent => json!({ "totalTokens": tokens }),
            _ => json!({ "object": "response.input_tokens", "input_tokens": tokens }),
        })
    }
}

/// Google's name of a status.
fn canonical(status: u16) -> &'static str {
    match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        500.. => "INTERNAL",
        _ => "INVALID_ARGUMENT",
    }
}

/// The fields that every event of a stream repeats.
#[derive(Clone, Copy)]
struct Head<'a> {
    request: &'a Request,
    id: &'a str,
    created: i64,
}

/// One streamed answer. Events are sent in order.
pub struct Events<'a> {
    api: Api,
    head: Head<'a>,
    /// How many events were sent.
    sent: u64,
}

impl Events<'_> {
    /// Bytes that keep the client waiting; the first call opens the stream. Comments would not do: clients ignore them.
    pub fn wait(&mut self) -> Vec<u8> {
        match self.api {
            Api::ChatCompletions => chat::wait(self.head),
            Api::Responses => responses::wait(self.head, &mut self.sent),
            Api::Messages => messages::wait(self.head, &mut self.sent),
            Api::GenerateContent => gemini::wait(self.head, &mut self.sent),
        }
    }

    /// The events of the whole answer that were not sent yet, with the last one.
    pub fn finish(mut self, answer: &Answer) -> Vec<Vec<u8>> {
        match self.api {
            Api::ChatCompletions => chat::events(self.head, answer),
            Api::Responses => responses::events(self.head, &mut self.sent, answer),
            Api::Messages => messages::events(self.head, self.sent > 0, answer),
            Api::GenerateContent => gemini::events(self.head, &mut self.sent, answer),
        }
    }
}

#[cfg(test)]
mod tests;
