//! The door of an engine pod: orders and status for the driver, sampling for whoever asks, health for the kubelet.
//!
//! Sampling passes through unread but for two things: how much of it there is, and which weights it is about. A request that names a version
//! gets an answer sampled from that version or a 409, checked before the engine is asked and again on what it answered.

use crate::engine::embedded::causes;
use crate::metrics::Metrics;
use crate::worker::Orders;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, JsonRejection};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use futures::StreamExt;
use grpo_engine_protocol::{AgentStatus, ErrorBody, ErrorCode, WEIGHTS_HEADER, WeightsOrder};
use reqwest::{Client, Url};
use serde::Deserialize;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// What the handlers share.
pub struct Door {
    pub client: Client,
    pub completions: Url,
    pub models: Url,
    pub orders: watch::Sender<Orders>,
    pub status: watch::Receiver<AgentStatus>,
    /// Requests at the engine at one time.
    pub places: Semaphore,
    pub limits: Limits,
    pub metrics: Metrics,
}

/// Sizes beyond which a body is refused.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub request_bytes: usize,
    pub answer_bytes: usize,
}

pub fn router(door: Arc<Door>) -> Router {
    let request_bytes = door.limits.request_bytes;
    Router::new()
        .route("/v1/completions", post(complete))
        .route("/v1/models", get(models))
        .route("/agent/v1/weights", put(order))
        .route("/agent/v1/status", get(status))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(|| async { refusal(ErrorBody::new(ErrorCode::NotFound, "the engine agent has no such path")) })
        .layer(DefaultBodyLimit::max(request_bytes))
        .with_state(door)
}

fn refusal(error: ErrorBody) -> Response {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(error)).into_response()
}

/// What is read of an answer.
#[derive(Deserialize)]
struct SampledFrom {
    weights_version: String,
    choices: Vec<ChoiceFrom>,
}

#[derive(Deserialize)]
struct ChoiceFrom {
    weights_version: String,
}

async fn complete(State(door): State<Arc<Door>>, headers: HeaderMap, body: Result<Bytes, BytesRejection>) -> Response {
    let answer = door.complete(&headers, body).await;
    door.metrics.count(answer.as_ref().err());
    answer.unwrap_or_else(refusal)
}

async fn models(State(door): State<Arc<Door>>) -> Response {
    door.forward(door.client.get(door.models.clone()))
        .await
        .map_or_else(refusal, IntoResponse::into_response)
}

async fn order(State(door): State<Arc<Door>>, body: Result<Json<WeightsOrder>, JsonRejection>) -> Response {
    let order = match body {
        Ok(Json(order)) => order,
        Err(rejection) => return refusal(ErrorBody::new(ErrorCode::InvalidRequest, rejection.body_text())),
    };
    if let Err(error) = check(&order) {
        return refusal(error);
    }
    door.orders.send_if_modified(|orders| {
        orders.received += 1;
        let another = orders.wanted.as_ref() != Some(&order);
        if another {
            tracing::info!(version = order.version, source = order.source, "new order");
            orders.wanted = Some(order);
        }
        // A repetition does not disturb the attempt under way.
        another
    });
    StatusCode::ACCEPTED.into_response()
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
    Ok(())
}

async fn status(State(door): State<Arc<Door>>) -> Json<AgentStatus> {
    Json(door.status.borrow().clone())
}

async fn ready(State(door): State<Arc<Door>>) -> Response {
    let status = door.status.borrow().clone();
    match status.serving {
        Some(serving) => format!("serves {serving}").into_response(),
        None => refusal(ErrorBody::new(
            ErrorCode::EngineUnavailable,
            status
                .message
                .unwrap_or_else(|| "the engine has not answered yet".to_owned()),
        )),
    }
}

