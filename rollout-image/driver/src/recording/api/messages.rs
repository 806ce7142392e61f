//! Anthropic's Messages API, as its Python library 2.13.0 writes and reads it.
//!
//! There a user message holds tool results and text; each result becomes a separate message, in its place.

use super::encode::Arguments;
use super::json::{self, Fields, Many, ResultPart, TextOr, TextPart, Tools, joined};
use super::{BadRequest, Head, MOST_MESSAGES, encode};
use crate::recording::request::{Answer, ChatMessage, Request, Role, ToolCall, Usage};
use grpo_chat_template::Memo;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Settings that the run decides, each with its neutral values.
const SETTINGS: &[(&str, &[&str])] = &[
    ("temperature", &[]),
    ("top_p", &[]),
    ("top_k", &[]),
    ("stop_sequences", &["[]"]),
    ("thinking", &[]),
    ("tool_choice", &[r#"{"type":"auto"}"#]),
    ("output_config", &["{}"]),
    ("output_format", &[]),
    ("context_management", &["{}"]),
    ("container", &[]),
    ("mcp_servers", &["[]"]),
];

/// The prefix of a header in Claude Code's system text. The header differs between requests, and its server removes it
/// before the model reads it.
const HEADER: &str = "x-anthropic-billing-header:";

/// The signature of reasoning. Clients do not send back reasoning without one.
const SIGNATURE: &str = "grpo-operator";

#[derive(Deserialize)]
struct Message<'a> {
    role: String,
    #[serde(borrow)]
    content: TextOr<Block<'a>>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    tool_use_id: Option<String>,
    content: Option<TextOr<ResultPart>>,
}

/// Cache of parsed tools.
static TOOLS: Memo<Tools> = Memo::new();

pub(super) fn decode(fields: &Fields) -> Result<Request, BadRequest> {
    let mut messages = Vec::new();
    if let Some(system) = fields.read::<TextOr<TextPart>>("system")? {
        messages.push(ChatMessage::new(
            Role::System,
            joined(Some(without_header(system)), "\n"),
        ));
    }
    let Many(sent) = fields.need::<Many<Message, MOST_MESSAGES>>("messages")?;
    if sent.is_empty() {
        return Err(BadRequest::new("messages", "at least one message is needed"));
    }
    for (at, message) in sent.into_iter().enumerate() {
        add(&mut messages, at, message)?;
    }
    let max_tokens = fields.tokens("max_tokens")?;
    // Requests to count tokens have no limit, and may end with an answer.
    let prefilled = messages.last().is_some_and(|message| message.role == Role::Assistant);
    if prefilled && max_tokens.is_some() {
        let why = "the last message is the assistant's, and an answer is a message of its own: leave it out";
        return Err(BadRequest::new("messages", why));
    }
    let mut overruled = fields.overruled(SETTINGS);
    Ok(Request {
        tools: json::tools(fields, &mut overruled, &TOOLS, function)?,
        messages,
        max_tokens,
        stream: fields.flag("stream")?,
        include_usage: true,
        array: false,
        model: fields.read("model")?.unwrap_or_default(),
        overruled,
    })
}

fn without_header(system: TextOr<TextPart>) -> TextOr<TextPart> {
    match system {
        TextOr::List(mut parts) => {
            parts.retain(|part| !part.0.starts_with(HEADER));
            TextOr::List(parts)
        }
        text => text,
    }
}

fn add(messages: &mut Vec<ChatMessage>, at: usize, sent: Message) -> Result<(), BadRequest> {
    let role = match sent.role.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        _ => {
            let roles = "a role is user, assistant or system";
            return Err(BadRequest::new(format!("messages[{at}].role"), roles));
        }
    };
    let blocks = match sent.content {
        TextOr::Text(text) => {
            messages.push(ChatMessage::new(role, text));
            return Ok(());
        }
        TextOr::List(blocks) => blocks,
    };
    let field = |block: usize| format!("messages[{at}].content[{block}]");
    if role == Role::Assistant {
        messages.push(assistant(blocks, field)?);
        return Ok(());
    }
    let first = messages.len();
    let mut texts: Vec<String> = Vec::new();
    for (block_at, block) in blocks.into_iter().enumerate() {
        let missing = |name: &str| BadRequest::new(format!("{}.{name}", field(block_at)), "this field is missing");
        match block.kind.as_str() {
            "text" => texts.push(block.text.ok_or_else(|| missing("text"))?),
            "tool_result" if role == Role::User => {
                if !texts.is_empty() {
                    messages.push(ChatMessage::new(role, std::mem::take(&mut texts).join("\n")));
                }
                let id = block.tool_use_id.ok_or_else(|| missing("tool_use_id"))?;
                messages.push(ChatMessage::tool(id, json::result(block.content)));
            }
            other => return Err(BadRequest::new(field(block_at), json::not_text(other))),
        }
    }
    if !texts.is_empty() || messages.len() == first {
        messages.push(ChatMessage::new(role, texts.join("\n")));
    }
    Ok(())
}

