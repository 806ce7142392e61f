//! The memory of a simulated engine, which it gives back and takes up again as ordered.

use super::Fake;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct Memory {
    /// What has no memory: `weights`, `kv_cache`.
    pub(super) released: BTreeSet<String>,
    /// Orders that a real engine does not survive, or that need memory that is released.
    crashes: Vec<String>,
    refused: Option<String>,
    stays_awake: bool,
    /// A paused vLLM says that it sleeps.
    paused: bool,
}

impl Memory {
    pub(super) fn restart(&mut self) {
        self.released.clear();
        self.paused = false;
    }
}

pub(super) fn of_vllm() -> Router<Fake> {
    Router::new()
        .route("/sleep", post(sleep))
        .route("/wake_up", post(wake_up))
        .route("/is_sleeping", get(is_sleeping))
        .route("/pause", post(pause))
        .route("/resume", post(go_on))
}

pub(super) fn of_sglang() -> Router<Fake> {
    Router::new()
        .route("/flush_cache", post(flush_cache))
        .route("/release_memory_occupation", post(release))
        .route("/resume_memory_occupation", post(resume))
}

impl Fake {
    /// What has no memory now.
    pub fn released(&self) -> Vec<String> {
        self.told().memory.released.iter().cloned().collect()
    }

    /// Orders that would have ended a real engine.
    pub fn crashes(&self) -> Vec<String> {
        self.told().memory.crashes.clone()
    }

    /// Answers 500 to orders about memory, and to vLLM's order to read weights, whose path and body have this in them,
    /// until it is called with nothing.
    pub fn refuse(&self, part: Option<&str>) {
        self.told().memory.refused = part.map(str::to_owned);
    }

    /// Says that it went to sleep, and does not.
    pub fn stay_awake(&self, stays: bool) {
        self.told().memory.stays_awake = stays;
    }

    /// Notes an order about memory; returns its refusal, if it is refused.
    pub(super) fn memory_order(&self, path: &str, body: &Value) -> Option<Response> {
        self.note(path, body);
        let order = format!("{path} {body}");
        let refused = self
            .told()
            .memory
            .refused
            .as_ref()
            .is_some_and(|part| order.contains(part));
        refused.then(|| {
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                Json(json!({"error": "out of memory"})),
            )
                .into_response()
        })
    }

    /// Notes work that needs memory which is released.
    pub(super) fn needs(&self, part: &str, path: &str) {
        let mut told = self.told();
        if told.memory.released.contains(part) {
            told.memory.crashes.push(format!("{path} without {part}"));
        }
    }
}

async fn sleep(State(fake): State<Fake>, request: Request) -> Response {
    if let Some(refusal) = fake.memory_order(&request.uri().to_string(), &Value::Null) {
        return refusal;
    }
    let mut told = fake.told();
    // A vLLM that is asleep in part takes itself for asleep.
    if told.memory.released.is_empty() && !told.memory.stays_awake {
        told.memory.released = ["kv_cache", "weights"].map(str::to_owned).into();
    }
    StatusCode::OK.into_response()
}

async fn wake_up(State(fake): State<Fake>, request: Request) -> Response {
    let uri = request.uri().to_string();
    if let Some(refusal) = fake.memory_order(&uri, &Value::Null) {
        return refusal;
    }
    let tag = uri.strip_prefix("/wake_up?tags=").unwrap();
    fake.told().memory.released.remove(tag);
    StatusCode::OK.into_response()
}

async fn is_sleeping(State(fake): State<Fake>) -> Json<Value> {
    let told = fake.told();
    Json(json!({"is_sleeping": told.memory.paused || !told.memory.released.is_empty()}))
}

async fn pause(State(fake): State<Fake>, request: Request) -> Json<Value> {
    fake.note(&request.uri().to_string(), &Value::Null);
    fake.told().memory.paused = true;
    fake.rows_ended().await;
    Json(json!({"status": "paused"}))
}

async fn go_on(State(fake): State<Fake>) -> Json<Value> {
    fake.note("/resume", &Value::Null);
    fake.told().memory.paused = false;
    Json(json!({"status": "resumed"}))
}

fn tags(body: &Value) -> Vec<String> {
    let tags = body["tags"].as_array().unwrap();
    tags.iter().map(|tag| tag.as_str().unwrap().to_owned()).collect()
}

/// Refuses while requests run, like an SGLang whose time to wait for them is over.
async fn flush_cache(State(fake): State<Fake>) -> StatusCode {
    fake.note("/flush_cache", &Value::Null);
    match fake.running() {
        0 => StatusCode::OK,
        _ => StatusCode::BAD_REQUEST,
    }
}

async fn release(State(fake): State<Fake>, Json(body): Json<Value>) -> Response {
    let path = "/release_memory_occupation";
    if let Some(refusal) = fake.memory_order(path, &body) {
        return refusal;
    }
    let mut told = fake.told();
    if told.running > 0 {
        told.memory.crashes.push(format!("{path} while requests run"));
    }
    for tag in tags(&body) {
        if !told.memory.stays_awake && !told.memory.released.insert(tag.clone()) {
            told.memory.crashes.push(format!("{path} of {tag} twice"));
        }
    }
    StatusCode::OK.into_response()
}

async fn resume(State(fake): State<Fake>, Json(body): Json<Value>) -> Response {
    let path = "/resume_memory_occupation";
    if let Some(refusal) = fake.memory_order(path, &body) {
        return refusal;
    }
    let twice = {
        let mut told = fake.told();
        let mut tags = tags(&body).into_iter();
        let twice = tags.find(|tag| !told.memory.released.remove(tag));
        let crash = twice.map(|tag| format!("{path} of {tag} twice"));
        told.memory.crashes.extend(crash.clone());
        crash.is_some()
    };
    if twice {
        // The process ends, and its container starts again.
        fake.restart("base");
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    StatusCode::OK.into_response()
}