async fn metrics(State(door): State<Arc<Door>>) -> Response {
    match door.metrics.text(&door.status.borrow()) {
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

/// What the engine answered, whole.
struct Answered {
    status: StatusCode,
    content_type: Option<HeaderValue>,
    body: Bytes,
}

impl IntoResponse for Answered {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        if let Some(content_type) = self.content_type {
            response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        }
        response
    }
}

impl Door {
    async fn complete(&self, headers: &HeaderMap, body: Result<Bytes, BytesRejection>) -> Result<Response, ErrorBody> {
        let body = body.map_err(|rejection| {
            let code = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::BodyTooLarge,
                _ => ErrorCode::InvalidRequest,
            };
            let limit = self.limits.request_bytes;
            ErrorBody::new(
                code,
                format!("{}; at most {limit} bytes are taken", rejection.body_text()),
            )
        })?;
        let wanted = headers
            .get(WEIGHTS_HEADER)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        if let Some(wanted) = &wanted {
            let status = self.status.borrow();
            if status.serving.as_ref() != Some(wanted) {
                return Err(ErrorBody::wrong_weights(status.serving.as_deref(), wanted));
            }
        }
        let _place = self.places.try_acquire().map_err(|_| {
            ErrorBody::new(
                ErrorCode::QueueFull,
                "as many requests as this replica takes are at its engine; try again later or use another replica",
            )
        })?;
        let mut call = self
            .client
            .post(self.completions.clone())
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(wanted) = &wanted {
            call = call.header(WEIGHTS_HEADER, wanted);
        }
        let answer = self.forward(call.body(body)).await?;
        if let Some(wanted) = &wanted
            && answer.status.is_success()
        {
            sampled_from(&answer.body, wanted)?;
        }
        Ok(answer.into_response())
    }

    async fn forward(&self, call: reqwest::RequestBuilder) -> Result<Answered, ErrorBody> {
        let unavailable = |error: reqwest::Error| {
            ErrorBody::new(
                ErrorCode::EngineUnavailable,
                format!(
                    "the engine does not answer: {}; use another replica until this one is ready again",
                    causes(&error)
                ),
            )
        };
        let answer = call.send().await.map_err(unavailable)?;
        let status = answer.status();
        let content_type = answer.headers().get(header::CONTENT_TYPE).cloned();
        let mut body = Vec::new();
        let mut stream = answer.bytes_stream();
        while let Some(piece) = stream.next().await {
            body.extend_from_slice(&piece.map_err(unavailable)?);
            if body.len() > self.limits.answer_bytes {
                return Err(ErrorBody::new(
                    ErrorCode::EngineMisbehaved,
                    format!(
                        "the engine's answer exceeds {} bytes; ask for fewer rows",
                        self.limits.answer_bytes
                    ),
                ));
            }
        }
        Ok(Answered {
            status,
            content_type,
            body: body.into(),
        })
    }
}

/// Lets an answer through if all of it was sampled from `wanted`.
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
mod tests {
    use super::*;

    #[test]
    fn an_answer_with_one_row_of_another_version_is_not_let_through() {
        let answer = br#"{"weights_version": "v2", "choices": [{"weights_version": "v2"}, {"weights_version": "v1"}]}"#;
        let error = sampled_from(answer, "v2").unwrap_err();
        assert_eq!(
            (error.code, error.serving.as_deref()),
            (ErrorCode::WrongWeights, Some("v1"))
        );
        assert!(
            sampled_from(
                br#"{"weights_version": "v2", "choices": [{"weights_version": "v2"}]}"#,
                "v2"
            )
            .is_ok()
        );
        assert_eq!(sampled_from(b"{}", "v2").unwrap_err().code, ErrorCode::EngineMisbehaved);
    }

    #[test]
    fn an_order_with_a_version_that_is_a_path_is_refused() {
        let order = |version: &str, source: &str| WeightsOrder {
            version: version.to_owned(),
            source: source.to_owned(),
            manifest_sha256: "0".repeat(64),
        };
        assert!(check(&order("../etc", "http://d/w")).is_err());
        assert!(check(&order("a-v1", "file:///w")).is_err());
        assert!(check(&order("a-v1", "http://d/w")).is_ok());
    }
}
