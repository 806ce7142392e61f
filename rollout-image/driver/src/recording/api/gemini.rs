//! Google's Gemini API, as its JavaScript library 1.30.0 writes and reads it, which gemini-cli is built on.
//!
//! A request's path names the model and the form of the answer ([`ModelMethod`]). Its contents hold parts: texts,
//! thoughts, calls, results. Each result becomes a separate message, in its place.

mod contents;
mod schema;
mod signature;

use self::contents::{Content, History};
use super::json::{self, Fields, Many, Tools};
use super::{BadRequest, Head, MOST_MESSAGES, MOST_TOOLS, encode};
use crate::recording::request::{Answer, Request, Role, Usage};
use grpo_chat_template::Memo;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;

const CONFIG: &str = "generationConfig";
/// Settings that the run decides, each with its neutral values.
const SETTINGS: &[(&str, &[&str])] = &[
    ("toolConfig", &["{}", r#"{"functionCallingConfig":{"mode":"AUTO"}}"#]),
    ("safetySettings", &["[]"]),
];
/// The same, below [`CONFIG`].
const CONFIG_SETTINGS: &[(&str, &[&str])] = &[
    ("temperature", &[]),
    ("topP", &[]),
    ("topK", &[]),
    ("presencePenalty", &["0"]),
    ("frequencyPenalty", &["0"]),
    ("seed", &[]),
    ("stopSequences", &["[]"]),
    ("responseLogprobs", &["false"]),
    ("logprobs", &[]),
    ("responseMimeType", &[r#""text/plain""#]),
    ("responseSchema", &[]),
    ("responseJsonSchema", &[]),
    ("_responseJsonSchema", &[]),
    ("responseModalities", &[r#"["TEXT"]"#]),
    ("thinkingConfig", &["{}"]),
    ("mediaResolution", &[]),
    ("speechConfig", &[]),
    ("imageConfig", &[]),
];

/// What a request's path says: the model, and what is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelMethod {
    pub model: String,
    /// Asks for the number of tokens only.
    pub counts: bool,
    pub stream: bool,
    /// As in [`Request`].
    pub array: bool,
}

impl ModelMethod {
    /// `name`: the path below `models/`, such as `policy:generateContent`. `None`: the endpoint has no such method.
    pub fn of(name: &str, query: Option<&str>) -> Option<Self> {
        let (model, method) = name.rsplit_once(':')?;
        let (counts, stream) = match method {
            "generateContent" => (false, false),
            "streamGenerateContent" => (false, true),
            "countTokens" => (true, false),
            _ => return None,
        };
        let is_events = query.unwrap_or_default().split('&').any(|pair| pair == "alt=sse");
        Some(Self {
            model: model.to_owned(),
            counts,
            stream,
            array: stream && !is_events,
        })
    }

    /// Adds what the path says to the request of the body.
    pub fn apply(self, request: &mut Request) -> Result<(), BadRequest> {
        let prefilled = request.messages.last().is_some_and(|last| last.role == Role::Assistant);
        if prefilled && !self.counts {
            let why = "the last content is the model's, and an answer is a content of its own: leave it out";
            return Err(BadRequest::new("contents", why));
        }
        request.model = self.model;
        request.stream = self.stream;
        request.array = self.array;
        Ok(())
    }
}

/// Cache of parsed tools.
static TOOLS: Memo<Tools> = Memo::new();

pub(super) fn decode(fields: Fields) -> Result<Request, BadRequest> {
    let fields = fields.in_camel_case();
    // A request to count tokens may hold the request that it is about.
    let held = "generateContentRequest";
    match fields.read::<Fields>(held)? {
        Some(fields) => request(&fields.in_camel_case()).map_err(|bad| below(held, bad)),
        None => request(&fields),
    }
}

fn request(fields: &Fields) -> Result<Request, BadRequest> {
    fields.refuse(
        "cachedContent",
        "the endpoint keeps no contents: send the contents themselves",
    )?;
    let mut history = History::default();
    if let Some(content) = fields.read::<Content>("systemInstruction")? {
        history.system(content)?;
    }
    let Many(sent) = fields.need::<Many<Content, MOST_MESSAGES>>("contents")?;
    if sent.is_empty() {
        return Err(BadRequest::new("contents", "at least one content is needed"));
    }
    for (at, content) in sent.into_iter().enumerate() {
        history.add(at, content)?;
    }
    let mut overruled = fields.overruled(SETTINGS);
    let max_tokens = match fields.read::<Fields>(CONFIG)? {
        Some(config) => configured(&config.in_camel_case(), &mut overruled).map_err(|bad| below(CONFIG, bad))?,
        None => None,
    };
    let model: String = fields.read("model")?.unwrap_or_default();
    Ok(Request {
        tools: json::tools_of_many(fields, &mut overruled, &TOOLS, functions)?,
        messages: history.messages,
        max_tokens,
        stream: false,
        include_usage: true,
        array: false,
        model: model.strip_prefix("models/").unwrap_or(&model).to_owned(),
        overruled,
    })
}

fn below(outer: &str, bad: BadRequest) -> BadRequest {
    BadRequest::new(format!("{outer}.{}", bad.field), bad.message)
}

/// The limit of the answer.
fn configured(config: &Fields, overruled: &mut Vec<(String, String)>) -> Result<Option<u32>, BadRequest> {
    if config.read::<u64>("candidateCount")?.is_some_and(|number| number != 1) {
        let why = "one answer per request: leave candidateCount out";
        return Err(BadRequest::new("candidateCount", why));
    }
    let given = config.overruled(CONFIG_SETTINGS).into_iter();
    overruled.extend(given.map(|(name, value)| (format!("{CONFIG}.{name}"), value)));
    config.tokens("maxOutputTokens")
}

/// The functions of a tool, and whether it has nothing else. The rest runs on Google's servers, such as a search.
fn functions(field: &str, tool: &RawValue) -> Result<(Vec<String>, bool), BadRequest> {
    let name = "functionDeclarations";
    let fields = json::read::<Fields>(field, tool.get())?.in_camel_case();
    let Some(declared) = fields.get(name) else {
        return Ok((Vec::new(), false));
    };
    let is_whole = fields
        .iter()
        .all(|(other, value)| other == name || value.get() == "null");
    let field = format!("{field}.{name}");
    let Many(declared) = json::read::<Many<&RawValue, MOST_TOOLS>>(&field, declared.get())?;
    let written = declared.into_iter().enumerate();
    let written = written.map(|(at, declared)| function(&format!("{field}[{at}]"), declared));
    Ok((written.collect::<Result<_, _>>()?, is_whole))
}

fn function(field: &str, declared: &RawValue) -> Result<String, BadRequest> {
    let fields = json::read::<Fields>(field, declared.get())?.in_camel_case();
    let (as_json, as_openapi) = ("parametersJsonSchema", "parameters");
    if fields.get(as_json).is_some() {
        return json::flat_function(field, &fields, as_json);
    }
    json::flat_function_with(field, &fields, as_openapi, |text| {
        schema::as_json_schema(&format!("{field}.{as_openapi}"), text).map(Cow::Owned)
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Whole<'a> {
    candidates: [Candidate<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_metadata: Option<Value>,
    model_version: &'a str,
    response_id: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Candidate<'a> {
    content: Said<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<&'static str>,
    index: u32,
}

#[derive(Serialize)]
struct Said<'a> {
    parts: Vec<Given<'a>>,
    role: &'static str,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Given<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thought: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<GivenCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thought_signature: Option<String>,
}

#[derive(Serialize)]
struct GivenCall<'a> {
    id: &'a str,
    name: &'a str,
    args: encode::Arguments<'a>,
}

fn parts(answer: &Answer) -> Vec<Given<'_>> {
    let mut parts = Vec::new();
    if let Some(text) = &answer.reasoning {
        parts.push(Given {
            text: Some(text.as_str()),
            thought: Some(true),
            ..Given::default()
        });
    }
    // Clients treat an answer without parts as an error.
    if !answer.content.is_empty() || answer.calls.is_empty() {
        parts.push(Given {
            text: Some(answer.content.as_str()),
            ..Given::default()
        });
    }
    parts.extend(answer.calls.iter().map(|call| Given {
        function_call: Some(GivenCall {
            id: &call.id,
            name: &call.name,
            args: encode::Arguments::of(&call.arguments),
        }),
        ..Given::default()
    }));
    // Google's servers sign the first call, or else the text.
    let last = parts.len().saturating_sub(1);
    let at = parts.iter().position(|part| part.function_call.is_some());
    if let Some(part) = parts.get_mut(at.unwrap_or(last)) {
        part.thought_signature = answer.reasoning.as_deref().map(signature::of);
    }
    parts
}

fn whole<'a>(head: Head<'a>, parts: Vec<Given<'a>>, ended: Option<&Answer>) -> Whole<'a> {
    let finish = |answer: &Answer| if answer.cut { "MAX_TOKENS" } else { "STOP" };
    Whole {
        candidates: [Candidate {
            content: Said { parts, role: "model" },
            finish_reason: ended.map(finish),
            index: 0,
        }],
        usage_metadata: ended.map(|answer| usage(answer.usage)),
        model_version: &head.request.model,
        response_id: format!("resp_{}", head.id),
    }
}

fn usage(usage: Usage) -> Value {
    json!({
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
    })
}

pub(super) fn answer(request: &Request, answer: &Answer) -> Vec<u8> {
    let head = Head {
        request,
        id: &answer.id,
        created: answer.created,
    };
    encode::body(&whole(head, parts(answer), Some(answer)))
}

/// A chunk without parts, which shows a waiting client that the stream is alive.
pub(super) fn wait(head: Head, sent: &mut u64) -> Vec<u8> {
    chunk(head, sent, &whole(head, Vec::new(), None))
}

/// One chunk for each part. The last one also has the finish and the usage.
pub(super) fn events(head: Head, sent: &mut u64, answer: &Answer) -> Vec<Vec<u8>> {
    let parts = parts(answer);
    let last = parts.len().saturating_sub(1);
    let chunks = parts.into_iter().enumerate().map(|(at, part)| {
        let ended = (at == last).then_some(answer);
        chunk(head, sent, &whole(head, vec![part], ended))
    });
    let mut events: Vec<Vec<u8>> = chunks.collect();
    if head.request.array {
        events.push(b"]".to_vec());
    }
    events
}

fn chunk(head: Head, sent: &mut u64, whole: &Whole) -> Vec<u8> {
    *sent += 1;
    if !head.request.array {
        return encode::data(whole);
    }
    let mut bytes = match *sent {
        1 => b"[".to_vec(),
        _ => b",\n".to_vec(),
    };
    bytes.extend(encode::body(whole));
    bytes
}

#[cfg(test)]
mod tests;
