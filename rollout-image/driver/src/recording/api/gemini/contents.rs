//! Contents in, messages out.
//!
//! A content of the model is one answer: thoughts, text, calls. One of the user holds texts and results; each result
//! becomes a separate message, in its place.

use super::super::json::{self, Fields, Many};
use super::super::{BadRequest, MOST_PARTS};
use super::signature;
use crate::recording::request::{ChatMessage, Role, ToolCall};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub(super) struct Content<'a> {
    role: Option<String>,
    #[serde(borrow)]
    parts: Option<Many<Part<'a>, MOST_PARTS>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    text: Option<String>,
    thought: Option<bool>,
    #[serde(alias = "thought_signature")]
    thought_signature: Option<String>,
    #[serde(borrow, alias = "function_call")]
    function_call: Option<FunctionCall<'a>>,
    #[serde(borrow, alias = "function_response")]
    function_response: Option<FunctionResponse<'a>>,
    #[serde(alias = "inline_data")]
    inline_data: Option<IgnoredAny>,
    #[serde(alias = "file_data")]
    file_data: Option<IgnoredAny>,
    #[serde(alias = "executable_code")]
    executable_code: Option<IgnoredAny>,
    #[serde(alias = "code_execution_result")]
    code_execution_result: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct FunctionCall<'a> {
    id: Option<String>,
    name: String,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct FunctionResponse<'a> {
    id: Option<String>,
    name: Option<String>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    /// Pictures and documents.
    parts: Option<Many<IgnoredAny, MOST_PARTS>>,
}

impl Part<'_> {
    /// The API's name for what the part holds.
    fn kind(&self) -> &'static str {
        let held = [
            ("functionCall", self.function_call.is_some()),
            ("functionResponse", self.function_response.is_some()),
            ("inlineData", self.inline_data.is_some()),
            ("fileData", self.file_data.is_some()),
            ("executableCode", self.executable_code.is_some()),
            ("codeExecutionResult", self.code_execution_result.is_some()),
        ];
        let mut held = held.into_iter().filter(|(_, is_held)| *is_held);
        held.next().map_or("text", |(kind, _)| kind)
    }
}

/// Turns contents into messages.
#[derive(Default)]
pub(super) struct History {
    pub messages: Vec<ChatMessage>,
    /// The number of the model's contents so far.
    answers: usize,
    /// Name and id of the last answer's calls that have no result yet.
    open: Vec<(String, String)>,
}

impl History {
    pub(super) fn system(&mut self, content: Content) -> Result<(), BadRequest> {
        let parts = content.parts.map_or_else(Vec::new, |parts| parts.0);
        let texts = parts.into_iter().enumerate().map(|(at, part)| {
            let kind = part.kind();
            let field = format!("systemInstruction.parts[{at}]");
            match (kind, part.text) {
                ("text", Some(text)) => Ok(text),
                ("text", None) => Err(missing(&field, "text")),
                _ => Err(BadRequest::new(field, json::not_text(kind))),
            }
        });
        let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
        self.messages.push(ChatMessage::new(Role::System, texts.join("\n")));
        Ok(())
    }

    pub(super) fn add(&mut self, at: usize, content: Content) -> Result<(), BadRequest> {
        let field = |part: usize| format!("contents[{at}].parts[{part}]");
        let parts = content.parts.map_or_else(Vec::new, |parts| parts.0);
        match content.role.as_deref() {
            Some("model") => self.answer(parts, field),
            // Clients of earlier versions send results with a role of their own.
            None | Some("user" | "function") => self.told(parts, field),
            Some(_) => {
                let roles = "a role is user or model";
                Err(BadRequest::new(format!("contents[{at}].role"), roles))
            }
        }
    }