fn assistant(blocks: Vec<Block>, field: impl Fn(usize) -> String) -> Result<ChatMessage, BadRequest> {
    let mut message = ChatMessage::new(Role::Assistant, "");
    let mut reasoning = String::new();
    for (at, block) in blocks.into_iter().enumerate() {
        let missing = |name: &str| BadRequest::new(format!("{}.{name}", field(at)), "this field is missing");
        match block.kind.as_str() {
            "text" => message.content.push_str(&block.text.ok_or_else(|| missing("text"))?),
            "thinking" => reasoning.push_str(&block.thinking.ok_or_else(|| missing("thinking"))?),
            // Text of another model that this one cannot read.
            "redacted_thinking" => {}
            "tool_use" => message.tool_calls.push(ToolCall {
                id: block.id.ok_or_else(|| missing("id"))?,
                name: block.name.ok_or_else(|| missing("name"))?,
                arguments: json::arguments(
                    &format!("{}.input", field(at)),
                    block.input.map(RawValue::get).unwrap_or_default(),
                )?,
            }),
            other => return Err(BadRequest::new(field(at), json::not_text(other))),
        }
    }
    message.reasoning = Some(reasoning).filter(|text| !text.is_empty());
    Ok(message)
}

/// Tools without an input schema run on the server, or are known to Anthropic's models only.
fn function(field: &str, tool: &RawValue) -> Result<Option<String>, BadRequest> {
    let fields: Fields = json::read(field, tool.get())?;
    match fields.get("input_schema") {
        Some(_) => json::flat_function(field, &fields, "input_schema").map(Some),
        None => Ok(None),
    }
}

#[derive(Serialize)]
struct Whole<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Content<'a>>,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'static str>,
    usage: Value,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    Thinking {
        thinking: &'a str,
        signature: &'static str,
    },
    Text {
        text: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: Arguments<'a>,
    },
}

fn contents(answer: &Answer) -> Vec<Content<'_>> {
    let mut contents = Vec::new();
    if let Some(thinking) = &answer.reasoning {
        contents.push(Content::Thinking {
            thinking,
            signature: SIGNATURE,
        });
    }
    // Clients treat an answer without blocks as an error.
    if !answer.content.is_empty() || answer.calls.is_empty() {
        contents.push(Content::Text { text: &answer.content });
    }
    contents.extend(answer.calls.iter().map(|call| Content::ToolUse {
        id: &call.id,
        name: &call.name,
        input: Arguments::of(&call.arguments),
    }));
    contents
}

pub(super) fn answer(request: &Request, answer: &Answer) -> Vec<u8> {
    encode::body(&Whole {
        content: contents(answer),
        stop_reason: Some(stop_reason(answer)),
        usage: usage(answer.usage),
        ..opening(request, &answer.id)
    })
}

fn opening<'a>(request: &'a Request, id: &str) -> Whole<'a> {
    Whole {
        id: format!("msg_{id}"),
        kind: "message",
        role: "assistant",
        model: &request.model,
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage: usage(Usage {
            prompt_tokens: 0,
            completion_tokens: 0,
        }),
    }
}

fn stop_reason(answer: &Answer) -> &'static str {
    match answer.cut {
        true => "max_tokens",
        false if answer.calls.is_empty() => "end_turn",
        false => "tool_use",
    }
}

fn usage(usage: Usage) -> Value {
    json!({ "input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens })
}

/// Opens the stream, or pings.
pub(super) fn wait(head: Head, sent: &mut u64) -> Vec<u8> {
    *sent += 1;
    match *sent {
        1 => start(&opening(head.request, head.id)),
        _ => encode::event("ping", &json!({ "type": "ping" })),
    }
}

fn start(message: &Whole) -> Vec<u8> {
    #[derive(Serialize)]
    struct Start<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        message: &'a Whole<'a>,
    }
    let kind = "message_start";
    encode::event(kind, &Start { kind, message })
}

pub(super) fn events(head: Head, open: bool, answer: &Answer) -> Vec<Vec<u8>> {
    let mut events = Vec::new();
    if !open {
        let prompt = Usage {
            completion_tokens: 0,
            ..answer.usage
        };
        events.push(start(&Whole {
            usage: usage(prompt),
            ..opening(head.request, head.id)
        }));
    }
    for (index, content) in contents(answer).into_iter().enumerate() {
        let (begun, deltas) = match content {
            Content::Thinking { thinking, signature } => (
                json!({ "type": "thinking", "thinking": "", "signature": "" }),
                vec![
                    json!({ "type": "thinking_delta", "thinking": thinking }),
                    json!({ "type": "signature_delta", "signature": signature }),
                ],
            ),
            Content::Text { text } => (
                json!({ "type": "text", "text": "" }),
                vec![json!({ "type": "text_delta", "text": text })],
            ),
            Content::ToolUse { id, name, input } => {
                let text = match input {
                    Arguments::Object(object) => object.get(),
                    Arguments::Text(text) => text,
                };
                (
                    json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
                    vec![json!({ "type": "input_json_delta", "partial_json": text })],
                )
            }
        };
        events.push(block("content_block_start", index, Some(("content_block", begun))));
        for delta in deltas {
            events.push(block("content_block_delta", index, Some(("delta", delta))));
        }
        events.push(block("content_block_stop", index, None));
    }
    events.push(encode::event(
        "message_delta",
        &json!({
            "type": "message_delta",
            "delta": { "stop_reason": stop_reason(answer), "stop_sequence": null },
            "usage": usage(answer.usage),
        }),
    ));
    events.push(encode::event("message_stop", &json!({ "type": "message_stop" })));
    events
}

fn block(kind: &str, index: usize, what: Option<(&str, Value)>) -> Vec<u8> {
    let mut event = json!({ "type": kind, "index": index });
    if let Some((name, value)) = what {
        event[name] = value;
    }
    encode::event(kind, &event)
}

#[cfg(test)]
mod tests;
