//! The script's server: OpenAI's chat completions, as the engine agents of a pool with an external server ask for them.
//!
//! Messages, calls and the seed of a request decide the answer; other sampling settings have no influence.

use super::Teacher;
use super::conversation::Asked;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The name of its model.
pub const MODEL: &str = "demo-teacher";

/// A server. It ends when this value is dropped.
#[derive(Debug)]
pub struct TeacherServer {
    /// With the `/v1` at the end.
    pub url: String,
    serving: JoinHandle<()>,
}

impl Drop for TeacherServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl TeacherServer {
    /// Listens on a port of this address.
    pub async fn start(address: &str, teacher: Teacher) -> io::Result<Self> {
        let router = Router::new()
            .route("/v1/chat/completions", post(answer))
            // A request has the whole conversation, with the tools' schemas.
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::new(teacher));
        let listener = TcpListener::bind((address, 0)).await?;
        let url = format!("http://{}/v1", listener.local_addr()?);
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, serving })
    }
}

async fn answer(State(teacher): State<Arc<Teacher>>, Json(asked): Json<Asked>) -> Json<Value> {
    let answer = teacher.answer(&asked);
    let finish = if answer.calls.is_empty() { "stop" } else { "tool_calls" };
    Json(json!({
        "object": "chat.completion",
        "model": MODEL,
        "choices": [{"index": 0, "message": answer.message(), "finish_reason": finish}],
    }))
}

#[cfg(test)]
mod tests;
