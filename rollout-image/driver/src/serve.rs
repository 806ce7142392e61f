//! What others may ask the driver for: the files of published weights, with ranges, and how it is.

use crate::metrics::Metrics;
use crate::progress::Board;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use grpo_auth::AllowedAccount;
use grpo_contracts::RunConfig;
use grpo_contracts::access::account;
use grpo_crds::inference_pool::ExternalWeights;
use grpo_records::RunStore;
use std::sync::Arc;

mod weights;

#[derive(Clone)]
struct Shown {
    board: Board,
    metrics: Arc<Metrics>,
}

/// The accounts that may pull the run's weights: those of its engines. Agents behind a proxy pool of the run's are of
/// pools that the run does not name.
pub fn callers(config: &RunConfig) -> Vec<AllowedAccount> {
    let inference = &config.spec.inference;
    let pool = inference.pool_ref.as_ref().map_or(&config.name, |pool| &pool.name);
    let external = inference.pool.as_ref().and_then(|pool| pool.engine.external.as_ref());
    let passes_on = external.is_some_and(|engine| engine.weights == ExternalWeights::Agent);
    let others = passes_on.then(|| account::engines("*"));
    let names = [account::engines(pool)].into_iter().chain(others);
    let allowed = names.map(|name| format!("{}/{name}", config.namespace).parse());
    allowed.filter_map(Result::ok).collect()
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
