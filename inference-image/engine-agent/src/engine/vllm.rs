//! vLLM 0.33, over its OpenAI-compatible server and the routes of its dev mode.
//!
//! Adapters need no pause. Full weights from a folder do: `pause` (running requests end first, new ones are refused), `reload_weights` on every
//! worker, the prefix cache is dropped, `resume`, and a label that says which version it is once that is known. That the workers report success proves nothing (vLLM's CPU build reports it
//! and serves neither the old nor the new weights, so there it is not tried), so the weights' checksums are compared with those from before:
//! from the second version on they must differ where the tensors do. Whether they are the right ones the run sees in the distance between the engine's logprobs and
//! the trainer's. This has been tested against a server of the same wire format, not on a GPU.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use grpo_engine_protocol::{
    BASE_VERSION, ChoiceLogprobs, CompletionChoice, CompletionRequest, CompletionResponse, ErrorBody, FinishReason,
    Usage,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::adapters::{Adapters, version_of_label};
use super::wire::{Answered, STATE_DEADLINE, Server, ask, engine_seed, misbehaved, read_request};
use super::{Engine, EngineFault, Page, Serving, Weights};

/// The name under which the operator has the engine serve the model it booted with.
pub const SERVED_NAME: &str = "policy";

/// What weights are called until it is known that they were loaded. Nobody asks for them by this name.
const UNVERIFIED: &str = "unverified";

/// Hashing all weights, or dropping a cache.
const CHECK_DEADLINE: Duration = Duration::from_secs(300);

#[derive(Clone, Debug)]
pub struct Vllm {
    pub server: Server,
    pub adapters: Adapters,
    /// Why nothing can be loaded from this pod's disk, if it cannot.
    pub no_folders: Option<String>,
    /// Why only adapters can.
    pub adapters_only: Option<String>,
    /// The full weights that were loaded last.
    loaded: Arc<Mutex<Option<Loaded>>>,
    /// One at a time.
    replacing: Arc<tokio::sync::Mutex<()>>,
}

/// Full weights that were loaded: their tensors by their manifest, and as the engine holds them.
#[derive(Clone, Debug)]
struct Loaded {
    sha256: String,
    checksums: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct WeightInfo {
    weight_version: String,
}

#[derive(Deserialize)]
struct Checksums {
    checksums: BTreeMap<String, String>,
}

impl Vllm {
    pub fn new(server: Server, no_folders: Option<String>, adapters_only: Option<String>) -> Self {
        Self {
            adapters: Adapters::new(server.clone(), "/v1"),
            server,
            no_folders,
            adapters_only,
            loaded: Arc::default(),
            replacing: Arc::default(),
        }
    }

    async fn label(&self) -> Result<String, EngineFault> {
        let info: WeightInfo = self.server.ask("/weight_info").await?;
        Ok(version_of_label(&info.weight_version).to_owned())
    }

    async fn checksums(&self) -> Result<BTreeMap<String, String>, EngineFault> {
        let url = self.server.at("/weight_checker");
        let call = self.server.client.post(url.clone()).timeout(CHECK_DEADLINE);
        let sums: Checksums = ask(call.json(&json!({"action": "checksum"})), &url).await?;
        Ok(sums.checksums)
    }

    /// Replaces the weights of a paused engine. To be run to its end whatever becomes of the order it is for: an engine must not stay paused.
    async fn replace(self, dir: PathBuf, deadline: Duration) -> Result<(), EngineFault> {
        let _alone = self.replacing.lock().await;
        let replaced = match self.server.tell("/pause?mode=wait", &json!({}), deadline).await {
            Ok(()) => self.replace_paused(&dir, deadline).await,
            // It may have been heard all the same.
            Err(fault) => Err(fault),
        };
        let resumed = self.server.tell("/resume", &json!({}), CHECK_DEADLINE).await;
        replaced.and(resumed)
    }

    async fn replace_paused(&self, dir: &Path, deadline: Duration) -> Result<(), EngineFault> {
        let reload = json!({
            "method": "reload_weights",
            "kwargs": {"weights_path": dir},
            "timeout": deadline.as_secs(),
        });
        self.server.tell("/collective_rpc", &reload, deadline).await?;
        self.server
            .tell("/reset_prefix_cache", &json!({}), CHECK_DEADLINE)
            .await?;
        self.name(UNVERIFIED).await
    }

