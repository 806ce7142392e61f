//! What others may ask the driver for: the files of published weights, with ranges, and how it is.

use crate::metrics::Metrics;
use crate::progress::Board;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use grpo_records::RunStore;
use std::sync::Arc;

mod weights;

#[derive(Clone)]
struct Shown {
    board: Board,
    metrics: Arc<Metrics>,
}

/// `/healthz`, `/metrics`, `/v1/progress`, `/weights/<version>/<file>`.
pub fn router(store: &RunStore, board: Board, metrics: Arc<Metrics>) -> Router {
    let weights = Router::new()
        .route("/{version}/{file}", get(weights::file))
        .with_state(store.clone());
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(numbers))
        .route("/v1/progress", get(progress))
        .nest_service("/weights", weights)
        .with_state(Shown { board, metrics })
}

async fn numbers(State(shown): State<Shown>) -> Response {
    let kind = [(
        "content-type",
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
    )];
    (kind, shown.metrics.text()).into_response()
}

async fn progress(State(shown): State<Shown>) -> Response {
    Json(shown.board.now()).into_response()
}

#[cfg(test)]
mod tests;
