//! OpenAI's Responses API, as its Python library 3.57.0 writes and reads it.
//!
//! There an answer is several items: reasoning, a message, calls. Items in this order become one message again;
//! anything else begins the next message.

use super::json::{self, Fields, Many, ResultPart, TextOr, TextPart, Tools, joined};
use super::{BadRequest, Head, MOST_MESSAGES, MOST_PARTS, encode};
use crate::recording::request::{Answer, ChatMessage, Request, Role, ToolCall, Usage};
use grpo_chat_template::Memo;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Settings that the run decides, each with its neutral values.
const SETTINGS: &[(&str, &[&str])] = &[
    ("temperature", &[]),
    ("top_p", &[]),
    ("top_logprobs", &["0"]),
    ("text", &[r#"{"format":{"type":"text"}}"#, "{}"]),
    ("tool_choice", &[r#""auto""#]),
    ("parallel_tool_calls", &["true"]),
    ("max_tool_calls", &[]),
    ("reasoning", &["{}"]),
    ("truncation", &[r#""disabled""#]),
    ("context_management", &["[]"]),
    ("store", &["false"]),
];

/// The prefix of the reasoning in `encrypted_content`, the only part of a reasoning item that Codex sends back. The
/// text is readable: there is nothing to hide from the client.
const OURS: &str = "grpo-operator:";

#[derive(Deserialize)]
struct Item {
    /// A message may leave it out.
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<TextOr<TextPart>>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<TextOr<ResultPart>>,
    summary: Option<Many<TextPart, MOST_PARTS>>,
    encrypted_content: Option<String>,
}

/// Cache of parsed tools.
static TOOLS: Memo<Tools> = Memo::new();

pub(super) fn decode(fields: &Fields) -> Result<Request, BadRequest> {
    let stateless = "the endpoint keeps no conversations: send the whole input";
    fields.refuse("previous_response_id", stateless)?;
    fields.refuse("conversation", stateless)?;
    fields.refuse("prompt", "the endpoint keeps no prompts: send the input itself")?;
    fields.refuse("background", "an answer is sent to the request that asks for it")?;
    let instructions: Option<String> = fields.read("instructions")?;
    let mut conversation = Conversation {
        messages: instructions
            .map(|text| ChatMessage::new(Role::System, text))
            .into_iter()
            .collect(),
        last: None,
    };
    match fields.need::<TextOr<Item, MOST_MESSAGES>>("input")? {
        TextOr::Text(text) => conversation.push(ChatMessage::new(Role::User, text)),
        TextOr::List(items) => {
            for (at, item) in items.into_iter().enumerate() {
                conversation.add(at, item)?;
            }
        }
    }
    if conversation.messages.is_empty() {
        return Err(BadRequest::new("input", "at least one item is needed"));
    }
    let mut overruled = fields.overruled(SETTINGS);
    Ok(Request {
        tools: json::tools(fields, &mut overruled, &TOOLS, function)?,
        messages: conversation.messages,
        max_tokens: fields.tokens("max_output_tokens")?,
        stream: fields.flag("stream")?,
        include_usage: true,
        array: false,
        model: fields.read("model")?.unwrap_or_default(),
        overruled,
    })
}

/// The parts of an answer, in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Reasoning,
    Message,
    Call,
}

/// Joins items into messages.
struct Conversation {
    messages: Vec<ChatMessage>,
    /// The last part of the last message, if that is an answer.
    last: Option<Part>,
}

impl Conversation {
    fn push(&mut self, message: ChatMessage) {
        self.last = None;
        self.messages.push(message);
    }

    fn answer(&mut self, part: Part, write: impl FnOnce(&mut ChatMessage)) {
        let follows = self
            .last
            .is_some_and(|last| last < part || (last, part) == (Part::Call, Part::Call));
        if !follows {
            self.messages.push(ChatMessage::new(Role::Assistant, ""));
        }
        self.last = Some(part);
        if let Some(message) = self.messages.last_mut() {
            write(message);
        }
    }

    fn add(&mut self, at: usize, item: Item) -> Result<(), BadRequest> {
        let field = |name: &str| format!("input[{at}].{name}");
        let missing = |name: &str| BadRequest::new(field(name), "this field is missing");
        match item.kind.as_deref().unwrap_or("message") {
            "reasoning" => self.answer(Part::Reasoning, |message| {
                message.reasoning = Some(reasoning(item)).filter(|text| !text.is_empty());
            }),
            "message" if item.role.as_deref() == Some("assistant") => self.answer(Part::Message, |message| {
                message.content = joined(item.content, "");
            }),
            "function_call" => {
                let call = ToolCall {
                    id: item.call_id.ok_or_else(|| missing("call_id"))?,
                    name: item.name.ok_or_else(|| missing("name"))?,
                    arguments: json::arguments(&field("arguments"), &item.arguments.unwrap_or_default())?,
                };
                self.answer(Part::Call, |message| message.tool_calls.push(call));
            }
            "message" => {
                let role = match item.role.as_deref() {
                    Some("system" | "developer") => Role::System,
                    Some("user") => Role::User,
                    Some(_) => {
                        let roles = "a role is system, developer, user or assistant";
                        return Err(BadRequest::new(field("role"), roles));
                    }
                    None => return Err(missing("role")),
                };
                self.push(ChatMessage::new(role, joined(item.content, "\n")));
            }
            "function_call_output" => {
                let id = item.call_id.ok_or_else(|| missing("call_id"))?;
                self.push(ChatMessage::tool(id, json::result(item.output)));
            }
            "item_reference" => {
                let why = "the endpoint keeps no items: send the item itself";
                return Err(BadRequest::new(format!("input[{at}]"), why));
            }
            other => return Err(BadRequest::new(field("type"), json::not_text(other))),
        }
        Ok(())
    }
}

fn reasoning(item: Item) -> String {
    let text = joined(item.content, "");
    let carried = item.encrypted_content.as_deref();
    match carried.and_then(|carried| carried.strip_prefix(OURS)) {
        _ if !text.is_empty() => text,
        Some(carried) => carried.to_owned(),
        None => joined(item.summary.map(|summary| TextOr::List(summary.0)), "\n"),
    }
}

fn function(field: &str, tool: &RawValue) -> Result<Option<String>, BadRequest> {
    let fields: Fields = json::read(field, tool.get())?;
    let kind: String = fields.read("type")?.unwrap_or_default();
    match kind.as_str() {
        "function" => json::flat_function(field, &fields, "parameters").map(Some),
        _ => Ok(None),
    }
}

/// An item of an answer, as it begins and as it ends.
struct Output {
    begun: Value,
    whole: Value,
    /// The events between, still without number and index.
    between: Vec<Value>,
}

fn outputs(answer: &Answer) -> Vec<Output> {
    let mut outputs = Vec::new();
    if let Some(text) = &answer.reasoning {
        let id = format!("rs_{}", answer.id);
        let part = |text: &str| json!({ "type": "reasoning_text", "text": text });
        let item = |content: Value, carried: Value| {
            json!({
                "id": id,
                "type": "reasoning",
                "summary": [],
                "content": content,
                "encrypted_content": carried,
            })
        };
        outputs.push(Output {
            begun: item(json!([]), Value::Null),
            whole: item(json!([part(text)]), json!(format!("{OURS}{text}"))),
            between: text_events(&id, "reasoning_text", text, part),
        });
    }
    if !answer.content.is_empty() || (answer.calls.is_empty() && answer.reasoning.is_none()) {
        let id = format!("msg_{}", answer.id);
        let text = answer.content.as_str();
        let part = |text: &str| json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] });
        let item = |status: &str, content: Value| json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content });
        outputs.push(Output {
            begun: item("in_progress", json!([])),
            whole: item(status(answer), json!([part(text)])),
            between: text_events(&id, "output_text", text, part),
        });
    }
    for call in &answer.calls {
        let id = format!("fc_{}", call.id);
        let item = |status: &str, arguments: &str| {
            json!({
                "id": id,
                "type": "function_call",
                "status": status,
                "call_id": call.id,
                "name": call.name,
                "arguments": arguments,
            })
        };
        let text = &call.arguments;
        outputs.push(Output {
            begun: item("in_progress", ""),
            whole: item("completed", text),
            between: vec![
                json!({ "type": "response.function_call_arguments.delta", "item_id": id, "delta": text }),
                json!({
                    "type": "response.function_call_arguments.done",
                    "item_id": id,
                    "name": call.name,
                    "arguments": text,
                }),
            ],
        });
    }
    outputs
}

