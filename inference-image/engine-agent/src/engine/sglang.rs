//! SGLang 0.5.23, over its native server: `generate` takes and returns token ids, which its OpenAI-compatible
//! completions do not.
//!
//! `update_weights_from_disk` reads full weights from a folder; it waits for running requests and drops the prefix
//! cache. The weights get the label of their version after the check of its canary. After an update that failed in the
//! middle SGLang reads the *new* folder again as the original weights, and keeps the label from before. So the agent
//! marks that label before the update (`replacing:`). Rows with the mark are of the old version, because they end
//! before the update begins. Once the update has failed, or for an agent that did not order it, they are of no version.
//!
//! Asleep it keeps its weights in the memory of the host (`--enable-memory-saver`, `--enable-weights-cpu-backup`). See
//! [`sleep`].

mod sleep;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use grpo_engine_protocol::{
    BASE_VERSION, ChatRequest, ChoiceLogprobs, CompletionChoice, CompletionRequest, CompletionResponse, ErrorBody,
    ErrorCode, Usage,
};
use grpo_records::weights::Canary;
use serde::Deserialize;
use serde_json::{Value, json};

use super::adapters::{Adapters, NewAdapter, Sampling, UNVERIFIED, version_of_label};
use super::canary::ADAPTER_DEADLINE;
use super::completion::{Span, finish_reason, sampled_from};
use super::experts::Asked;
use super::wire::{Answered, CHECK_DEADLINE, Server, ask, engine_seed, misbehaved, read_request};
use super::{Engine, EngineFault, Page, SERVED_NAME, Serving, SleepState, Weights, chat};

/// In SGLang's words for a request that names an adapter which is not loaded.
const NO_ADAPTER: &str = "adapters are not loaded";

/// Before the label of weights that an update replaces.
const REPLACING: &str = "replacing:";

#[derive(Clone, Debug)]
pub struct Sglang {
    pub server: Server,
    pub adapters: Adapters,
    /// Why folders cannot be loaded, if so.
    pub no_folders: Option<String>,
    /// How far it has been woken up. Locked during a change.
    waking: Arc<tokio::sync::Mutex<sleep::Waking>>,
    /// Allows one load at a time. It ends before the engine falls asleep or takes up its cache: both change its
    /// label.
    replacing: Arc<tokio::sync::Mutex<()>>,
    /// Whether weights with the mark [`REPLACING`] are of the version after it: this agent set the mark, and the update
    /// has not failed.
    old_until_replaced: Arc<AtomicBool>,
}

#[derive(Deserialize)]
struct ModelInfo {
    weight_version: String,
}

/// A row with the logprobs of its prompt: logprob and id of each token, then its text.
#[derive(Deserialize)]
struct Scored {
    meta_info: ScoredPrompt,
}

#[derive(Deserialize)]
struct ScoredPrompt {
    input_token_logprobs: Vec<(Option<f32>, u32, Value)>,
}

#[derive(Deserialize)]
struct Updated {
    success: bool,
    #[serde(default)]
    message: String,
}

impl Sglang {
    pub fn new(server: Server, no_folders: Option<String>) -> Self {
        Self {
            adapters: Adapters::new(server.clone(), ""),
            server,
            no_folders,
            waking: Arc::default(),
            replacing: Arc::default(),
            old_until_replaced: Arc::default(),
        }
    }

    async fn label(&self) -> Result<String, EngineFault> {
        let info: ModelInfo = self.server.ask("/model_info").await?;
        Ok(info.weight_version)
    }

