//! Simulated vLLM 0.33 and SGLang 0.5.23 servers, with the parts of their APIs that an agent uses. They record their
//! orders.
//!
//! Shapes of requests and answers are those of the two projects' documentation and sources. Tokens are made up: token j
//! of a row is `100 + j`, with the logprob `-0.5 - j`. In a mixture, the token at position p goes through the experts
//! 4p and 4p + 1 of the first layer, 4p + 2 and 4p + 3 of the second.

mod adapters;
mod logprobs;
mod memory;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::Notify;

pub use logprobs::PROMPT_LOGPROB;
use memory::Memory;

/// An engine that can be told to misbehave.
#[derive(Clone, Default)]
pub struct Fake {
    pub url: String,
    state: Arc<Mutex<Told>>,
    /// While this is set, completions wait for `go`.
    go: Arc<Notify>,
}

#[derive(Default)]
struct Told {
    calls: Vec<(String, Value)>,
    keys: Vec<String>,
    /// The name of the model, if it differs from the one at start.
    model: Option<String>,
    adapters: Vec<String>,
    label: String,
    refuses_labels: bool,
    weights: u64,
    lies: bool,
    samples_from: Option<u64>,
    computes_with_others: bool,
    no_prompt_logprobs: bool,
    blocks_held: bool,
    waits_in_pause: bool,
    holds: bool,
    holds_adapters: bool,
    running: u32,
    no_token_ids: bool,
    gives_up: bool,
    lost_adapters: bool,
    no_spans: bool,
    spans: Option<Value>,
    reports_experts: bool,
    in_chat: Option<Value>,
    memory: Memory,
}

/// A request at the engine. A caller that closes its connection ends it, as with real engines.
struct Running<'a>(&'a Fake);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.told().running -= 1;
    }
}

impl Fake {
    pub async fn vllm() -> Self {
        Self::start(
            "default",
            Router::new()
                .route("/v1/completions", post(completions))
                .route("/v1/chat/completions", post(chat))
                .route("/weight_info", get(weight_info))
                .route("/weight_checker", post(weight_checker))
                .route("/collective_rpc", post(reload))
                .route("/reset_prefix_cache", post(reset_prefix_cache))
                .route("/update_weight_version", post(set_label))
                .merge(adapters::below("/v1"))
                .merge(memory::of_vllm()),
        )
        .await
    }

    pub async fn sglang() -> Self {
        Self::start(
            "base",
            Router::new()
                .route("/generate", post(generate))
                .route("/v1/chat/completions", post(chat))
                .route("/model_info", get(weight_info))
                .route("/update_weights_from_disk", post(update_from_disk))
                .route("/update_weight_version", post(set_label))
                .merge(adapters::below(""))
                .merge(memory::of_sglang()),
        )
        .await
    }

    async fn start(label: &str, routes: Router<Self>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            ..Self::default()
        };
        fake.told().label = label.to_owned();
        let router = routes
            .route("/v1/models", get(models))
            .route("/health", get(|| async { "" }))
            .route("/metrics", get(|| async { "engine_metric 1\n" }))
            .layer(middleware::from_fn_with_state(fake.clone(), remember_key))
            .with_state(fake.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        fake
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.state.lock().unwrap()
    }

    fn note(&self, path: &str, body: &Value) {
        self.told().calls.push((path.to_owned(), body.clone()));
    }