    fn answer(&mut self, parts: Vec<Part>, field: impl Fn(usize) -> String) -> Result<(), BadRequest> {
        let mut message = ChatMessage::new(Role::Assistant, "");
        let mut reasoning = String::new();
        let mut carried = None;
        self.open.clear();
        for (at, part) in parts.into_iter().enumerate() {
            let kind = part.kind();
            if carried.is_none() {
                carried = part.thought_signature.as_deref().and_then(signature::read);
            }
            if let Some(call) = part.function_call {
                let number = message.tool_calls.len();
                // A client that leaves ids out gets those of a conversation without side requests.
                let own = || format!("call_{}_{number}", self.answers);
                let id = call.id.filter(|id| !id.is_empty()).unwrap_or_else(own);
                self.open.push((call.name.clone(), id.clone()));
                let args = call.args.map(RawValue::get).unwrap_or_default();
                message.tool_calls.push(ToolCall {
                    id,
                    name: call.name,
                    arguments: json::arguments(&format!("{}.functionCall.args", field(at)), args)?,
                });
                continue;
            }
            match kind {
                // A part with a signature only has no text.
                "text" if part.thought == Some(true) => reasoning.push_str(&part.text.unwrap_or_default()),
                "text" => message.content.push_str(&part.text.unwrap_or_default()),
                other => return Err(BadRequest::new(field(at), json::not_text(other))),
            }
        }
        let reasoning = Some(reasoning).filter(|text| !text.is_empty());
        message.reasoning = reasoning.or(carried).filter(|text| !text.is_empty());
        self.messages.push(message);
        self.answers += 1;
        Ok(())
    }

    fn told(&mut self, parts: Vec<Part>, field: impl Fn(usize) -> String) -> Result<(), BadRequest> {
        let first = self.messages.len();
        let mut texts: Vec<String> = Vec::new();
        for (at, part) in parts.into_iter().enumerate() {
            let kind = part.kind();
            if let Some(result) = part.function_response {
                if !texts.is_empty() {
                    let text = std::mem::take(&mut texts).join("\n");
                    self.messages.push(ChatMessage::new(Role::User, text));
                }
                let field = format!("{}.functionResponse", field(at));
                let id = self.call_of(&result).ok_or_else(|| missing(&field, "id"))?;
                let text = result_text(&format!("{field}.response"), result)?;
                self.messages.push(ChatMessage::tool(id, text));
                continue;
            }
            match (kind, part.text) {
                ("text", Some(text)) => texts.push(text),
                ("text", None) => return Err(missing(&field(at), "text")),
                // gemini-cli puts a picture that its tool read behind the tool's result.
                ("inlineData" | "fileData", _) if texts.is_empty() && self.messages.len() > first => {
                    if let Some(result) = self.messages.last_mut() {
                        add_note(&mut result.content, kind);
                    }
                }
                _ => return Err(BadRequest::new(field(at), json::not_text(kind))),
            }
        }
        if !texts.is_empty() || self.messages.len() == first {
            self.messages.push(ChatMessage::new(Role::User, texts.join("\n")));
        }
        Ok(())
    }

    /// The id of a result's call. Without one, the result answers the first open call of its name.
    fn call_of(&mut self, result: &FunctionResponse) -> Option<String> {
        let given = result.id.clone().filter(|id| !id.is_empty());
        let at = self.open.iter().position(|(name, id)| match &given {
            Some(given) => given == id,
            None => result.name.as_deref() == Some(name.as_str()),
        });
        let found = at.map(|at| self.open.remove(at).1);
        given.or(found)
    }
}

fn missing(field: &str, name: &str) -> BadRequest {
    BadRequest::new(format!("{field}.{name}"), "this field is missing")
}

/// The text of a result: the fields `output` and `error`, which the API defines, or else the whole object.
fn result_text(field: &str, result: FunctionResponse) -> Result<String, BadRequest> {
    let mut text = match result.response {
        Some(response) => output(field, response)?,
        None => String::new(),
    };
    for _ in result.parts.map_or_else(Vec::new, |parts| parts.0) {
        add_note(&mut text, "inlineData");
    }
    Ok(text)
}

fn output(field: &str, response: &RawValue) -> Result<String, BadRequest> {
    let fields: Fields = json::read(field, response.get())?;
    let mut texts = Vec::new();
    for (name, value) in fields.iter() {
        match (name, value.get()) {
            ("output" | "error", "null") => {}
            ("output" | "error", text) if text.starts_with('"') => {
                texts.push(json::read::<String>(&format!("{field}.{name}"), text)?);
            }
            ("output" | "error", text) => texts.push(text.to_owned()),
            _ => return Ok(response.get().to_owned()),
        }
    }
    Ok(texts.join("\n"))
}

fn add_note(text: &mut String, kind: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(&json::left_out(kind));
}
