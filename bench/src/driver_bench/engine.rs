//! The simulated engine: it returns the same answer at once, in the engines' protocol and as an OpenAI-compatible
//! server. Each kind of client has its own [`Tap`]; while a tap is closed, its requests wait.

use super::DriverBenchError;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use bytes::Bytes;
use grpo_engine_protocol::{
    AgentStatus, BASE_VERSION, ChoiceLogprobs, CompletionChoice, CompletionResponse, FinishReason, Usage,
};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Path of the taps below the engine's address.
pub const STREAM: &str = "/stream/v1/chat/completions";
pub const CHAT: &str = "/chat/v1/chat/completions";

/// The fixed answers.
pub struct Answers {
    /// For the driver.
    pub ids: Vec<u32>,
    /// For the other clients: content, and the name and arguments of a call.
    pub content: String,
    pub call: Option<(String, String)>,
}

pub struct Tap {
    answer: Bytes,
    kind: &'static str,
    open: watch::Sender<bool>,
    /// While the tap is closed, requests with at least this many ids wait. Shorter ones only prove that the engine
    /// samples.
    holds_from: usize,
    held: AtomicUsize,
    answered: AtomicU64,
}

impl Tap {
    fn new(answer: impl Into<Bytes>, kind: &'static str, holds_from: usize) -> Arc<Self> {
        Arc::new(Self {
            answer: answer.into(),
            kind,
            open: watch::channel(false).0,
            holds_from,
            held: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
        })
    }

    pub fn open(&self, open: bool) {
        self.open.send_replace(open);
    }

    /// The number of waiting requests.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// The number of answered requests.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

/// Serves until it is dropped.
pub struct PlayedEngine {
    pub address: SocketAddr,
    pub driver: Arc<Tap>,
    pub stream: Arc<Tap>,
    pub chat: Arc<Tap>,
    serves: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl PlayedEngine {
    /// `holds_from` is for the driver's tap. At first all taps are closed, and the engine serves no weights.
    pub async fn start(answers: &Answers, holds_from: usize) -> Result<Self, DriverBenchError> {
        let of_driver = serde_json::to_vec(&completion(&answers.ids)).unwrap_or_default();
        let driver = Tap::new(of_driver, "application/json", holds_from);
        let stream = Tap::new(events(answers), "text/event-stream", 0);
        let chat = Tap::new(whole(answers).to_string(), "application/json", 0);
        let serves = watch::channel(false).0;
        let router = Router::new()
            .route("/v1/completions", post(answered).with_state(driver.clone()))
            .route(STREAM, post(answered).with_state(stream.clone()))
            .route(CHAT, post(answered).with_state(chat.clone()))
            .route("/agent/v1/status", get(status).with_state(serves.subscribe()));
        let (address, serving) = serve(router).await?;
        Ok(Self {
            address,
            driver,
            stream,
            chat,
            serves,
            serving,
        })
    }

    /// From now on the engine reports that it serves the base weights.
    pub fn serve_weights(&self) {
        self.serves.send_replace(true);
    }
}

impl Drop for PlayedEngine {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Serves a router on a port of its own.
pub async fn serve(router: Router) -> Result<(SocketAddr, JoinHandle<()>), DriverBenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.map_err(DriverBenchError::io("listening"))?;
    let address = listener
        .local_addr()
        .map_err(DriverBenchError::io("asking for a port"))?;
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true);
    });
    // Ends only when aborted.
    let serving = tokio::spawn(async move {
        let _ = axum::serve(listener, router).await;
    });
    Ok((address, serving))
}

async fn answered(State(tap): State<Arc<Tap>>, request: Request) -> Response {
    let mut open = tap.open.subscribe();
    let is_open = *open.borrow();
    let mut body: Body = request.into_body();
    let mut ids = 0;
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(data) = frame.data_ref().filter(|_| !is_open) {
            ids += data.iter().filter(|byte| **byte == b',').count();
        }
    }
    if !is_open && ids >= tap.holds_from {
        tap.held.fetch_add(1, Ordering::Relaxed);
        let _ = open.wait_for(|open| *open).await;
        tap.held.fetch_sub(1, Ordering::Relaxed);
    }
    tap.answered.fetch_add(1, Ordering::Relaxed);
    ([(CONTENT_TYPE, tap.kind)], tap.answer.clone()).into_response()
}

async fn status(State(serves): State<watch::Receiver<bool>>) -> Json<AgentStatus> {
    let serves = *serves.borrow();
    let status = AgentStatus::serving(BASE_VERSION);
    Json(AgentStatus {
        serving: status.serving.filter(|_| serves),
        ..status
    })
}

fn completion(ids: &[u32]) -> CompletionResponse {
    CompletionResponse {
        id: "c".into(),
        object: "text_completion".into(),
        created: 0,
        model: "policy".into(),
        weights_version: BASE_VERSION.into(),
        choices: vec![CompletionChoice {
            index: 0,
            text: String::new(),
            token_ids: ids.to_vec(),
            finish_reason: FinishReason::Stop,
            stop_reason: ids.last().copied(),
            logprobs: Some(ChoiceLogprobs {
                // As long in JSON as real logprobs.
                token_logprobs: (0..ids.len()).map(|at| -0.123_456_7 - at as f32 / 1024.0).collect(),
            }),
            routed_experts: None,
            weights_version: BASE_VERSION.into(),
        }],
        usage: Usage::default(),
    }
}

fn finish(answers: &Answers) -> &'static str {
    match answers.call {
        Some(_) => "tool_calls",
        None => "stop",
    }
}

fn calls(answers: &Answers) -> Vec<Value> {
    let calls = answers.call.iter().map(|(name, arguments)| {
        let function = json!({"name": name, "arguments": arguments});
        json!({"index": 0, "id": "call_0_0", "type": "function", "function": function})
    });
    calls.collect()
}

fn usage(answers: &Answers) -> Value {
    let count = answers.ids.len();
    json!({"prompt_tokens": 1000, "completion_tokens": count, "total_tokens": 1000 + count})
}

/// A chat completion in one piece.
fn whole(answers: &Answers) -> Value {
    let mut message = json!({"role": "assistant", "content": answers.content});
    if answers.call.is_some() {
        message["tool_calls"] = calls(answers).into();
    }
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "policy", "usage": usage(answers),
        "choices": [{"index": 0, "message": message, "finish_reason": finish(answers)}],
    })
}

/// The same answer as a stream: content, call, end, usage.
fn events(answers: &Answers) -> String {
    let choice = |delta: Value, finish: Option<&str>| json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
    let chunks = [
        (
            choice(json!({"role": "assistant", "content": answers.content}), None),
            None,
        ),
        (choice(json!({"tool_calls": calls(answers)}), None), None),
        (choice(json!({}), Some(finish(answers))), None),
        (json!([]), Some(usage(answers))),
    ];
    let mut text = String::new();
    for (choices, usage) in chunks {
        let chunk = json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "policy",
            "choices": choices, "usage": usage,
        });
        text.push_str(&format!("data: {chunk}\n\n"));
    }
    text + "data: [DONE]\n\n"
}
