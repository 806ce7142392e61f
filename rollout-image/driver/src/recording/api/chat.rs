//! OpenAI's Chat Completions API, as its Python library 3.57.0 writes and reads it, with `reasoning_content` as Qwen's
//! and DeepSeek's servers add it.

use super::json::{self, Fields, Many, TextOr, Tools, joined};
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
    ("top_k", &[]),
    ("min_p", &[]),
    ("min_tokens", &[]),
    ("frequency_penalty", &["0"]),
    ("presence_penalty", &["0"]),
    ("repetition_penalty", &["1"]),
    ("seed", &[]),
    ("stop", &["[]"]),
    ("logit_bias", &["{}"]),
    ("logprobs", &["false"]),
    ("top_logprobs", &["0"]),
    ("response_format", &[r#"{"type":"text"}"#]),
    ("tool_choice", &[r#""auto""#]),
    ("parallel_tool_calls", &["true"]),
    ("reasoning_effort", &[]),
    ("verbosity", &[]),
    ("thinking", &[]),
    ("enable_thinking", &[]),
    ("thinking_budget", &[]),
    ("chat_template_kwargs", &["{}"]),
    ("modalities", &[r#"["text"]"#]),
    ("audio", &[]),
    ("prediction", &[]),
    ("web_search_options", &[]),
    ("store", &["false"]),
];

#[derive(Deserialize)]
struct Message<'a> {
    role: String,
    /// Its role decides which parts it may have.
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    reasoning_content: Option<String>,
    tool_calls: Option<Many<Call, MOST_PARTS>>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct Call {
    id: String,
    /// Required instead of `type`, which a client that merges streamed calls leaves out; `custom` calls have no
    /// function.
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    arguments: Option<String>,
}

/// Cache of parsed tools.
static TOOLS: Memo<Tools> = Memo::new();

pub(super) fn decode(fields: &Fields) -> Result<Request, BadRequest> {
    if fields.read::<u64>("n")?.is_some_and(|number| number != 1) {
        return Err(BadRequest::new("n", "one answer per request: leave n out"));
    }
    fields.refuse("functions", "the old form of tools is not offered: send tools")?;
    fields.refuse("continue_final_message", "an answer is a message of its own")?;
    let Many(sent) = fields.need::<Many<Message, MOST_MESSAGES>>("messages")?;
    if sent.is_empty() {
        return Err(BadRequest::new("messages", "at least one message is needed"));
    }
    let messages = sent.into_iter().enumerate().map(|(at, sent)| message(at, sent));
    let messages = messages.collect::<Result<_, _>>()?;
    let mut overruled = fields.overruled(SETTINGS);
    let tools = json::tools(fields, &mut overruled, &TOOLS, function)?;
    // The old name and the new one; the lower limit holds.
    let limits = [fields.tokens("max_tokens")?, fields.tokens("max_completion_tokens")?];
    let options: Option<Fields> = fields.read("stream_options")?;
    let include_usage = options.map(|options| options.flag("include_usage")).transpose();
    Ok(Request {
        tools,
        messages,
        max_tokens: limits.into_iter().flatten().min(),
        stream: fields.flag("stream")?,
        include_usage: include_usage
            .map_err(|bad| BadRequest::new(format!("stream_options.{}", bad.field), bad.message))?
            .unwrap_or_default(),
        array: false,
        model: fields.read("model")?.unwrap_or_default(),
        overruled,
    })
}

fn message(at: usize, sent: Message) -> Result<ChatMessage, BadRequest> {
    let role = match sent.role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => {
            return Err(BadRequest::new(
                format!("messages[{at}].role"),
                "a role is system, developer, user, assistant or tool",
            ));
        }
    };
    if role == Role::Tool {
        let id = sent.tool_call_id.filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| {
            BadRequest::new(
                format!("messages[{at}].tool_call_id"),
                "a tool's result names its call: this field is missing",
            )
        })?;
        return Ok(ChatMessage::tool(id, json::result(content(at, sent.content)?)));
    }
    if role != Role::Assistant {
        return Ok(ChatMessage::new(role, joined(content(at, sent.content)?, "\n")));
    }
    let calls = sent.tool_calls.map_or_else(Vec::new, |calls| calls.0);
    let calls = calls.into_iter().enumerate().map(|(call_at, call)| {
        let field = format!("messages[{at}].tool_calls[{call_at}].function.arguments");
        Ok(ToolCall {
            id: call.id,
            name: call.function.name,
            arguments: json::arguments(&field, call.function.arguments.as_deref().unwrap_or_default())?,
        })
    });
    Ok(ChatMessage {
        reasoning: sent.reasoning_content.filter(|text| !text.is_empty()),
        tool_calls: calls.collect::<Result<_, _>>()?,
        ..ChatMessage::new(role, joined(content(at, sent.content)?, ""))
    })
}

/// The content of a message; `T` is a part of it.
fn content<'a, T: Deserialize<'a>>(at: usize, sent: Option<&'a RawValue>) -> Result<Option<TextOr<T>>, BadRequest> {
    sent.map(|sent| json::read(&format!("messages[{at}].content"), sent.get()))
        .transpose()
}

fn function(field: &str, tool: &RawValue) -> Result<Option<String>, BadRequest> {
    let fields: Fields = json::read(field, tool.get())?;
    let kind: String = fields.read("type")?.unwrap_or_default();
    if kind != "function" {
        return Ok(None);
    }
    let field = format!("{field}.function");
    let Some(function) = fields.get("function") else {
        return Err(BadRequest::new(field, "this field is missing"));
    };
    let function: Fields = json::read(&field, function.get())?;
    json::tool_name(&field, function.get("name"))?;
    Ok(Some(tool.get().to_owned()))
}

pub(super) fn answer(request: &Request, answer: &Answer) -> Vec<u8> {
    let calls: Vec<Value> = answer.calls.iter().map(call).collect();
    let mut message = json!({ "role": "assistant", "content": answer.content, "refusal": null });
    if answer.content.is_empty() && !calls.is_empty() {
        message["content"] = Value::Null;
    }
    if let Some(reasoning) = &answer.reasoning {
        message["reasoning_content"] = json!(reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    encode::body(&json!({
        "id": id(&answer.id),
        "object": "chat.completion",
        "created": answer.created,
        "model": request.model,
        "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": finish(answer) }],
        "usage": usage(answer.usage),
    }))
}

/// An empty chunk, which shows a waiting client that the stream is alive.
pub(super) fn wait(head: Head) -> Vec<u8> {
    chunk(head, json!({}), None)
}

pub(super) fn events(head: Head, answer: &Answer) -> Vec<Vec<u8>> {
    let mut deltas = Vec::new();
    if let Some(reasoning) = &answer.reasoning {
        deltas.push(json!({ "reasoning_content": reasoning }));
    }
    if !answer.content.is_empty() {
        deltas.push(json!({ "content": answer.content }));
    }
    for (index, sampled) in answer.calls.iter().enumerate() {
        let mut call = call(sampled);
        call["index"] = json!(index);
        deltas.push(json!({ "tool_calls": [call] }));
    }
    if deltas.is_empty() {
        deltas.push(json!({ "content": "" }));
    }
    deltas[0]["role"] = json!("assistant");
    let mut events: Vec<Vec<u8>> = deltas.into_iter().map(|delta| chunk(head, delta, None)).collect();
    events.push(chunk(head, json!({}), Some(finish(answer))));
    if head.request.include_usage {
        let mut last = envelope(head);
        last["choices"] = json!([]);
        last["usage"] = usage(answer.usage);
        events.push(encode::data(&last));
    }
    events.push(b"data: [DONE]\n\n".to_vec());
    events
}

fn chunk(head: Head, delta: Value, finish: Option<&str>) -> Vec<u8> {
    let mut chunk = envelope(head);
    chunk["choices"] = json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }]);
    if head.request.include_usage {
        chunk["usage"] = Value::Null;
    }
    encode::data(&chunk)
}

fn envelope(head: Head) -> Value {
    json!({
        "id": id(head.id),
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.request.model,
    })
}

fn id(id: &str) -> String {
    format!("chatcmpl-{id}")
}

fn call(call: &ToolCall) -> Value {
    json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

fn finish(answer: &Answer) -> &'static str {
    match answer.cut {
        true => "length",
        false if answer.calls.is_empty() => "stop",
        false => "tool_calls",
    }
}

fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

#[cfg(test)]
mod tests;