    async fn name(&self, version: &str) -> Result<(), EngineFault> {
        let label = json!({"new_version": version});
        self.server.tell("/update_weight_version", &label, STATE_DEADLINE).await
    }
}

impl Engine for Vllm {
    async fn serving(&self) -> Result<Serving, EngineFault> {
        if let Some(adapter) = self.adapters.serving().await? {
            return Ok(adapter);
        }
        Ok(Serving {
            version: self.label().await?,
            sha256: None,
        })
    }

    async fn load(&self, weights: Weights<'_>, deadline: Duration) -> Result<Serving, EngineFault> {
        let version = &weights.order.version;
        let unable = self.no_folders.as_ref();
        if let Some(why) = unable.or(self.adapters_only.as_ref().filter(|_| !weights.adapter)) {
            return Err(EngineFault::Unable {
                version: version.clone(),
                why: why.clone(),
            });
        }
        if weights.adapter {
            return self.adapters.load(weights, deadline).await;
        }
        tokio::spawn(self.clone().replace(weights.dir.to_owned(), deadline))
            .await
            .unwrap_or_else(|error| {
                Err(EngineFault::Unable {
                    version: version.clone(),
                    why: format!("this agent failed while it was about it: {error}"),
                })
            })?;
        let checksums = self.checksums().await?;
        let before = self.loaded.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if before.is_some_and(|before| before.sha256 != weights.sha256 && before.checksums == checksums) {
            return Err(EngineFault::Misunderstood {
                url: self.server.at("/collective_rpc").to_string(),
                cause: format!("it said that it loaded {version}, and holds the weights from before"),
            });
        }
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(Loaded {
            sha256: weights.sha256.to_owned(),
            checksums,
        });
        self.name(version).await?;
        self.adapters.set(None);
        Ok(Serving {
            version: self.label().await?,
            sha256: None,
        })
    }

    async fn complete(&self, body: Bytes, version: Option<&str>) -> Result<Answered, ErrorBody> {
        let (request, prompts) = read_request(&body)?;
        let version = version.unwrap_or(BASE_VERSION);
        let adapter = self.adapters.current().filter(|adapter| adapter.version == version);
        let model = adapter.as_ref().map_or(SERVED_NAME, |adapter| adapter.version.as_str());
        let asked = completion(&request, &prompts, model);
        let answer: Completion = self.server.sample("/v1/completions", &asked, version).await?;
        // An adapter is sampled from as long as it is named; full weights change under a running request, and each row says so.
        let from = match &adapter {
            Some(adapter) if answer.model == adapter.version => Proof::Named(version),
            Some(_) => {
                return Err(misbehaved(format!(
                    "asked for the adapter {version}, the engine answered as {}",
                    answer.model
                )));
            }
            None => Proof::Labels,
        };
        answered(answer, &request, from)
    }

