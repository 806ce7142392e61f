//! The port for probes and Prometheus.

use std::net::SocketAddr;

use axum::{Router, extract::State, http::header, response::IntoResponse, routing::get};

use super::Metrics;

/// Serves `/healthz`, `/readyz` and `/metrics` until the process ends. A replica that waits for the Lease is ready too.
pub async fn serve(listen: SocketAddr, metrics: Metrics) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(grpo_contracts::listen::listen(listen)?)?;
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async || "ok\n"))
        .route("/metrics", get(text))
        .with_state(metrics);
    axum::serve(listener, router).await
}

async fn text(State(metrics): State<Metrics>) -> impl IntoResponse {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content)], metrics.text())
}
