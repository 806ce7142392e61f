//! The HTTP API of an engine pod: orders and status for the driver, sampling for clients, health for the kubelet.
//!
//! Sampling requests are forwarded in the engine's own protocol. A request that names a version gets an answer sampled
//! from that version or a 409; the version is checked before the request and again in the answer.
//!
//! The kubelet asks here too, since it cannot reach the engine: whether the replica serves (`/readyz`), whether the
//! engine's process answers (`/engine/healthz`), and, before it ends a replica, to finish running requests first
//! (`/agent/v1/drain`).
//!
//! An engine that shares its devices with a trainer sleeps by order (`/agent/v1/sleep`).
//!
//! An account's grants decide which of this it may call ([`access`]). Clients outside of runs sample, and nothing else.

pub mod access;
mod conversation;
mod fence;

use crate::chunks::Shelf;
use crate::engine::{Engine, EngineBackend, Page};
use crate::gate::Gate;
use crate::metrics::Metrics;
use crate::worker::Orders;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, JsonRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Json, Router};
use grpo_auth::Guard;
use grpo_contracts::driver_epoch::{self, Fence};
use grpo_engine_protocol::{
    AgentState, AgentStatus, ErrorBody, ErrorCode, Relay, SleepOrder, TEXT_PATH, TextRequest, WEIGHTS_HEADER,
    WeightsOrder,
};
use reqwest::Url;
use serde::Deserialize;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use tokio::sync::{Semaphore, watch};

use access::{CHUNKS, Client, Grants, STATUS, authorize};

/// State that the HTTP handlers share.
pub struct HttpState {
    pub engine: EngineBackend,
    pub orders: watch::Sender<Orders>,
    /// Refuses orders of a driver that a later attempt has followed.
    pub fence: Fence,
    pub status: watch::Receiver<AgentStatus>,
    /// Counts the requests at the engine. The worker closes it while the engine sleeps.
    pub gate: Arc<Gate>,
    /// Key that the kubelet sends with its drain request.
    pub drain_key: Option<String>,
    /// Files of versions for other agents.
    pub shelf: Shelf,
    /// What each account may call.
    pub grants: Grants,
    /// Permits for concurrent requests of clients outside of runs.
    pub client_places: Semaphore,
    pub limits: Limits,
    pub metrics: Metrics,
}

/// Largest sizes of bodies.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub request_bytes: usize,
    pub answer_bytes: usize,
}

/// Carries the kubelet's key: a hook of a container can send a fixed header, and no token.
pub const DRAIN_KEY_HEADER: &str = "grpo-drain-key";

/// All routes, for callers with a token for engine agents. The kubelet's routes need no token.
pub fn guarded(state: Arc<HttpState>, guard: Guard) -> Router {
    let guard = guard.open_at("/engine/healthz").open_at("/engine/metrics");
    guard.open_at("/agent/v1/drain").before(router(state))
}

fn router(state: Arc<HttpState>) -> Router {
    let request_bytes = state.limits.request_bytes;
    Router::new()
        .route("/v1/completions", post(complete))
        .route("/v1/chat/completions", post(chat))
        .route(TEXT_PATH, post(text))
        .route("/v1/models", get(models))
        .route("/agent/v1/weights", put(order))
        .route("/agent/v1/prefetch", put(prefetch))
        .route("/agent/v1/sleep", put(sleep))
        .route(STATUS, get(status))
        .route(&format!("{CHUNKS}{{version}}/{{file}}/{{chunk}}"), get(chunk))
        .route("/agent/v1/drain", get(drain))
        .route("/healthz", get(|| async { "ok" }))
        .route("/engine/healthz", get(engine_health))
        .route("/engine/metrics", get(engine_metrics))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(|| async { refusal(ErrorBody::new(ErrorCode::NotFound, "the engine agent has no such path")) })
        // Inside the limit, which it lowers for clients.
        .layer(middleware::from_fn_with_state(state.clone(), authorize))
        .layer(DefaultBodyLimit::max(request_bytes))
        .with_state(state)
}

