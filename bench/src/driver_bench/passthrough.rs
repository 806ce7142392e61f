//! The smallest possible endpoint in front of an engine: axum takes a body, hyper sends it on, and the answer goes back
//! to the client. It reads and records nothing.

use super::{DriverBenchError, engine::STREAM};
use crate::sandbox_bench::caller::Caller;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Serves until the process ends. `engine` is the URL that requests are sent to.
pub async fn serve(listen: SocketAddr, engine: String) -> Result<(), DriverBenchError> {
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(DriverBenchError::io(format!("listening on {listen}")))?;
    let router = Router::new()
        .route("/v1/chat/completions", post(forward))
        .with_state(Caller::new(engine));
    let served = axum::serve(listener, router).await;
    served.map_err(DriverBenchError::io("serving"))
}

async fn forward(State(engine): State<Caller>, body: Bytes) -> Response {
    match engine.send(Method::POST, STREAM, body).await {
        Ok((status, answer)) => (status, [(CONTENT_TYPE, "text/event-stream")], answer).into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