    /// Calls since the last look, without reads.
    pub fn calls(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.told().calls)
    }

    pub fn paths(&self) -> Vec<String> {
        self.calls().into_iter().map(|(path, _)| path).collect()
    }

    pub fn keys(&self) -> Vec<String> {
        self.told().keys.clone()
    }

    /// Simulates a restarted process, with the boot weights and without adapters.
    pub fn restart(&self, label: &str) {
        let mut told = self.told();
        told.adapters.clear();
        told.label = label.to_owned();
        told.weights = 0;
        told.memory.restart();
    }

    /// Reports success of a reload and keeps its weights.
    pub fn lie(&self) {
        self.told().lies = true;
    }

    /// Reloads weights as ordered again.
    pub fn lie_no_more(&self) {
        self.told().lies = false;
    }

    /// Answers 500 to orders that set a label.
    pub fn refuse_labels(&self, refuses: bool) {
        self.told().refuses_labels = refuses;
    }

    /// Accepts new weights, but keeps sampling from the current ones.
    pub fn sample_from_old(&self) {
        let mut told = self.told();
        told.samples_from = Some(told.weights);
    }

    /// Accepts new weights, but computes with others: logprobs of prompts are far from [`PROMPT_LOGPROB`].
    pub fn compute_with_other_weights(&self, others: bool) {
        self.told().computes_with_others = others;
    }

    /// Computes no logprobs of prompts.
    pub fn say_no_prompt_logprobs(&self) {
        self.told().no_prompt_logprobs = true;
    }

    /// Answers that it did not drop its prefix cache, like a vLLM whose requests hold blocks.
    pub fn hold_blocks(&self) {
        self.told().blocks_held = true;
    }

    /// Answers a pause (vLLM) and an update of full weights (SGLang) only after all rows have ended, like real engines.
    pub fn end_rows_before_a_pause(&self) {
        self.told().waits_in_pause = true;
    }

    /// Names the weights of no row, like vLLM 0.32.
    pub fn say_no_spans(&self) {
        self.told().no_spans = true;
    }

    /// Names these weights for every row.
    pub fn say_spans(&self, spans: Value) {
        self.told().spans = Some(spans);
    }

    /// Simulates an engine of a mixture with `--enable-return-routed-experts`.
    pub fn report_experts(&self) {
        self.told().reports_experts = true;
    }

    /// Answers every conversation with this.
    pub fn say_in_chat(&self, answer: Value) {
        self.told().in_chat = Some(answer);
    }

    /// Simulates a server that does not know vLLM's `return_token_ids`.
    pub fn keep_token_ids(&self, keep: bool) {
        self.told().no_token_ids = keep;
    }

    /// Gives every row up, like an engine that ends: the status is 200, and parts of the row are missing.
    pub fn give_up_rows(&self) {
        self.told().gives_up = true;
    }

    /// Completions wait until they are released.
    pub fn hold(&self) {
        self.told().holds = true;
    }

    pub fn let_go(&self) {
        self.told().holds = false;
        self.go.notify_waiters();
    }

    pub fn running(&self) -> u32 {
        self.told().running
    }

    /// Waits for the rows, if an order of this engine does.
    async fn rows_ended(&self) {
        while self.told().waits_in_pause && self.running() > 0 {
            tokio::task::yield_now().await;
        }
    }

    async fn work(&self) {
        let held = {
            let mut told = self.told();
            told.running += 1;
            told.holds.then(|| self.go.notified())
        };
        let _running = Running(self);
        if let Some(held) = held {
            held.await;
        }
    }
}

async fn remember_key(State(fake): State<Fake>, request: Request, next: Next) -> Response {
    if let Some(key) = request.headers().get(header::AUTHORIZATION) {
        let key = key.to_str().unwrap().to_owned();
        fake.told().keys.push(key);
    }
    next.run(request).await
}

async fn models(State(fake): State<Fake>) -> Json<Value> {
    let told = fake.told();
    let card = |name: &str, parent: Option<&str>| json!({"id": name, "object": "model", "parent": parent});
    let mut data = vec![card(told.model.as_deref().unwrap_or("policy"), None)];
    data.extend(told.adapters.iter().map(|name| card(name, Some("policy"))));
    Json(json!({"object": "list", "data": data}))
}

async fn weight_info(State(fake): State<Fake>) -> Json<Value> {
    Json(json!({"weight_version": fake.told().label}))
}

async fn weight_checker(State(fake): State<Fake>, Json(body): Json<Value>) -> Json<Value> {
    assert_eq!(body["action"], "checksum");
    Json(json!({"checksums": {"model.layers.0": format!("{:064x}", fake.told().weights)}}))
}

async fn reload(State(fake): State<Fake>, Json(body): Json<Value>) -> Response {
    if let Some(refusal) = fake.memory_order("/collective_rpc", &body) {
        return refusal;
    }
    fake.needs("weights", "/collective_rpc");
    let mut told = fake.told();
    if !told.lies {
        told.weights += 1;
    }
    Json(json!({"results": [null]})).into_response()
}

async fn reset_prefix_cache(State(fake): State<Fake>) -> Json<Value> {
    fake.note("/reset_prefix_cache", &Value::Null);
    Json(json!({"success": !fake.told().blocks_held}))
}