fn refusal(error: ErrorBody) -> Response {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let wait = error.retry_after_seconds;
    let mut answer = (status, Json(error)).into_response();
    if let Some(seconds) = wait {
        answer
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// The parts of an answer that are read.
#[derive(Deserialize)]
struct SampledFrom {
    weights_version: String,
    choices: Vec<ChoiceFrom>,
}

#[derive(Deserialize)]
struct ChoiceFrom {
    weights_version: String,
}

async fn complete(
    State(state): State<Arc<HttpState>>,
    client: Option<Extension<Client>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let answer = state.complete(client.is_some(), &headers, body).await;
    state.metrics.count(answer.as_ref().err());
    answer.unwrap_or_else(refusal)
}

async fn chat(
    State(state): State<Arc<HttpState>>,
    client: Option<Extension<Client>>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let answer = state.chat(client.is_some(), body).await;
    state.metrics.count(answer.as_ref().err());
    answer.unwrap_or_else(refusal)
}

async fn text(
    State(state): State<Arc<HttpState>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let answer = state.text(&headers, body).await;
    state.metrics.count(answer.as_ref().err());
    answer.unwrap_or_else(refusal)
}

async fn models(State(state): State<Arc<HttpState>>) -> Response {
    page(&state, Page::Models).await
}

async fn engine_metrics(State(state): State<Arc<HttpState>>) -> Response {
    page(&state, Page::Metrics).await
}

async fn engine_health(State(state): State<Arc<HttpState>>) -> Response {
    page(&state, Page::Health).await
}

async fn page(state: &HttpState, page: Page) -> Response {
    match state.engine.page(page).await {
        Ok(answer) => answer.into_response(),
        Err(fault) => refusal(fault.refusal()),
    }
}

/// Refuses new requests, and answers when all running requests have ended. If the drain is for an engine that does not
/// answer, its successor accepts requests again.
async fn drain(State(state): State<Arc<HttpState>>, headers: HeaderMap) -> Response {
    let given = headers.get(DRAIN_KEY_HEADER).map_or(&[][..], |key| key.as_bytes());
    let key = state.drain_key.as_deref().unwrap_or_default().as_bytes();
    if key.is_empty() || !bool::from(key.ct_eq(given)) {
        let message =
            format!("only the kubelet drains a replica, by the header {DRAIN_KEY_HEADER}; delete its pod instead");
        return (StatusCode::FORBIDDEN, message).into_response();
    }
    state.gate.set_draining(true);
    tracing::info!("no new requests; those in progress come to their end");
    state.gate.emptied().await;
    "drained".into_response()
}

async fn order(
    State(state): State<Arc<HttpState>>,
    headers: HeaderMap,
    body: Result<Json<WeightsOrder>, JsonRejection>,
) -> Response {
    let order = match body {
        Ok(Json(order)) => order,
        Err(rejection) => return refusal(ErrorBody::new(ErrorCode::InvalidRequest, rejection.body_text())),
    };
    if let Err(error) = check(&order) {
        return refusal(error);
    }
    let take = |orders: &mut Orders| {
        orders.received += 1;
        let another = !orders.wanted.as_ref().is_some_and(|wanted| wanted.is_same(&order));
        if another {
            tracing::info!(version = order.version, source = order.source, "new order");
        }
        // The next attempt asks the members of the newest order.
        orders.wanted = Some(order);
        // A repeated order does not disturb the current attempt.
        another
    };
    fence::admit(&state.fence, &headers, || state.orders.send_if_modified(take))
}

async fn prefetch(
    State(state): State<Arc<HttpState>>,
    headers: HeaderMap,
    body: Result<Json<WeightsOrder>, JsonRejection>,
) -> Response {
    let order = match body {
        Ok(Json(order)) => order,
        Err(rejection) => return refusal(ErrorBody::new(ErrorCode::InvalidRequest, rejection.body_text())),
    };
    if let Err(error) = check(&order) {
        return refusal(error);
    }
    let take = |orders: &mut Orders| {
        let another = !orders
            .prefetch
            .as_ref()
            .is_some_and(|prefetch| prefetch.is_same(&order));
        orders.prefetch = Some(order);
        another
    };
    fence::admit(&state.fence, &headers, || state.orders.send_if_modified(take))
}

async fn sleep(
    State(state): State<Arc<HttpState>>,
    headers: HeaderMap,
    body: Result<Json<SleepOrder>, JsonRejection>,
) -> Response {
    let SleepOrder { asleep } = match body {
        Ok(Json(order)) => order,
        Err(rejection) => return refusal(ErrorBody::new(ErrorCode::InvalidRequest, rejection.body_text())),
    };
    if let Some(why) = state.engine.cannot_sleep() {
        let message = format!("this engine cannot sleep: {why}");
        return refusal(ErrorBody::new(ErrorCode::InvalidRequest, message));
    }
    let take = |orders: &mut Orders| {
        orders.received += 1;
        let another = orders.asleep != Some(asleep);
        if another {
            tracing::info!(asleep, "new order");
        }
        orders.asleep = Some(asleep);
        another
    };
    fence::admit(&state.fence, &headers, || state.orders.send_if_modified(take))
}

fn check(order: &WeightsOrder) -> Result<(), ErrorBody> {
    let invalid = |message: String| ErrorBody::new(ErrorCode::InvalidRequest, message);
    crate::cache::checked_name(&order.version).map_err(|error| invalid(format!("version: {error}")))?;
    let source = Url::parse(&order.source).map_err(|error| invalid(format!("source {:?}: {error}", order.source)))?;
    if !["http", "https"].contains(&source.scheme()) {
        return Err(invalid(format!("source {source} must be an http or https URL")));
    }
    if order.manifest_sha256.len() != 64 || hex::decode(&order.manifest_sha256).is_err() {
        return Err(invalid("manifestSha256 must be 64 hexadecimal digits".to_owned()));
    }
    let Some(relay) = &order.relay else {
        return Ok(());
    };
    let members = relay.members.len();
    if relay.own >= members || members > Relay::MOST {
        let message = format!(
            "relay.own is {} of {members} members; it must be below their number, which is at most {}",
            relay.own,
            Relay::MOST
        );
        return Err(invalid(message));
    }
    let wrong = |url: &&String| !Url::parse(url).is_ok_and(|url| url.scheme() == "http");
    match relay.members.iter().find(wrong) {
        Some(wrong) => Err(invalid(format!("relay.members has {wrong:?}, which is no http URL"))),
        None => Ok(()),
    }
}

/// The file that an agent means: a version of this name may have had another one.
#[derive(Deserialize)]
struct OfFile {
    sha256: String,
}

/// A chunk of a file, for another agent that gets the same version. Waits for one that is on its way.
async fn chunk(
    State(state): State<Arc<HttpState>>,
    Path((version, file, chunk)): Path<(String, String, u64)>,
    Query(OfFile { sha256 }): Query<OfFile>,
) -> Response {
    match state.shelf.chunk(&version, &file, &sha256, chunk).await {
        Ok(body) => body.into_response(),
        Err(error) => (error.status(), error.to_string()).into_response(),
    }
}

async fn status(State(state): State<Arc<HttpState>>, headers: HeaderMap) -> Json<AgentStatus> {
    // First, so that no order of an earlier attempt follows what the driver reads here.
    let from = headers.get(driver_epoch::HEADER);
    state.fence.notice_header(from.map(HeaderValue::as_bytes));
    Json(state.status.borrow().clone())
}

async fn ready(State(state): State<Arc<HttpState>>) -> Response {
    if let Err(error) = state.gate.must_be_open()
        && state.gate.is_draining()
    {
        return refusal(error);
    }
    let status = state.status.borrow().clone();
    let is_well = !matches!(status.state, AgentState::Booting | AgentState::Failed);
    match status.serving {
        Some(serving) => format!("serves {serving}").into_response(),
        // A replica that sleeps by order, falls asleep or wakes up is not broken.
        None if is_well && state.gate.is_sleeping() => "asleep while the trainer uses its memory".into_response(),
        None => refusal(ErrorBody::new(
            ErrorCode::EngineUnavailable,
            status
                .message
                .unwrap_or_else(|| "the engine has not answered yet".to_owned()),
        )),
    }
}

async fn metrics(State(state): State<Arc<HttpState>>) -> Response {
    match state.metrics.text(&state.status.borrow()) {
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

impl HttpState {
    async fn complete(
        &self,
        client: bool,
        headers: &HeaderMap,
        body: Result<Bytes, BytesRejection>,
    ) -> Result<Response, ErrorBody> {
        let body = self.whole(client, body)?;
        if client {
            access::one_row(&body)?;
        }
        // Before the version: a sleeping engine serves none, and will serve again.
        self.must_be_open(client)?;
        let wanted = self.wanted(headers)?;
        let _place = self.gate.enter()?;
        let version = wanted.clone().or_else(|| self.status.borrow().serving.clone());
        let version = version.as_deref().filter(|_| self.names_versions(&wanted));
        let answer = self.answer(client, self.engine.complete(body, version)).await?;
        if let Some(wanted) = &wanted
            && answer.status.is_success()
        {
            sampled_from(&answer.body, wanted)?;
        }
        Ok(answer.into_response())
    }

    /// The version that a request names, if this replica serves it.
    fn wanted(&self, headers: &HeaderMap) -> Result<Option<String>, ErrorBody> {
        let wanted = headers
            .get(WEIGHTS_HEADER)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        if let Some(wanted) = &wanted {
            let status = self.status.borrow();
            if status.serving.as_ref() != Some(wanted) {
                return Err(ErrorBody::wrong_weights(status.serving.as_deref(), wanted));
            }
        }
        Ok(wanted)
    }

    /// Answers the driver in messages. Clients may not call this.
    async fn text(&self, headers: &HeaderMap, body: Result<Bytes, BytesRejection>) -> Result<Response, ErrorBody> {
        let body = self.whole(false, body)?;
        let request: TextRequest = serde_json::from_slice(&body)
            .map_err(|error| ErrorBody::new(ErrorCode::InvalidRequest, error.to_string()))?;
        self.must_be_open(false)?;
        self.wanted(headers)?;
        let _place = self.gate.enter()?;
        let answer = self.answer(false, self.engine.text(request)).await?;
        Ok(answer.into_response())
    }

    /// Answers a conversation with the served weights.
    async fn chat(&self, client: bool, body: Result<Bytes, BytesRejection>) -> Result<Response, ErrorBody> {
        let request = conversation::read(&self.whole(client, body)?)?;
        self.must_be_open(client)?;
        let _place = self.gate.enter()?;
        let answer = self.answer(client, self.engine.chat(request)).await?;
        Ok(answer.into_response())
    }

    fn whole(&self, client: bool, body: Result<Bytes, BytesRejection>) -> Result<Bytes, ErrorBody> {
        body.map_err(|rejection| {
            let code = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::BodyTooLarge,
                _ => ErrorCode::InvalidRequest,
            };
            let limit = access::body_limit(self.limits, client);
            ErrorBody::new(
                code,
                format!("{}; at most {limit} bytes are taken", rejection.body_text()),
            )
        })
    }

    /// Whether the agent names the version in a request. For a request without a version, our own engines choose it
    /// themselves, when they begin the request.
    fn names_versions(&self, wanted: &Option<String>) -> bool {
        wanted.is_some() || !matches!(self.engine, EngineBackend::Embedded(_) | EngineBackend::Remote(_))
    }
}

/// Accepts an answer only if all of it was sampled from `wanted`.
fn sampled_from(answer: &[u8], wanted: &str) -> Result<(), ErrorBody> {
    let from: SampledFrom = serde_json::from_slice(answer).map_err(|error| {
        ErrorBody::new(
            ErrorCode::EngineMisbehaved,
            format!("the engine's answer does not say which weights it comes from: {error}"),
        )
    })?;
    let versions = std::iter::once(&from.weights_version).chain(from.choices.iter().map(|row| &row.weights_version));
    match versions.into_iter().find(|version| *version != wanted) {
        Some(other) => Err(ErrorBody::wrong_weights(Some(other), wanted)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
