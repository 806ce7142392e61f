//! Conversations in text: one route for our own engines and all with OpenAI's API, and for the driver's conversations
//! with a server that speaks only text.
//!
//! The answer is parsed only to check that it is valid, and is forwarded unchanged. A request whose form the server
//! does not take is sent again in another one ([`super::dialect`]).

use axum::http::StatusCode;
use grpo_engine_protocol::{
    ChatChoice, ChatRequest, ChatResponse, ErrorBody, ErrorCode, Penalties, TextRequest, TextResponse,
};
use serde_json::{Value, json};

use super::dialect::MOST_CHANGES;
use super::refusal::ServerRefusal;
use super::wire::{Answered, GIVEN_UP, Server, engine_seed, given_up, is_bad_request, misbehaved, not_sampled, said};

const PATH: &str = "/v1/chat/completions";
/// The answer of a model that reasoned until the limit, where a server refuses the request instead.
const CUT_ANSWER: &str = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":""},"finish_reason":"length"}]}"#;

/// Asks an engine that speaks our protocol; its refusals have our format.
pub async fn pass_on(server: &Server, request: &ChatRequest) -> Result<Answered, ErrorBody> {
    let body = serde_json::to_vec(request).map_err(|error| misbehaved(error.to_string()))?;
    let answer = server.pass_on(PATH, body.into(), None).await?;
    match answer.status.is_success() {
        true => checked(server, answer),
        false => Ok(answer),
    }
}

/// Asks an engine that serves the model under this name. `lora_path`: the adapter, for an engine that takes it
/// separately from the model.
pub async fn ask(
    server: &Server,
    request: &ChatRequest,
    model: &str,
    lora_path: Option<&str>,
) -> Result<Answered, ErrorBody> {
    let answer = put(server, model, in_its_words(request, model, lora_path)).await?;
    checked(server, answer)
}

/// Asks a server that speaks only text for an answer to messages with tools.
pub async fn ask_text(server: &Server, request: &TextRequest, model: &str) -> Result<Answered, ErrorBody> {
    let mut asked = json!({
        "model": model,
        "messages": request.messages,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
    });
    if !request.tools.is_empty() {
        asked["tools"] = serde_json::from_str(&request.tools)
            .map_err(|error| ErrorBody::new(ErrorCode::InvalidRequest, format!("tools: {error}")))?;
    }
    let top_k = (request.top_k > 0).then_some(request.top_k);
    add_settings(&mut asked, top_k, request.penalties, Some(request.seed));
    let answer = put(server, model, asked).await?;
    let read: TextResponse = server.read(PATH, &answer)?;
    has_choices(server, !read.choices.is_empty()).map(|()| answer)
}

/// The successful answer to a request in the server's words.
async fn put(server: &Server, model: &str, mut asked: Value) -> Result<Answered, ErrorBody> {
    server.dialect.apply(&mut asked);
    let mut answer = server.put_question(PATH, &asked).await?;
    for _ in 0..MOST_CHANGES {
        if !is_bad_request(answer.status) || !server.dialect.adapt(&mut asked, &ServerRefusal::of(&answer.body)) {
            break;
        }
        answer = server.put_question(PATH, &asked).await?;
    }
    match answer.status {
        status if status.is_success() => Ok(answer),
        status if is_bad_request(status) && ServerRefusal::of(&answer.body).is_cut_answer() => {
            Ok(Answered::json(CUT_ANSWER.into()))
        }
        StatusCode::NOT_FOUND => Err(misbehaved(format!(
            "the engine at {} does not have this route, or not the model {model}: {}",
            server.at(PATH),
            said(&answer)
        ))),
        _ => Err(not_sampled(&answer)),
    }
}

fn in_its_words(request: &ChatRequest, model: &str, lora_path: Option<&str>) -> Value {
    let mut asked = json!({
        "model": model,
        "messages": request.messages,
        "temperature": request.temperature,
        "top_p": request.top_p,
    });
    if let Some(limit) = request.max_tokens {
        asked["max_tokens"] = json!(limit);
    }
    add_settings(&mut asked, request.top_k, request.penalties(), request.seed);
    if let Some(adapter) = lora_path {
        asked["lora_path"] = json!(adapter);
    }
    asked
}

/// OpenAI's own servers refuse fields that they do not know, so these are sent only if they were given.
fn add_settings(asked: &mut Value, top_k: Option<i64>, penalties: Penalties, seed: Option<u64>) {
    if let Some(top_k) = top_k {
        asked["top_k"] = json!(if top_k <= 0 { -1 } else { top_k });
    }
    for (name, value) in penalties.named() {
        asked[name] = json!(value);
    }
    if let Some(seed) = seed {
        asked["seed"] = json!(engine_seed(seed));
    }
}

fn checked(server: &Server, answer: Answered) -> Result<Answered, ErrorBody> {
    let read: ChatResponse = server.read(PATH, &answer)?;
    has_choices(server, !read.choices.is_empty())?;
    // A judge would read the words so far as a whole answer.
    let is_given_up = |choice: &ChatChoice| choice.finish_reason.as_deref() == Some(GIVEN_UP);
    match read.choices.iter().any(is_given_up) {
        true => Err(given_up()),
        false => Ok(answer),
    }
}

fn has_choices(server: &Server, has: bool) -> Result<(), ErrorBody> {
    match has {
        true => Ok(()),
        false => Err(misbehaved(format!("the answer of {} has no choices", server.at(PATH)))),
    }
}