    /// The version of weights with this label.
    fn version<'a>(&self, label: &'a str) -> &'a str {
        let label = sleep::awake(label);
        match label.strip_prefix(REPLACING) {
            Some(old) if self.old_until_replaced.load(Ordering::SeqCst) => version_of_label(old),
            Some(_) => UNVERIFIED,
            None => version_of_label(label),
        }
    }

    async fn name(&self, label: &str) -> Result<(), EngineFault> {
        let label = json!({"new_version": label, "abort_all_requests": false});
        self.server.tell("/update_weight_version", &label, CHECK_DEADLINE).await
    }

    /// Replaces the full weights. Must run to its end even if a newer order interrupts the current one, because of the
    /// label.
    async fn replace(self, dir: PathBuf, deadline: Duration) -> Result<(), EngineFault> {
        let _alone = self.replacing.lock().await;
        let url = self.server.at("/update_weights_from_disk");
        let label = self.label().await?;
        let old = sleep::awake(&label);
        // The mark of an update that failed, or of an agent that ended during it: the weights may be of any version.
        let known = !old.starts_with(REPLACING);
        let before = match known {
            true => format!("{REPLACING}{old}"),
            false => UNVERIFIED.to_owned(),
        };
        self.old_until_replaced.store(known, Ordering::SeqCst);
        if let Err(fault) = self.name(&sleep::relabelled(&label, &before)).await {
            // SGLang may have set the mark in spite of the error.
            self.old_until_replaced.store(false, Ordering::SeqCst);
            return Err(fault);
        }
        // Rows of an adapter would be sampled with other weights below it.
        self.adapters.set(None);
        let unverified = sleep::relabelled(&label, UNVERIFIED);
        let update = json!({"model_path": dir, "weight_version": unverified, "flush_cache": true});
        let call = self.server.client.post(url.clone()).timeout(deadline).json(&update);
        let fault = match ask(call, &url).await {
            Ok(Updated { success: true, .. }) => return Ok(()),
            Ok(Updated { message, .. }) => EngineFault::Refused {
                url: url.to_string(),
                message,
            },
            Err(fault) => fault,
        };
        self.old_until_replaced.store(false, Ordering::SeqCst);
        Err(fault)
    }

    /// Loads an adapter, compares its canary, and lets it serve. Must run to its end: SGLang reads the adapter's files
    /// for the canary, also after a newer order, and they stay on disk for that long.
    async fn take(self, adapter: NewAdapter, deadline: Duration) -> Result<Serving, EngineFault> {
        let _alone = self.replacing.lock().await;
        let weights = adapter.weights();
        let version = weights.order.version.as_str();
        let _files = self.adapters.counted(version);
        let (idle, nothing) = (sleep::IDLE, json!({}));
        let dropped = self.server.tell(idle, &nothing, CHECK_DEADLINE);
        self.adapters.unload_those_of_others(dropped).await?;
        self.adapters.bring(&weights, deadline).await?;
        // The check below samples.
        self.resume_cache(&mut *self.waking.lock().await, deadline).await?;
        if let Some(canary) = weights.canary {
            let generate = self.server.at("/generate").to_string();
            let found = self.logprobs(canary, Some(version)).await;
            if let Err(fault) = weights.check(&canary.logprobs, &generate, found) {
                self.adapters.give_up(version).await;
                return Err(fault);
            }
        }
        Ok(self.adapters.serve(&weights))
    }

    /// Logprobs of the canary's tokens from the second one on, under an adapter if one is named.
    async fn logprobs(&self, canary: &Canary, adapter: Option<&str>) -> Result<Vec<f32>, EngineFault> {
        let url = self.server.at("/generate");
        let deadline = match adapter {
            Some(_) => ADAPTER_DEADLINE,
            None => CHECK_DEADLINE,
        };
        let mut asked = json!({
            "input_ids": [canary.tokens],
            "sampling_params": [{"max_new_tokens": 1, "temperature": 0.0}],
            "return_logprob": true,
            "logprob_start_len": 0,
        });
        if let Some(adapter) = adapter {
            asked["lora_path"] = json!([adapter]);
        }
        let call = self.server.client.post(url.clone()).timeout(deadline);
        let answer: Vec<Scored> = ask(call.json(&asked), &url).await?;
        let said = answer.into_iter().next().map(|row| row.meta_info.input_token_logprobs);
        // Nothing predicts the first token.
        let found = said
            .unwrap_or_default()
            .into_iter()
            .skip(1)
            .map(|(logprob, ..)| logprob);
        found
            .collect::<Option<Vec<f32>>>()
            .filter(|found| found.len() >= canary.logprobs.len())
            .ok_or_else(|| EngineFault::Misunderstood {
                url: url.to_string(),
                cause: "a token of a prompt has no logprob, although all were asked for".to_owned(),
            })
    }
}

impl Engine for Sglang {
    fn in_use(&self) -> BTreeSet<String> {
        self.adapters.in_use()
    }

    async fn serving(&self) -> Result<Serving, EngineFault> {
        if let Some(adapter) = self.adapters.serving().await? {
            return Ok(adapter);
        }
        let label = self.label().await?;
        Ok(Serving {
            version: self.version(&label).to_owned(),
            sha256: None,
        })
    }