async fn set_label(State(fake): State<Fake>, Json(body): Json<Value>) -> Response {
    fake.note("/update_weight_version", &body);
    let mut told = fake.told();
    if told.refuses_labels {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    told.label = body["new_version"].as_str().unwrap().to_owned();
    Json(json!({"success": true})).into_response()
}

async fn update_from_disk(State(fake): State<Fake>, Json(body): Json<Value>) -> Response {
    fake.note("/update_weights_from_disk", &body);
    fake.needs("weights", "/update_weights_from_disk");
    fake.rows_ended().await;
    if fake.told().lies {
        let refused =
            json!({"success": false, "message": "Failed to update weights: no such file", "num_paused_requests": 0});
        return (StatusCode::BAD_REQUEST, Json(refused)).into_response();
    }
    let mut told = fake.told();
    told.label = body["weight_version"].as_str().unwrap().to_owned();
    // From now on the model's name is the folder of its weights.
    told.model = Some(body["model_path"].as_str().unwrap().to_owned());
    Json(json!({"success": true, "message": "Succeeded to update model weights.", "num_paused_requests": 0}))
        .into_response()
}

async fn completions(State(fake): State<Fake>, Json(body): Json<Value>) -> Response {
    fake.note("/v1/completions", &body);
    fake.needs("kv_cache", "/v1/completions");
    let model = body["model"].as_str().unwrap();
    // Names are resolved when a request arrives; rows of an adapter that is unloaded later run to their end.
    if let Some(missing) = fake.lacks(model) {
        return missing;
    }
    fake.work().await;
    let told = fake.told();
    let prompts: Vec<usize> = match body["prompt"][0].is_array() {
        true => body["prompt"].as_array().unwrap().iter().map(length).collect(),
        false => vec![length(&body["prompt"])],
    };
    let tokens = body["max_tokens"].as_u64().unwrap();
    let samples = body["n"].as_u64().unwrap();
    let rows = prompts.len() as u64 * samples;
    let weights = told.samples_from.unwrap_or(told.weights) as f64;
    let choices: Vec<Value> = (0..rows)
        .map(|index| {
            let mut choice = json!({
                "index": index, "text": "x", "finish_reason": "length", "stop_reason": null,
                "logprobs": {
                    "text_offset": [], "tokens": [], "top_logprobs": [],
                    "token_logprobs": (0..tokens).map(|j| -0.5 - j as f64 - weights / 64.0).collect::<Vec<_>>(),
                },
                "prompt_logprobs": null,
            });
            if body["prompt_logprobs"].is_number() && !told.no_prompt_logprobs {
                let of = |id: &Value| json!({id.to_string(): {"logprob": told.of_prompts(), "rank": 9, "decoded_token": "x"}});
                let mut said: Vec<Value> = body["prompt"].as_array().unwrap().iter().map(of).collect();
                said[0] = Value::Null;
                choice["prompt_logprobs"] = json!(said);
            }
            if body["return_token_ids"] == true && !told.no_token_ids {
                choice["token_ids"] = json!((0..tokens).map(|j| 100 + j).collect::<Vec<_>>());
                choice["prompt_token_ids"] = json!([1]);
            }
            if told.reports_experts {
                let computed = prompts[(index / samples) as usize] + tokens as usize - 1;
                let start = body["routed_experts_prompt_start"].as_u64().unwrap_or(0) as usize;
                choice["routed_experts"] = json!(STANDARD.encode(by_numpy(&experts(start..computed))));
            }
            if let Some((id, bias)) = body["logit_bias"].as_object().and_then(|biases| biases.iter().next()) {
                let (id, logprob) = told.greedy(id.parse().unwrap(), bias.as_f64().unwrap());
                choice["token_ids"] = json!([id]);
                choice["logprobs"]["token_logprobs"] = json!([logprob]);
            }
            if body["return_weight_versions"] == true && !told.no_spans {
                let whole = json!([{"version": told.label, "start": 0, "end": tokens}]);
                choice["weight_versions"] = told.spans.clone().unwrap_or(whole);
            }
            if told.gives_up {
                choice["finish_reason"] = json!("abort");
                choice["logprobs"] = Value::Null;
            }
            choice
        })
        .collect();
    Json(json!({
        "id": "cmpl-1", "object": "text_completion", "created": 1_700_000_000, "model": model, "choices": choices,
        "usage": {"prompt_tokens": 3, "total_tokens": 3 + rows * tokens, "completion_tokens": rows * tokens, "prompt_tokens_details": null},
        "system_fingerprint": "vllm-0.33.0-tp1-00000000",
    }))
    .into_response()
}

async fn chat(State(fake): State<Fake>, Json(body): Json<Value>) -> Response {
    fake.note("/v1/chat/completions", &body);
    let model = body["model"].as_str().unwrap();
    if let Some(refusal) = fake.lost(&body["lora_path"]) {
        return refusal;
    }
    if let Some(missing) = fake.lacks(body["lora_path"].as_str().unwrap_or(model)) {
        return missing;
    }
    fake.work().await;
    let message = json!({"role": "assistant", "content": "0.5", "reasoning_content": null, "tool_calls": []});
    let answer = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": "stop", "stop_reason": null}],
        "usage": {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": null},
    });
    Json(fake.told().in_chat.clone().unwrap_or(answer)).into_response()
}

