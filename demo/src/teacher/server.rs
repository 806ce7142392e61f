//! The script's server: OpenAI's chat completions, as the engine agents of a pool with an external server ask for them.
//!
//! Messages, calls and the seed of a request decide the answer; other sampling settings have no influence.

use super::Teacher;
use super::conversation::Asked;
use crate::chat_server::ChatServer;
use axum::Json;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::post;
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;

/// The name of its model.
pub const MODEL: &str = "demo-teacher";

/// Serves the script on a port of this address.
pub async fn start(address: &str, teacher: Teacher) -> io::Result<ChatServer> {
    // A request has the whole conversation, with the tools' schemas.
    let answers = post(answer)
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::new(teacher));
    ChatServer::start(address, answers).await
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
