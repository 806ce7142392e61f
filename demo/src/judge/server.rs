//! The judge's server: OpenAI's chat completions, as the engine agents of a pool with an external server ask for them.
//!
//! A request's last message is the question; sampling settings have no influence on the answer.

use super::Judge;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The name of its model.
pub const MODEL: &str = "demo-judge";

/// A server. It ends when this value is dropped.
#[derive(Debug)]
pub struct JudgeServer {
    /// With the `/v1` at the end.
    pub url: String,
    serving: JoinHandle<()>,
}

#[derive(Deserialize)]
struct ChatQuestion {
    messages: Vec<ChatMessage>,
}

#[derive(Deserialize)]
struct ChatMessage {
    content: String,
}

impl Drop for JudgeServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl JudgeServer {
    /// Listens on a port of this address.
    pub async fn start(address: &str, judge: Judge) -> io::Result<Self> {
        let router = Router::new()
            .route("/v1/chat/completions", post(answer))
            .with_state(Arc::new(judge));
        let listener = TcpListener::bind((address, 0)).await?;
        let url = format!("http://{}/v1", listener.local_addr()?);
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, serving })
    }
}

async fn answer(State(judge): State<Arc<Judge>>, Json(asked): Json<ChatQuestion>) -> Json<Value> {
    let question = asked.messages.last().map_or("", |message| message.content.as_str());
    let message = json!({"role": "assistant", "content": judge.answer(question)});
    Json(json!({
        "object": "chat.completion",
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }))
}

#[cfg(test)]
mod tests;