    async fn load(&self, weights: Weights<'_>, deadline: Duration) -> Result<Serving, EngineFault> {
        let version = &weights.order.version;
        if let Some(why) = &self.no_folders {
            return Err(EngineFault::Unable {
                version: version.clone(),
                why: why.clone(),
            });
        }
        self.wake_weights(deadline).await?;
        if weights.adapter {
            let taken = self.clone().take(NewAdapter::of(&weights), deadline);
            return self.to_the_end(taken).await;
        }
        self.to_the_end(self.clone().replace(weights.dir.to_owned(), deadline))
            .await?;
        // The check below samples.
        self.wake_cache(deadline).await?;
        if let Some(canary) = weights.canary {
            let generate = self.server.at("/generate").to_string();
            weights.check(&canary.logprobs, &generate, self.logprobs(canary, None).await)?;
        }
        // A row that was sampled meanwhile has the label `unverified`, and is refused by it.
        self.name(version).await?;
        self.serving().await
    }

    fn waits_to_load(&self, weights: &Weights<'_>) -> bool {
        !weights.adapter
    }

    async fn sleep_state(&self) -> Result<SleepState, EngineFault> {
        self.find_sleep_state().await
    }

    async fn sleep(&self, deadline: Duration) -> Result<(), EngineFault> {
        self.fall_asleep(deadline).await
    }

    async fn wake(&self, deadline: Duration) -> Result<(), EngineFault> {
        self.wake_weights(deadline).await?;
        self.wake_cache(deadline).await
    }

    async fn complete(&self, body: Bytes, version: Option<&str>) -> Result<Answered, ErrorBody> {
        let (request, prompts) = read_request(&body)?;
        let version = version.unwrap_or(BASE_VERSION);
        let adapter = self.adapters.sampling(version);
        let asked = generate(
            &request,
            &prompts,
            adapter.as_ref().map(|adapter| adapter.version.as_str()),
        );
        let rows = self.server.sample("/generate", &asked, version).await;
        let mut rows: Vec<Generated> = rows.map_err(|error| without_adapter(error, adapter.as_ref()))?;
        if rows.len() != prompts.len() * request.n as usize {
            return Err(misbehaved(format!(
                "asked for {} rows, the engine returned {}",
                prompts.len() * request.n as usize,
                rows.len()
            )));
        }
        for meta in rows.iter_mut().map(|row| &mut row.meta_info) {
            meta.weight_version = self.version(&meta.weight_version).to_owned();
            for span in meta.weight_versions.iter_mut().flatten() {
                span.version = self.version(&span.version).to_owned();
            }
        }
        answered(
            rows,
            &request,
            &prompts,
            adapter.as_ref().map(|adapter| adapter.version.as_str()),
        )
    }

    async fn chat(&self, request: ChatRequest) -> Result<Answered, ErrorBody> {
        let adapter = self.adapters.sampling_now();
        let lora_path = adapter.as_ref().map(|adapter| adapter.version.as_str());
        let answer = chat::ask(&self.server, &request, SERVED_NAME, lora_path).await;
        answer.map_err(|error| without_adapter(error, adapter.as_ref()))
    }

    async fn page(&self, page: Page) -> Result<Answered, EngineFault> {
        self.server.page(page).await
    }
}

/// SGLang answers 400 if it lacks the adapter, as after a restart that this agent has not seen yet. The request is
/// right then: a driver that took it for a wrong one would end its run.
fn without_adapter(error: ErrorBody, adapter: Option<&Sampling>) -> ErrorBody {
    match adapter {
        Some(adapter) if error.code == ErrorCode::InvalidRequest && error.message.contains(NO_ADAPTER) => {
            ErrorBody::wrong_weights(None, &adapter.version)
        }
        _ => error,
    }
}

