//! vLLM 0.33, over its OpenAI-compatible server and the routes of its dev mode.
//!
//! Adapters need no pause, except the first one on a CPU (see [`Vllm::bring_first`]). Full weights from a folder do:
//! `pause` (running requests end first, new ones are refused), a label that is no version, `reload_weights` on every
//! worker, a reset of the prefix cache, `resume`, and the version as label once the load is verified. So a load that
//! fails in the middle leaves weights that no version names. The workers' report of success proves
//! nothing (see [`ties_layers`]). So the agent compares the weights' checksums, and the tokens sampled from a fixed
//! prompt, with those from before: from the second version on, both must differ where the tensors differ. Before a
//! version serves, its logprobs of the version's canary are compared with the trainer's (see [`canary`]).
//!
//! Asleep it keeps its weights in the memory of the host (`--enable-sleep-mode`, level 1). See [`sleep`].
//!
//! `make check-vllm` tests vLLM 0.32 on a CPU; there is no test with a GPU yet.

mod canary;
mod sleep;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use grpo_engine_protocol::{BASE_VERSION, ChatRequest, CompletionRequest, ErrorBody};
use serde::Deserialize;
use serde_json::json;

use super::adapters::{Adapters, NewAdapter, UNVERIFIED, version_of_label};
use super::completion::{Completion, Proof, answered, completion};
use super::wire::{Answered, CHECK_DEADLINE, STATE_DEADLINE, Server, ask, misbehaved, read_request};
use super::{Engine, EngineFault, Page, SERVED_NAME, Serving, SleepState, Weights, chat};

#[derive(Clone, Debug)]
pub struct Vllm {
    pub server: Server,
    pub adapters: Adapters,
    /// Why this pod's disk cannot be read for weights, if so.
    pub no_folders: Option<String>,
    /// Whether this is the CPU build: see [`ties_layers`].
    pub cpu: bool,
    /// The full weights of the last load.
    loaded: Arc<Mutex<Option<Loaded>>>,
    /// Allows one load at a time.
    replacing: Arc<tokio::sync::Mutex<()>>,
    /// Number of pauses in which full weights were replaced. Only this agent replaces them.
    replacements: Arc<AtomicU64>,
}

/// Loaded full weights: the tensors' checksum from the manifest, the engine's own checksums, and its samples.
#[derive(Clone, Debug)]
struct Loaded {
    sha256: String,
    checksums: BTreeMap<String, String>,
    samples: Samples,
}

/// The prompt of the samples: token ids that every vocabulary has.
const PROMPT: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
const SAMPLED_TOKENS: u32 = 4;

/// Tokens sampled from [`PROMPT`].
#[derive(Clone, Debug, PartialEq)]
struct Samples {
    ids: Vec<u32>,
    logprobs: Vec<Option<f32>>,
}

#[derive(Deserialize)]
struct Reset {
    success: bool,
}

#[derive(Deserialize)]
struct WeightInfo {
    weight_version: String,
}

impl Loaded {
    /// The part that did not change although other tensors were loaded.
    fn unchanged_since(&self, before: &Self) -> Option<&'static str> {
        if self.sha256 == before.sha256 {
            return None;
        }
        if self.checksums == before.checksums {
            return Some("holds the weights from before");
        }
        (self.samples == before.samples).then_some("samples from the weights from before")
    }
}

#[derive(Deserialize)]
struct Checksums {
    checksums: BTreeMap<String, String>,
}

impl Vllm {
    pub fn new(server: Server, no_folders: Option<String>, cpu: bool) -> Self {
        Self {
            adapters: Adapters::new(server.clone(), "/v1"),
            server,
            no_folders,
            cpu,
            loaded: Arc::default(),
            replacing: Arc::default(),
            replacements: Arc::default(),
        }
    }

    /// The version of the weights, by their label.
    async fn version(&self) -> Result<String, EngineFault> {
        let label = self.label().await?;
        Ok(version_of_label(sleep::unmarked(&label)).to_owned())
    }

    async fn label(&self) -> Result<String, EngineFault> {
        let info: WeightInfo = self.server.ask("/weight_info").await?;
        Ok(info.weight_version)
    }

    async fn checksums(&self) -> Result<BTreeMap<String, String>, EngineFault> {
        let url = self.server.at("/weight_checker");
        let call = self.server.client.post(url.clone()).timeout(CHECK_DEADLINE);
        let sums: Checksums = ask(call.json(&json!({"action": "checksum"})), &url).await?;
        Ok(sums.checksums)
    }

    /// Pauses the engine, replaces its weights and resumes it. Must run to its end even if a newer order interrupts the
    /// current one: an engine must not stay paused.
    async fn replace(self, version: String, dir: PathBuf, deadline: Duration) -> Result<(), EngineFault> {
        // A newer order makes room on the disk.
        let _files = self.adapters.counted(&version);
        let _alone = self.replacing.lock().await;
        let replaced = match self.server.tell("/pause?mode=wait", &json!({}), deadline).await {
            Ok(()) => {
                let replaced = self.replace_paused(&dir, deadline).await;
                self.replacements.fetch_add(1, Ordering::SeqCst);
                replaced
            }
            // The engine may have paused in spite of the error, so it is resumed below.
            Err(fault) => Err(fault),
        };
        replaced.and(self.resume().await)
    }

