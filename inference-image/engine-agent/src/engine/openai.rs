//! An external engine: a server with OpenAI's API. Its weights are fixed and called `base`.
//!
//! It takes and returns token ids (vLLM's extensions of completions), or it speaks only text. It counts as serving
//! after a probe: one completion of token ids that returns token ids with a logprob each, or one answer in text. The
//! probe is repeated, because such a server may be replaced by another behind the same URL.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use grpo_engine_protocol::{
    BASE_VERSION, ChatRequest, CompletionRequest, CompletionResponse, ErrorBody, ErrorCode, Penalties, TextMessage,
    TextRequest,
};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::completion::{Completion, Proof, answered, completion};
use super::experts::not_reported;
use super::wire::{Answered, Server, read_request};
use super::{Engine, EngineFault, Page, Serving, Weights, chat};

/// Tokens that a probe samples.
const PROBED_TOKENS: u32 = 4;

/// The test whether a server is fit for training.
#[derive(Clone, Debug)]
pub struct Probe {
    pub tokens: Vec<u32>,
    pub period: Duration,
    pub timeout: Duration,
}

#[derive(Clone, Debug)]
pub struct OpenAi {
    server: Server,
    /// The name of its model; default: the first in its list.
    model: Option<String>,
    /// It speaks only text.
    text_only: bool,
    probe: Probe,
    /// Locked during a probe.
    probed: Arc<Mutex<Probed>>,
    /// The name of the model that passed the last probe. Requests read it while the next probe waits for its answer.
    passed: Arc<std::sync::Mutex<Option<String>>>,
}

#[derive(Debug, Default)]
struct Probed {
    at: Option<Instant>,
    outcome: Option<Result<(), EngineFault>>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<ModelName>,
}

#[derive(Deserialize)]
struct ModelName {
    id: String,
}

impl OpenAi {
    pub fn new(server: Server, model: Option<String>, text_only: bool, probe: Probe) -> Self {
        Self {
            server,
            model,
            text_only,
            probe,
            probed: Arc::default(),
            passed: Arc::default(),
        }
    }

    async fn name(&self) -> Result<String, EngineFault> {
        if let Some(model) = &self.model {
            return Ok(model.clone());
        }
        let url = self.server.at(Page::Models.path());
        let call = self.server.client.get(url.clone()).timeout(self.probe.timeout);
        let models: Models = super::wire::ask(call, &url).await?;
        let first = models.data.into_iter().next();
        first.map(|model| model.id).ok_or_else(|| EngineFault::Unfit {
            url: url.to_string(),
            why: "it lists no model; name one in engine.external.model".to_owned(),
        })
    }

    /// The model name in sampling requests: the one that passed the probe.
    async fn sampling_name(&self) -> Result<String, ErrorBody> {
        let passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match passed {
            Some(model) => Ok(model),
            None => self.name().await.map_err(EngineFault::refusal),
        }
    }

    /// Requests one completion and checks that a trainer can use it.
    async fn try_once(&self) -> Result<String, EngineFault> {
        let model = self.name().await?;
        let unfit = |why: String| EngineFault::Unfit {
            url: self.server.url.to_string(),
            why,
        };
        let request = CompletionRequest {
            ignore_eos: true,
            ..CompletionRequest::of_tokens(BASE_VERSION, self.probe.tokens.clone(), PROBED_TOKENS, 0)
        };
        let asked = completion(&request, std::slice::from_ref(&self.probe.tokens), &model);
        let answer = self.server.sample("/v1/completions", &asked, BASE_VERSION);
        let answer: Completion = tokio::time::timeout(self.probe.timeout, answer)
            .await
            .map_err(|_| {
                unfit(format!(
                    "it did not answer the probe within {} s",
                    self.probe.timeout.as_secs()
                ))
            })?
            .map_err(|error| unfit(error.message))?;
        let prompts = std::slice::from_ref(&self.probe.tokens);
        let answer =
            answered(answer, &request, prompts, Proof::Named(BASE_VERSION)).map_err(|error| unfit(error.message))?;
        let answer: CompletionResponse =
            serde_json::from_slice(&answer.body).map_err(|error| unfit(error.to_string()))?;
        let row = answer
            .choices
            .first()
            .ok_or_else(|| unfit("its answer to the probe has no rows".to_owned()))?;
        let logprobs = row
            .logprobs
            .as_ref()
            .map(|said| said.token_logprobs.as_slice())
            .unwrap_or_default();
        match logprobs.iter().find(|logprob| !logprob.is_finite() || **logprob > 0.0) {
            Some(odd) => Err(unfit(format!("it returned {odd}, which is no logprob"))),
            None if row.token_ids.is_empty() => Err(unfit("it sampled nothing".to_owned())),
            None => Ok(model),
        }
    }