/// The request in SGLang's format: a row for each sample, because each has its own seed.
fn generate(request: &CompletionRequest, prompts: &[Vec<u32>], adapter: Option<&str>) -> Value {
    let rows = prompts
        .iter()
        .flat_map(|prompt| std::iter::repeat_n(prompt, request.n as usize));
    let input_ids: Vec<&Vec<u32>> = rows.collect();
    let sampling: Vec<Value> = (0..input_ids.len() as u64)
        .map(|row| {
            let mut sampling = json!({
                "max_new_tokens": request.max_tokens,
                "temperature": request.temperature,
                "top_p": request.top_p,
                "top_k": if request.top_k <= 0 { -1 } else { request.top_k },
                "stop_token_ids": request.stop_token_ids,
                "ignore_eos": request.ignore_eos,
            });
            for (name, value) in request.penalties().named() {
                sampling[name] = json!(value);
            }
            if let Some(seed) = request.seed {
                sampling["sampling_seed"] = json!(engine_seed(seed.wrapping_add(row)));
            }
            sampling
        })
        .collect();
    let mut asked = json!({
        "input_ids": input_ids,
        "sampling_params": sampling,
        "return_logprob": true,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
    });
    if let Some(from) = request.routed_experts_from {
        asked["return_routed_experts"] = json!(true);
        asked["routed_experts_start_len"] = json!(from);
    }
    if let Some(adapter) = adapter {
        asked["lora_path"] = json!(vec![adapter; sampling.len()]);
    }
    asked
}

#[derive(Debug, Deserialize)]
struct Generated {
    #[serde(default)]
    text: String,
    meta_info: MetaInfo,
}

#[derive(Debug, Deserialize)]
struct MetaInfo {
    id: String,
    finish_reason: Finished,
    #[serde(default)]
    prompt_tokens: u64,
    /// Logprob and id of each sampled token, then its text. A row that SGLang gave up may lack them.
    #[serde(default)]
    output_token_logprobs: Option<Vec<(f32, u32, Value)>>,
    /// Version of the last token.
    weight_version: String,
    #[serde(default)]
    weight_versions: Option<Vec<Span>>,
    #[serde(default)]
    routed_experts: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Finished {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    matched: Option<Value>,
}

fn answered(
    rows: Vec<Generated>,
    request: &CompletionRequest,
    prompts: &[Vec<u32>],
    adapter: Option<&str>,
) -> Result<Answered, ErrorBody> {
    let id = rows.first().map(|row| row.meta_info.id.clone()).unwrap_or_default();
    let prompt_tokens = rows.iter().map(|row| row.meta_info.prompt_tokens).sum();
    let (mut choices, mut completion_tokens) = (Vec::new(), 0);
    let of_rows = prompts
        .iter()
        .flat_map(|prompt| std::iter::repeat_n(prompt.len(), request.n as usize));
    for ((index, row), prompt) in (0..).zip(rows).zip(of_rows) {
        let meta = row.meta_info;
        // First: a row that was given up lacks other parts.
        let finish_reason = finish_reason(&meta.finish_reason.kind)?;
        let last = [Span {
            version: meta.weight_version,
        }];
        let weights_version = match adapter {
            Some(adapter) => adapter.to_owned(),
            None => sampled_from(
                meta.weight_versions
                    .as_deref()
                    .filter(|spans| !spans.is_empty())
                    .unwrap_or(&last),
            )?,
        };
        let sampled = meta
            .output_token_logprobs
            .ok_or_else(|| misbehaved("return_logprob was asked for, and a row has no output_token_logprobs"))?;
        let (token_logprobs, ids): (Vec<f32>, Vec<u32>) =
            sampled.into_iter().map(|(logprob, id, _)| (logprob, id)).unzip();
        completion_tokens += ids.len() as u64;
        let asked = Asked::of(request, prompt, ids.len());
        let routed_experts = asked
            .map(|asked| asked.of_sglang(meta.routed_experts.as_deref()))
            .transpose()?;
        choices.push(CompletionChoice {
            index,
            text: row.text,
            token_ids: if request.return_token_ids { ids } else { Vec::new() },
            finish_reason,
            stop_reason: meta
                .finish_reason
                .matched
                .as_ref()
                .and_then(Value::as_u64)
                .and_then(|id| u32::try_from(id).ok()),
            logprobs: request.logprobs.map(|_| ChoiceLogprobs { token_logprobs }),
            routed_experts,
            weights_version,
        });
    }
    let weights_version = choices
        .first()
        .map(|choice: &CompletionChoice| choice.weights_version.clone());
    let response = CompletionResponse {
        id,
        object: "text_completion".to_owned(),
        created: 0,
        model: request.model.clone(),
        weights_version: weights_version.ok_or_else(|| misbehaved("the engine's answer has no rows"))?,
        choices,
        usage: Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
        },
    };
    serde_json::to_vec(&response)
        .map(Answered::json)
        .map_err(|error| misbehaved(error.to_string()))
}