fn length(ids: &Value) -> usize {
    ids.as_array().unwrap().len()
}

/// Experts of the tokens at these positions.
pub fn experts(positions: std::ops::Range<usize>) -> Vec<u8> {
    (4 * positions.start as u8..4 * positions.end as u8).collect()
}

/// A file in the format of `numpy.save`, with two layers and two experts per token.
fn by_numpy(numbers: &[u8]) -> Vec<u8> {
    let header = format!(
        "{{'descr': '|u1', 'fortran_order': False, 'shape': ({}, 2, 2), }}\n",
        numbers.len() / 4
    );
    let length = (header.len() as u16).to_le_bytes();
    [&b"\x93NUMPY\x01\x00"[..], &length, header.as_bytes(), numbers].concat()
}

async fn generate(State(fake): State<Fake>, Json(body): Json<Value>) -> Response {
    fake.note("/generate", &body);
    fake.needs("kv_cache", "/generate");
    if let Some(refusal) = fake.lost(&body["lora_path"]) {
        return refusal;
    }
    fake.work().await;
    let told = fake.told();
    let rows = body["input_ids"].as_array().unwrap();
    let sampling = body["sampling_params"].as_array().unwrap();
    assert_eq!(
        (rows.len(), body["return_logprob"].as_bool()),
        (sampling.len(), Some(true))
    );
    let answers = rows.iter().zip(sampling).enumerate().map(|(n, (prompt, sampling))| {
        let tokens = sampling["max_new_tokens"].as_u64().unwrap();
        let mut meta = json!({
            "id": format!("row-{n}"), "finish_reason": {"type": "stop", "matched": 100 + tokens - 1},
            "prompt_tokens": prompt.as_array().unwrap().len(), "completion_tokens": tokens, "cached_tokens": 0,
            "weight_version": told.label,
            "output_token_logprobs": (0..tokens).map(|j| json!([-0.5 - j as f64, 100 + j, null])).collect::<Vec<_>>(),
        });
        if body["logprob_start_len"] == 0 {
            let of = |id: &Value| json!([told.of_prompts(), id, null]);
            let mut said: Vec<Value> = prompt.as_array().unwrap().iter().map(of).collect();
            said[0][0] = Value::Null;
            meta["input_token_logprobs"] = json!(said);
        }
        if told.reports_experts && body["return_routed_experts"] == true {
            let computed = length(prompt) + tokens as usize - 1;
            let start = body["routed_experts_start_len"].as_u64().unwrap() as usize;
            let numbers = experts(start..computed).into_iter();
            let bytes: Vec<u8> = numbers.flat_map(|number| i32::from(number).to_le_bytes()).collect();
            meta["routed_experts"] = json!(STANDARD.encode(bytes));
        }
        if let Some(spans) = &told.spans {
            meta["weight_versions"] = spans.clone();
        }
        if told.gives_up {
            meta["finish_reason"] = json!({"type": "abort", "message": "Abort before prefill", "status_code": null});
            meta.as_object_mut().unwrap().remove("output_token_logprobs");
        }
        json!({"text": "", "output_ids": [], "meta_info": meta})
    });
    Json(answers.collect::<Value>()).into_response()
}