fn text_events(id: &str, kind: &str, text: &str, part: impl Fn(&str) -> Value) -> Vec<Value> {
    let mut events = vec![
        json!({ "type": "response.content_part.added", "part": part("") }),
        json!({ "type": format!("response.{kind}.delta"), "delta": text }),
        json!({ "type": format!("response.{kind}.done"), "text": text }),
        json!({ "type": "response.content_part.done", "part": part(text) }),
    ];
    for event in &mut events {
        event["item_id"] = json!(id);
        event["content_index"] = json!(0);
        if kind == "output_text" && event.get("part").is_none() {
            event["logprobs"] = json!([]);
        }
    }
    events
}

pub(super) fn answer(request: &Request, answer: &Answer) -> Vec<u8> {
    let head = Head {
        request,
        id: &answer.id,
        created: answer.created,
    };
    encode::body(&completed(head, answer, outputs(answer)))
}

fn completed(head: Head, answer: &Answer, outputs: Vec<Output>) -> Value {
    let mut response = response(head, status(answer));
    if answer.cut {
        response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
    }
    response["output"] = outputs.into_iter().map(|output| output.whole).collect();
    response["usage"] = usage(answer.usage);
    response
}

fn status(answer: &Answer) -> &'static str {
    if answer.cut { "incomplete" } else { "completed" }
}

