//! The driver's server for the cluster: files of published weights, with ranges, the pinned files of the model,
//! progress and metrics.

use crate::metrics::Metrics;
use crate::progress::Board;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use grpo_auth::AllowedAccount;
use grpo_contracts::access::account;
use grpo_contracts::{ModelDownload, RunConfig};
use grpo_crds::inference_pool::ExternalWeights;
use grpo_hub::Pin;
use grpo_records::RunStore;
use std::sync::Arc;
use tokio::sync::watch;

mod weights;

#[derive(Clone)]
struct Shown {
    board: Board,
    metrics: Arc<Metrics>,
    model: watch::Receiver<Option<Pin>>,
}

/// The accounts that may pull the run's weights: its engines' account, and its trainer's if a model is downloaded.
/// Engine agents behind the run's proxy pool belong to pools that the run does not name, so then any engines' account
/// may pull.
pub fn callers(config: &RunConfig) -> Vec<AllowedAccount> {
    let inference = &config.spec.inference;
    let pool = inference.pool_ref.as_ref().map_or(&config.name, |pool| &pool.name);
    let external = inference.pool.as_ref().and_then(|pool| pool.engine.external.as_ref());
    let passes_on = external.is_some_and(|engine| engine.weights == ExternalWeights::Agent);
    let others = passes_on.then(|| account::engines("*"));
    let trainer = config.model_download.as_ref().map(|_| account::trainer(&config.name));
    let names = [account::engines(pool)].into_iter().chain(others).chain(trainer);
    let allowed = names.map(|name| format!("{}/{name}", config.namespace).parse());
    allowed.filter_map(Result::ok).collect()
}

/// `/healthz`, `/metrics`, `/v1/progress`, `/v1/model`, `/weights/<version>/<file>`.
pub fn router(store: &RunStore, board: Board, metrics: Arc<Metrics>, model: watch::Receiver<Option<Pin>>) -> Router {
    let weights = Router::new()
        .route("/{version}/{file}", get(weights::file))
        .with_state(store.clone());
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(numbers))
        .route("/v1/progress", get(progress))
        .route(ModelDownload::PIN_ROUTE, get(pinned))
        .nest_service("/weights", weights)
        .with_state(Shown { board, metrics, model })
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

/// The pinned files of the model. 503 until they are known.
async fn pinned(State(shown): State<Shown>) -> Response {
    match &*shown.model.borrow() {
        Some(pin) => Json(pin).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the model is not pinned yet").into_response(),
    }
}

#[cfg(test)]
mod tests;