    async fn page(&self, page: Page) -> Result<Answered, EngineFault> {
        self.server.page(page).await
    }
}

/// The request in vLLM's words. Unlike OpenAI's, its completions take and return token ids.
pub fn completion(request: &CompletionRequest, prompts: &[Vec<u32>], model: &str) -> Value {
    json!({
        "model": model,
        "prompt": if prompts.len() == 1 { json!(prompts[0]) } else { json!(prompts) },
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": if request.top_k <= 0 { -1 } else { request.top_k },
        "n": request.n,
        "seed": request.seed.map(engine_seed),
        "stop_token_ids": request.stop_token_ids,
        "ignore_eos": request.ignore_eos,
        "logprobs": request.logprobs,
        "return_token_ids": true,
        "return_weight_versions": true,
    })
}

/// An answer in vLLM's words.
#[derive(Debug, Deserialize)]
pub struct Completion {
    pub id: String,
    #[serde(default)]
    pub created: u64,
    pub model: String,
    pub choices: Vec<Choice>,
    #[serde(default)]
    pub usage: Option<UsageSaid>,
}

#[derive(Debug, Default, Deserialize)]
pub struct UsageSaid {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct Choice {
    index: u32,
    #[serde(default)]
    text: String,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    finish_reason: Option<String>,
    #[serde(default)]
    stop_reason: Option<Value>,
    #[serde(default)]
    logprobs: Option<LogprobsSaid>,
    #[serde(default)]
    weight_versions: Option<Vec<Span>>,
}

#[derive(Debug, Deserialize)]
struct LogprobsSaid {
    token_logprobs: Vec<Option<f32>>,
}

/// Tokens that one version sampled.
#[derive(Clone, Debug, Deserialize)]
pub struct Span {
    pub version: String,
}

/// How it is known which version a row was sampled from.
#[derive(Clone, Copy, Debug)]
pub enum Proof<'a> {
    /// By what was asked for: nothing else can answer to it.
    Named(&'a str),
    /// By what the row says.
    Labels,
}

/// The one version a row was sampled from. A row of two versions is of none.
pub fn sampled_from(spans: &[Span]) -> Result<String, ErrorBody> {
    let mut versions = spans.iter().map(|span| version_of_label(&span.version));
    let first = versions.next().ok_or_else(|| {
        misbehaved(
            "the engine does not say which weights a row was sampled from; is it of the release the operator expects?",
        )
    })?;
    match versions.find(|other| *other != first) {
        Some(other) => Err(ErrorBody::wrong_weights(Some(other), first)),
        None => Ok(first.to_owned()),
    }
}

/// The answer in our protocol's words, if it holds what was asked for.
pub fn answered(answer: Completion, request: &CompletionRequest, from: Proof<'_>) -> Result<Answered, ErrorBody> {
    let mut choices = Vec::new();
    for choice in answer.choices {
        let weights_version = match from {
            Proof::Named(version) => version.to_owned(),
            Proof::Labels => sampled_from(choice.weight_versions.as_deref().unwrap_or_default())?,
        };
        choices.push(row(choice, request, weights_version)?);
    }
    let weights_version = choices.first().map(|choice| choice.weights_version.clone());
    let weights_version = weights_version.ok_or_else(|| misbehaved("the engine's answer has no rows"))?;
    let usage = answer.usage.unwrap_or_default();
    let completion_tokens = usage.completion_tokens.unwrap_or_default();
    let response = CompletionResponse {
        id: answer.id,
        object: "text_completion".to_owned(),
        created: answer.created,
        model: request.model.clone(),
        weights_version,
        choices,
        usage: Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens,
            total_tokens: usage.prompt_tokens + completion_tokens,
        },
    };
    serde_json::to_vec(&response)
        .map(Answered::json)
        .map_err(|error| misbehaved(error.to_string()))
}

fn row(choice: Choice, request: &CompletionRequest, weights_version: String) -> Result<CompletionChoice, ErrorBody> {
    let ids = choice
        .token_ids
        .ok_or_else(|| misbehaved("the engine returned no token ids: it does not know return_token_ids"))?;
    let logprobs = match (request.logprobs, choice.logprobs) {
        (None, _) => None,
        (Some(_), Some(said)) => Some(
            said.token_logprobs
                .into_iter()
                .collect::<Option<Vec<f32>>>()
                .ok_or_else(|| misbehaved("a sampled token has no logprob"))?,
        ),
        (Some(_), None) => return Err(misbehaved("logprobs were asked for, and the engine returned none")),
    };
    if let Some(logprobs) = logprobs.as_ref().filter(|logprobs| logprobs.len() != ids.len()) {
        return Err(misbehaved(format!(
            "the engine returned {} token ids with {} logprobs",
            ids.len(),
            logprobs.len()
        )));
    }
    Ok(CompletionChoice {
        index: choice.index,
        text: choice.text,
        token_ids: if request.return_token_ids { ids } else { Vec::new() },
        finish_reason: finish_reason(choice.finish_reason.as_deref().unwrap_or_default())?,
        stop_reason: choice
            .stop_reason
            .as_ref()
            .and_then(Value::as_u64)
            .and_then(|id| u32::try_from(id).ok()),
        logprobs: logprobs.map(|token_logprobs| ChoiceLogprobs { token_logprobs }),
        weights_version,
    })
}

pub fn finish_reason(said: &str) -> Result<FinishReason, ErrorBody> {
    match said {
        "stop" => Ok(FinishReason::Stop),
        "length" => Ok(FinishReason::Length),
        "abort" => Ok(FinishReason::Abort),
        other => Err(misbehaved(format!(
            "the engine ended a row for a reason that is not known here: {other:?}"
        ))),
    }
}