fn response(head: Head, status: &str) -> Value {
    json!({
        "id": format!("resp_{}", head.id),
        "object": "response",
        "created_at": head.created,
        "status": status,
        "error": null,
        "incomplete_details": null,
        "instructions": null,
        "max_output_tokens": head.request.max_tokens,
        "metadata": {},
        "model": head.request.model,
        "output": [],
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "reasoning": { "effort": null, "summary": null },
        "store": false,
        "temperature": null,
        "text": { "format": { "type": "text" } },
        "tool_choice": "auto",
        "tools": [],
        "top_p": null,
        "truncation": "disabled",
        "usage": null,
    })
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": 0, "cache_write_tokens": 0 },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

/// Opens the stream, or repeats that the answer is in progress.
pub(super) fn wait(head: Head, sent: &mut u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if *sent == 0 {
        bytes.extend(lifecycle("response.created", head, sent));
    }
    bytes.extend(lifecycle("response.in_progress", head, sent));
    bytes
}

pub(super) fn events(head: Head, sent: &mut u64, answer: &Answer) -> Vec<Vec<u8>> {
    let mut events = Vec::new();
    if *sent == 0 {
        events.push(lifecycle("response.created", head, sent));
        events.push(lifecycle("response.in_progress", head, sent));
    }
    let outputs = outputs(answer);
    for (index, output) in outputs.iter().enumerate() {
        let added = json!({ "type": "response.output_item.added", "item": output.begun });
        let done = json!({ "type": "response.output_item.done", "item": output.whole });
        let between = output.between.iter().cloned();
        for mut event in std::iter::once(added).chain(between).chain([done]) {
            event["output_index"] = json!(index);
            events.push(numbered(event, sent));
        }
    }
    let response = completed(head, answer, outputs);
    events.push(numbered(
        json!({ "type": format!("response.{}", status(answer)), "response": response }),
        sent,
    ));
    events
}

fn lifecycle(kind: &str, head: Head, sent: &mut u64) -> Vec<u8> {
    numbered(json!({ "type": kind, "response": response(head, "in_progress") }), sent)
}

fn numbered(mut event: Value, sent: &mut u64) -> Vec<u8> {
    event["sequence_number"] = json!(*sent);
    *sent += 1;
    encode::event(event["type"].as_str().unwrap_or_default(), &event)
}

#[cfg(test)]
mod tests;