    async fn resume(&self) -> Result<(), EngineFault> {
        self.server.tell("/resume", &json!({}), CHECK_DEADLINE).await
    }

    /// Loads an adapter, compares its canary, and lets it serve. Must run to its end, like [`Vllm::replace`]: vLLM
    /// reads the adapter's files for the canary, also after a newer order, and they stay on disk for that long.
    async fn take(self, adapter: NewAdapter, deadline: Duration) -> Result<Serving, EngineFault> {
        let _alone = self.replacing.lock().await;
        let weights = adapter.weights();
        let version = &weights.order.version;
        let _files = self.adapters.counted(version);
        self.adapters.unload_those_of_others(self.forget_prefixes()).await?;
        match self.waits_to_load(&weights) {
            true => self.bring_first(&weights, deadline).await?,
            false => self.adapters.bring(&weights, deadline).await?,
        }
        // The check below samples.
        self.wake_cache(deadline).await?;
        if let Some(canary) = weights.canary {
            let url = self.server.at("/v1/completions").to_string();
            let (expected, found) = self.logprobs_of_adapter(version, canary).await;
            if let Err(fault) = weights.check(&expected, &url, found) {
                self.adapters.give_up(version).await;
                return Err(fault);
            }
        }
        Ok(self.adapters.serve(&weights))
    }

    /// Loads the first adapter when no row of the base model is in flight. vLLM 0.32's CPU build computes rows without
    /// an adapter wrongly when they share a batch with rows of an adapter, such as the canary's: they would belong to
    /// no version. So from the end of the pause on, rows of the base model are refused.
    async fn bring_first(&self, weights: &Weights<'_>, deadline: Duration) -> Result<(), EngineFault> {
        let loaded = match self.server.tell("/pause?mode=wait", &json!({}), deadline).await {
            Ok(()) => self.adapters.bring(weights, deadline).await,
            Err(fault) => Err(fault),
        };
        if loaded.is_ok() {
            self.adapters.serve(weights);
        }
        let resumed = self.resume().await;
        // An error ends the load before its canary is compared.
        if resumed.is_err() {
            self.adapters.set(None);
        }
        loaded.and(resumed)
    }

    async fn replace_paused(&self, dir: &Path, deadline: Duration) -> Result<(), EngineFault> {
        // First: a worker that fails in the middle has tensors of both versions, and a cache that was not dropped has
        // prefixes of the old one. Rows of either belong to no version, and sampling resumes after an error too.
        self.name_as_unverified().await?;
        // Rows of an adapter would be sampled with other weights below it.
        self.adapters.set(None);
        let reload = json!({
            "method": "reload_weights",
            "kwargs": {"weights_path": dir},
            "timeout": deadline.as_secs(),
        });
        self.server.tell("/collective_rpc", &reload, deadline).await?;
        self.forget_prefixes().await
    }

    /// Drops the prefix cache of the previous weights. vLLM answers 200 whether it did or not.
    async fn forget_prefixes(&self) -> Result<(), EngineFault> {
        let url = self.server.at("/reset_prefix_cache");
        let call = self.server.client.post(url.clone()).timeout(CHECK_DEADLINE);
        match ask::<Reset>(call, &url).await? {
            Reset { success: true } => Ok(()),
            Reset { success: false } => Err(EngineFault::Refused {
                url: url.to_string(),
                message: "requests hold blocks of the prefix cache, so it was not dropped".to_owned(),
            }),
        }
    }

    /// Samples greedily from the fixed prompt, with logprobs.
    async fn samples(&self) -> Result<Samples, EngineFault> {
        let request = CompletionRequest {
            temperature: 0.0,
            ignore_eos: true,
            ..CompletionRequest::of_tokens(SERVED_NAME, PROMPT.to_vec(), SAMPLED_TOKENS, 0)
        };
        let url = self.server.at("/v1/completions");
        let call = self.server.client.post(url.clone()).timeout(CHECK_DEADLINE);
        let answer: Completion = ask(call.json(&completion(&request, &[PROMPT.to_vec()], SERVED_NAME)), &url).await?;
        let row = answer.choices.into_iter().next().unwrap_or_default();
        Ok(Samples {
            ids: row.token_ids.unwrap_or_default(),
            logprobs: row.logprobs.map(|said| said.token_logprobs).unwrap_or_default(),
        })
    }

    async fn name(&self, label: &str) -> Result<(), EngineFault> {
        let label = json!({"new_version": label});
        self.server.tell("/update_weight_version", &label, STATE_DEADLINE).await
    }
}

impl Engine for Vllm {
    fn in_use(&self) -> BTreeSet<String> {
        self.adapters.in_use()
    }

    async fn serving(&self) -> Result<Serving, EngineFault> {
        if let Some(adapter) = self.adapters.serving().await? {
            return Ok(adapter);
        }
        Ok(Serving {
            version: self.version().await?,
            sha256: None,
        })
    }

