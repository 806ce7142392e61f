//! The engine's HTTP surface: OpenAI's completion, chat and model routes, health, metrics, and the admin API.
//!
//! The admin API shares the port: the engine listens on loopback, and only its agent is in the same pod.

use crate::chat::Chat;
use crate::inbox::Inbox;
use crate::job::Answer;
use crate::loader::Loader;
use crate::metrics::Metrics;
use crate::model::Bounds;
use crate::request;
use crate::scheduler::Report;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use grpo_engine_protocol::{
    ChatRequest, ChatResponse, ChoiceLogprobs, CompletionChoice, CompletionRequest, CompletionResponse, EngineState,
    ErrorBody, ErrorCode, LoadRequest, LoadResponse, ModelCard, ModelList, Usage, WEIGHTS_HEADER,
};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Largest accepted body: a few thousand prompts of a few thousand ids.
const MAX_BODY_BYTES: usize = 64 << 20;

/// State that the HTTP handlers share with the engine loop.
pub struct HttpState {
    pub inbox: Arc<Inbox>,
    pub report: Arc<Mutex<Report>>,
    pub metrics: Arc<Metrics>,
    pub model_name: String,
    pub max_rows: usize,
    pub bounds: Bounds,
    pub chat: Arc<Chat>,
    pub loader: Loader,
    /// Makes answer ids unique across restarts.
    pub started: u64,
    pub answers: AtomicU64,
}

pub fn router(state: Arc<HttpState>) -> Router {
    Router::new()
        .route("/v1/completions", post(complete))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/models", get(models))
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(metrics))
        .route("/admin/load", post(load))
        .route("/admin/sleep", post(sleep))
        .route("/admin/wake", post(wake))
        .route("/admin/state", get(engine_state))
        .fallback(|| async { Refusal(ErrorBody::new(ErrorCode::NotFound, "the engine has no such path")) })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(state)
}

/// Seconds since the epoch.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// An answer to a conversation, with the fields that OpenAI's clients expect beside it.
#[derive(Serialize)]
struct ChatCompletion {
    id: String,
    object: &'static str,
    created: u64,
    #[serde(flatten)]
    answer: ChatResponse,
}

struct Refusal(ErrorBody);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0)).into_response()
    }
}

impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        let code = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::BodyTooLarge,
            _ => ErrorCode::InvalidRequest,
        };
        Self(ErrorBody::new(code, rejection.body_text()))
    }
}

async fn complete(
    State(state): State<Arc<HttpState>>,
    headers: HeaderMap,
    body: Result<Json<CompletionRequest>, JsonRejection>,
) -> Result<Json<CompletionResponse>, Refusal> {
    let answer = state.complete(headers, body).await;
    state.count(answer.is_ok());
    answer.map(Json)
}

async fn chat(
    State(state): State<Arc<HttpState>>,
    body: Result<Json<ChatRequest>, JsonRejection>,
) -> Result<Json<ChatCompletion>, Refusal> {
    let answer = state.chat(body).await;
    state.count(answer.is_ok());
    answer.map(Json)
}

async fn models(State(state): State<Arc<HttpState>>) -> Json<ModelList> {
    let card = ModelCard {
        id: state.model_name.clone(),
        object: "model".to_owned(),
        created: state.started,
        owned_by: "grpo.dev".to_owned(),
        max_model_len: state.bounds.max_context as u32,
        weights_version: Some(state.report().version),
    };
    Json(ModelList {
        object: "list".to_owned(),
        data: vec![card],
    })
}