    /// Requests one short answer in text. A server that limits the rate of requests is there.
    async fn try_text(&self) -> Result<String, EngineFault> {
        let model = self.name().await?;
        let refused = |message: String| EngineFault::Refused {
            url: self.server.url.to_string(),
            message,
        };
        let request = TextRequest {
            messages: vec![TextMessage::new("user", "Say yes.")],
            tools: String::new(),
            max_tokens: PROBED_TOKENS,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            penalties: Penalties::default(),
            seed: 0,
        };
        let answer = chat::ask_text(&self.server, &request, &model);
        let limit = self.probe.timeout;
        let answer = tokio::time::timeout(limit, answer).await.map_err(|_| {
            let seconds = limit.as_secs();
            refused(format!("it did not answer the probe within {seconds} s"))
        })?;
        match answer {
            Err(error) if error.code != ErrorCode::QueueFull => Err(refused(error.message)),
            _ => Ok(model),
        }
    }
}

impl Engine for OpenAi {
    async fn serving(&self) -> Result<Serving, EngineFault> {
        let mut probed = self.probed.lock().await;
        if probed.at.is_none_or(|at| at.elapsed() >= self.probe.period) {
            let outcome = match self.text_only {
                true => self.try_text().await,
                false => self.try_once().await,
            };
            probed.at = Some(Instant::now());
            *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = outcome.as_ref().ok().cloned();
            probed.outcome = Some(outcome.map(|_| ()));
        }
        match &probed.outcome {
            Some(Err(fault)) => Err(fault.clone()),
            _ => Ok(Serving {
                version: BASE_VERSION.to_owned(),
                sha256: None,
            }),
        }
    }

    async fn load(&self, weights: Weights<'_>, _: Duration) -> Result<Serving, EngineFault> {
        Err(EngineFault::Unable {
            version: weights.order.version.clone(),
            why: "engine.external.weights is Frozen, so it serves base for ever. A run that trains on its samples nevertheless \
                  does so with a frozen sampler"
                .to_owned(),
        })
    }

    fn cannot_sleep(&self) -> Option<&'static str> {
        Some("it is an external server, which keeps its memory; a colocated pool is embedded, vllm or sglang")
    }

    async fn complete(&self, body: Bytes, _: Option<&str>) -> Result<Answered, ErrorBody> {
        if self.text_only {
            return Err(ErrorBody::new(
                ErrorCode::TextOnly,
                "engine.external.api of the pool is Chat, so the server returns neither token ids nor logprobs: only runs of mode \
                 Evaluate sample from it; take a server that returns token ids, with api: Tokens",
            ));
        }
        let (request, prompts) = read_request(&body)?;
        if request.routed_experts_from.is_some() {
            return Err(not_reported(
                "of a server that is somebody else's it is not known which experts its tokens go through",
            ));
        }
        let model = self.sampling_name().await?;
        let asked = completion(&request, &prompts, &model);
        let answer: Completion = self.server.sample("/v1/completions", &asked, BASE_VERSION).await?;
        answered(answer, &request, &prompts, Proof::Named(BASE_VERSION))
    }

    async fn chat(&self, request: ChatRequest) -> Result<Answered, ErrorBody> {
        let model = self.sampling_name().await?;
        chat::ask(&self.server, &request, &model, None).await
    }

    async fn text(&self, request: TextRequest) -> Result<Answered, ErrorBody> {
        if !self.text_only {
            return Err(ErrorBody::new(
                ErrorCode::InvalidRequest,
                "engine.external.api of the pool is Tokens: ask /v1/completions",
            ));
        }
        let model = self.sampling_name().await?;
        chat::ask_text(&self.server, &request, &model).await
    }

    async fn page(&self, page: Page) -> Result<Answered, EngineFault> {
        self.server.page(page).await
    }
}