    async fn load(&self, weights: Weights<'_>, deadline: Duration) -> Result<Serving, EngineFault> {
        let version = &weights.order.version;
        let unable = |why: &str| EngineFault::Unable {
            version: version.clone(),
            why: why.to_owned(),
        };
        if let Some(why) = &self.no_folders {
            return Err(unable(why));
        }
        if self.cpu && !weights.adapter && ties_layers(weights.dir).await {
            return Err(unable(
                "its output layer is its embedding (tie_word_embeddings), of which vLLM's CPU build keeps the one it booted with: it would sample \
                 neither from the old weights nor from the new. Give the run model.lora, or the pool another engine",
            ));
        }
        self.wake_weights(deadline).await?;
        let failed =
            |error: tokio::task::JoinError| unable(&format!("this agent failed while it was about it: {error}"));
        if weights.adapter {
            return tokio::spawn(self.clone().take(NewAdapter::of(&weights), deadline))
                .await
                .unwrap_or_else(|error| Err(failed(error)));
        }
        tokio::spawn(self.clone().replace(version.clone(), weights.dir.to_owned(), deadline))
            .await
            .unwrap_or_else(|error| Err(failed(error)))?;
        // The checks below sample.
        self.wake_cache(deadline).await?;
        let now = Loaded {
            sha256: weights.sha256.to_owned(),
            checksums: self.checksums().await?,
            samples: self.samples().await?,
        };
        let before = self.loaded.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(same) = before.and_then(|before| now.unchanged_since(&before)) {
            return Err(EngineFault::Misunderstood {
                url: self.server.at("/collective_rpc").to_string(),
                cause: format!("it said that it loaded {version}, and {same}"),
            });
        }
        let url = self.server.at("/v1/completions").to_string();
        if let Some(canary) = weights.canary {
            weights.check(&canary.logprobs, &url, self.logprobs(canary).await)?;
        }
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        self.name(version).await?;
        Ok(Serving {
            version: self.version().await?,
            sha256: None,
        })
    }

    fn waits_to_load(&self, weights: &Weights<'_>) -> bool {
        !weights.adapter || (self.cpu && self.adapters.current().is_none())
    }

    fn cannot_sleep(&self) -> Option<&'static str> {
        self.cpu
            .then_some("vLLM's CPU build has no sleep mode; on CPUs a colocated pool is embedded")
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
        if adapter.is_none() && self.adapters.current().is_some() {
            return Err(ErrorBody::wrong_weights(None, version));
        }
        let model = adapter.as_ref().map_or(SERVED_NAME, |adapter| adapter.version.as_str());
        let mut asked = completion(&request, &prompts, model);
        // A vLLM that reports experts does so in every completion, by default from the first token. If the request
        // did not ask for experts, the report starts as late as possible, so that it is short.
        let shortest = prompts.iter().map(Vec::len).min();
        asked["routed_experts_prompt_start"] = json!(request.routed_experts_from.or(shortest));
        // Rows of vLLM 0.32 do not name the full weights from which they were sampled. They are the current weights if
        // the answer arrives before the end of a pause in which the weights are replaced.
        let begun = self.replacements.load(Ordering::SeqCst);
        let label = match &adapter {
            Some(_) => None,
            None => Some(self.version().await.map_err(EngineFault::refusal)?),
        };
        let answer: Completion = self.server.sample("/v1/completions", &asked, version).await?;
        let replaced = self.replacements.load(Ordering::SeqCst) != begun;
        let says = answer.choices.iter().any(|row| row.weight_versions.is_some());
        // The name fixes an adapter for the whole request; full weights may change under a running request.
        let from = match &adapter {
            Some(adapter) if answer.model == adapter.version => Proof::Named(version),
            Some(_) => {
                return Err(misbehaved(format!(
                    "asked for the adapter {version}, the engine answered as {}",
                    answer.model
                )));
            }
            None if says => Proof::Labels,
            None if replaced => return Err(ErrorBody::wrong_weights(None, version)),
            None => Proof::Named(label.as_deref().unwrap_or(UNVERIFIED)),
        };
        answered(answer, &request, &prompts, from)
    }

    async fn chat(&self, request: ChatRequest) -> Result<Answered, ErrorBody> {
        let adapter = self.adapters.sampling_now();
        let model = adapter.as_ref().map_or(SERVED_NAME, |adapter| adapter.version.as_str());
        chat::ask(&self.server, &request, model, None).await
    }

    async fn page(&self, page: Page) -> Result<Answered, EngineFault> {
        self.server.page(page).await
    }
}

/// Whether a model's output layer is its embedding; true unless its config says no.
///
/// vLLM's CPU build computes with repacked copies of the weights. `reload_weights` remakes them for every layer in the
/// files. A tied output layer is in no file: logits then come from the old copy, while all other layers are new.
async fn ties_layers(dir: &Path) -> bool {
    #[derive(Deserialize)]
    struct Config {
        tie_word_embeddings: bool,
    }
    let config = tokio::fs::read(dir.join("config.json")).await.unwrap_or_default();
    serde_json::from_slice(&config).map_or(true, |config: Config| config.tie_word_embeddings)
}