async fn metrics(State(state): State<Arc<HttpState>>) -> Response {
    state.metrics.waiting.set(state.inbox.waiting() as i64);
    match state.metrics.text() {
        Ok(text) => (
            [(
                header::CONTENT_TYPE,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn engine_state(State(state): State<Arc<HttpState>>) -> Json<EngineState> {
    Json(state.now())
}

async fn load(
    State(state): State<Arc<HttpState>>,
    body: Result<Json<LoadRequest>, JsonRejection>,
) -> Result<Json<LoadResponse>, Refusal> {
    let Json(request) = body?;
    to_the_end(async move { state.loader.load(request).await }).await
}

async fn sleep(State(state): State<Arc<HttpState>>) -> Result<Json<EngineState>, Refusal> {
    to_the_end(async move {
        state.loader.sleep().await?;
        Ok(state.now())
    })
    .await
}

async fn wake(State(state): State<Arc<HttpState>>) -> Result<Json<EngineState>, Refusal> {
    to_the_end(async move {
        state.loader.wake().await?;
        Ok(state.now())
    })
    .await
}

/// Changes the weights in a separate task: a caller that hangs up must not leave a change half done.
async fn to_the_end<T: Send + 'static>(
    change: impl Future<Output = Result<T, ErrorBody>> + Send + 'static,
) -> Result<Json<T>, Refusal> {
    match tokio::spawn(change).await {
        Ok(changed) => changed.map(Json).map_err(Refusal),
        Err(error) => Err(Refusal(ErrorBody::new(
            ErrorCode::LoadFailed,
            format!("the change of weights broke off: {error}"),
        ))),
    }
}

impl HttpState {
    async fn complete(
        &self,
        headers: HeaderMap,
        body: Result<Json<CompletionRequest>, JsonRejection>,
    ) -> Result<CompletionResponse, Refusal> {
        let Json(request) = body?;
        let wanted = headers
            .get(WEIGHTS_HEADER)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let model = request.model.clone();
        let (with_ids, with_logprobs) = (request.return_token_ids, request.logprobs.is_some());
        let (answer, usage) = self.sample(request, wanted).await.map_err(Refusal)?;
        let version = answer.version;
        let choices = answer
            .rows
            .into_iter()
            .enumerate()
            .map(|(index, row)| CompletionChoice {
                index: index as u32,
                text: String::new(),
                token_ids: if with_ids { row.tokens } else { Vec::new() },
                finish_reason: row.finish,
                stop_reason: row.stop_token,
                logprobs: with_logprobs.then_some(ChoiceLogprobs {
                    token_logprobs: row.logprobs,
                }),
                routed_experts: None,
                weights_version: version.clone(),
            });
        Ok(CompletionResponse {
            id: self.answer_id("cmpl"),
            object: "text_completion".to_owned(),
            created: now(),
            model,
            choices: choices.collect(),
            weights_version: version,
            usage,
        })
    }

    async fn chat(&self, body: Result<Json<ChatRequest>, JsonRejection>) -> Result<ChatCompletion, Refusal> {
        let Json(request) = body?;
        let model = request.model.clone();
        let (chat, bounds) = (self.chat.clone(), self.bounds);
        let asked = aside(move || chat.asked(request, bounds)).await.map_err(Refusal)?;
        let (answer, usage) = self.sample(asked, None).await.map_err(Refusal)?;
        let chat = self.chat.clone();
        let answer = aside(move || chat.answered(model, answer.rows, usage)).await;
        Ok(ChatCompletion {
            id: self.answer_id("chatcmpl"),
            object: "chat.completion",
            created: now(),
            answer: answer.map_err(Refusal)?,
        })
    }

    /// The engine loop's answer to a request, and its token counts.
    async fn sample(&self, request: CompletionRequest, wanted: Option<String>) -> Result<(Answer, Usage), ErrorBody> {
        let (job, reply) = request::job(request, wanted, self.bounds)?;
        let prompt_tokens = job.prompts.iter().map(Vec::len).sum::<usize>() as u64;
        self.inbox.submit(job)?;
        let answer = reply.await.map_err(|_| {
            ErrorBody::new(
                ErrorCode::EngineUnavailable,
                "the engine is shutting down; use another replica",
            )
        })??;
        let completion_tokens = answer.rows.iter().map(|row| row.tokens.len()).sum::<usize>() as u64;
        let usage = Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
        };
        Ok((answer, usage))
    }

    fn answer_id(&self, kind: &str) -> String {
        let number = self.answers.fetch_add(1, Ordering::Relaxed);
        format!("{kind}-{:x}-{number:x}", self.started)
    }

    /// Counts an answered or refused sampling request.
    fn count(&self, answered: bool) {
        let counter = match answered {
            true => &self.metrics.requests,
            false => &self.metrics.refused,
        };
        counter.inc();
    }

    /// The engine's state, for its agent.
    fn now(&self) -> EngineState {
        let report = self.report();
        EngineState {
            version: report.version,
            sha256: report.sha256,
            draining: report.draining,
            asleep: report.asleep,
            running: report.running as u64,
            waiting: (report.waiting + self.inbox.waiting()) as u64,
            max_rows: self.max_rows as u32,
            max_context: self.bounds.max_context as u32,
        }
    }

    fn report(&self) -> Report {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Runs slow work outside of the event loop.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ErrorBody> + Send + 'static,
) -> Result<T, ErrorBody> {
    let worked = tokio::task::spawn_blocking(work).await;
    worked.unwrap_or_else(|error| {
        Err(ErrorBody::new(
            ErrorCode::EngineMisbehaved,
            format!("the chat template or tokenizer broke off: {error}"),
        ))
    })
}
