//! The adapters of a simulated engine.

use super::Fake;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

pub(super) fn below(prefix: &str) -> Router<Fake> {
    Router::new()
        .route(&format!("{prefix}/load_lora_adapter"), post(load_adapter))
        .route(&format!("{prefix}/unload_lora_adapter"), post(unload_adapter))
}

impl Fake {
    pub fn adapters(&self) -> Vec<String> {
        self.told().adapters.clone()
    }

    /// Loads of adapters wait, or are released.
    pub fn hold_adapters(&self, holds: bool) {
        self.told().holds_adapters = holds;
    }

    /// Refuses rows of adapters, like an SGLang that has started again since its list of models was read.
    pub fn lose_adapters(&self) {
        self.told().lost_adapters = true;
    }

    /// SGLang's refusal of a request that names an adapter which it lacks.
    pub(super) fn lost(&self, adapter: &Value) -> Option<Response> {
        if adapter.is_null() || !self.told().lost_adapters {
            return None;
        }
        let message = format!("The following requested LoRA adapters are not loaded: {adapter}\nLoaded adapters: [].");
        Some((StatusCode::BAD_REQUEST, Json(json!({"error": {"message": message}}))).into_response())
    }

    /// The answer to a request for an unknown model.
    pub(super) fn lacks(&self, model: &str) -> Option<Response> {
        if model == "policy" || self.adapters().iter().any(|name| name == model) {
            return None;
        }
        let message = format!("The model `{model}` does not exist.");
        let missing = json!({"error": {"message": message, "type": "NotFoundError", "code": 404}});
        Some((StatusCode::NOT_FOUND, Json(missing)).into_response())
    }
}

async fn load_adapter(State(fake): State<Fake>, Json(body): Json<Value>) -> Response {
    fake.note("/load_lora_adapter", &body);
    fake.needs("weights", "/load_lora_adapter");
    while fake.told().holds_adapters {
        tokio::task::yield_now().await;
    }
    let name = body["lora_name"].as_str().unwrap().to_owned();
    assert!(body["lora_path"].as_str().unwrap().ends_with(&name), "{body}");
    let mut told = fake.told();
    if told.adapters.contains(&name) {
        let refused =
            json!({"error": {"message": format!("The lora adapter '{name}' has already been loaded."), "code": 400}});
        return (StatusCode::BAD_REQUEST, Json(refused)).into_response();
    }
    told.adapters.push(name);
    "Success: LoRA adapter added successfully.".into_response()
}

async fn unload_adapter(State(fake): State<Fake>, Json(body): Json<Value>) -> &'static str {
    fake.note("/unload_lora_adapter", &body);
    fake.told().adapters.retain(|name| body["lora_name"] != *name);
    "Success: LoRA adapter removed successfully."
}
