//! The judge's server: OpenAI's chat completions, as the engine agents of a pool with an external server ask for them.
//!
//! A request's last message is the question; sampling settings have no influence on the answer.

use super::Judge;
use crate::chat_server::ChatServer;
use axum::Json;
use axum::extract::State;
use axum::routing::post;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;

/// The name of its model.
pub const MODEL: &str = "demo-judge";

#[derive(Deserialize)]
struct ChatQuestion {
    messages: Vec<ChatMessage>,
}

#[derive(Deserialize)]
struct ChatMessage {
    content: String,
}

/// Serves the judge on a port of this address.
pub async fn start(address: &str, judge: Judge) -> io::Result<ChatServer> {
    ChatServer::start(address, post(answer).with_state(Arc::new(judge))).await
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
