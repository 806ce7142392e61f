//! Sampling: sends each request to the replica that [`crate::replicas`] chooses.
//!
//! A request carries the version it wants; a replica with another version says so and gets no requests until it has
//! caught up. Retries end if replicas give no result for long enough; their time is reported as waiting, so that no
//! episode pays for it.
//!
//! A long answer is not a fault. A silent request keeps running while its replica proves that it samples: a single
//! token for another prompt. A replica that cannot do that hangs, and the driver asks another one. A replica that can
//! is working on an answer that the policy makes long, and that time is the policy's.
//!
//! A replica that refuses token ids because its server speaks only text is asked in [`text`].

mod answer;
pub mod text;

use crate::epoch::{self, OrderError};
use crate::experts::Mixture;
use crate::fault::TerminalFault;
use crate::replicas::{Endpoints, Home, Replicas};
use crate::retry::{Budget, Pauses, Retry, asked_pause};
use crate::sampling;
pub use answer::{Experts, Sample};
use answer::{Wrong, checked};
use bytes::Bytes;
use grpo_auth::TokenFile;
use grpo_contracts::driver_epoch::DriverEpoch;
use grpo_contracts::reason::Reason;
use grpo_engine_protocol::{
    AgentStatus, CompletionRequest, CompletionResponse, ErrorBody, ErrorCode, ErrorOrigin, Penalties, SleepOrder,
    TokenIds, WEIGHTS_HEADER, WeightsOrder,
};
use grpo_records::EpisodeEnd;
use http_body_util::Full;
use reqwest::header::CONTENT_TYPE;
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use text::Conversation;
use tokio::sync::watch;

const PAUSES: Pauses = Pauses::doubling(Duration::from_millis(100), Duration::from_secs(2));
/// Failed proofs in a row after which a replica counts as hanging.
const MISSED_PROOFS: u32 = 2;

/// A sampling request.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    pub prompt: TokenIds<'a>,
    pub max_tokens: u32,
    pub temperature: f64,
    pub top_p: f64,
    pub top_k: i64,
    pub penalties: Penalties,
    pub seed: u64,
    pub stop_token_ids: Vec<u32>,
    /// The policy's remaining time.
    pub time_left: Duration,
    /// The mixture whose experts are requested, and the first position.
    pub experts: Option<(Arc<Mixture>, usize)>,
    /// For a server that speaks only text; `None` if the answer may be trained on.
    pub conversation: Option<Conversation<'a>>,
}

/// A sample and the weights that made it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub answer: Sample,
    pub weights: String,
    pub took: Duration,
    /// Spent on replicas that were unavailable, served other weights, or gave wrong answers.
    pub waited: Duration,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answered {
    Sampled(Sampled),
    /// The policy's doing, no fault: its time ended while the engine was sampling, or a server that speaks only text
    /// takes no more of this conversation. The answer is lost; the work before it counts.
    Ended {
        end: EpisodeEnd,
        took: Duration,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The infrastructure's fault: the episode is void.
    #[error("no engine of {host} answered within {within:?}; last: {last}")]
    Unavailable {
        host: String,
        within: Duration,
        last: String,
    },
    /// A server that speaks only text refused the first prompt of an episode: the episode is void.
    #[error("the server behind {host} refuses this conversation: {why}")]
    Refused { host: String, why: String },
    /// A retry cannot help.
    #[error(transparent)]
    Terminal(TerminalFault),
}

/// The client of the replicas. Cloning is cheap.
#[derive(Clone)]
pub struct Engines {
    replicas: Replicas,
    model: String,
    http: reqwest::Client,
    budget: Budget,
    token: Option<TokenFile>,
    epoch: Option<DriverEpoch>,
    /// A server that speaks only text has answered.
    conversed: Arc<AtomicBool>,
}

enum Refused {
    Again(String),
    Void(String),
    Terminal(TerminalFault),
    Ended(EpisodeEnd),
}

impl Engines {
    /// `budget.request`: how long a request may be silent before its replica has to prove that it samples.
    pub fn new(endpoints: Endpoints, model: impl Into<String>, budget: Budget) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .pool_idle_timeout(Duration::from_secs(30))
            .no_proxy()
            .build()?;
        Ok(Self {
            replicas: Replicas::new(endpoints),
            model: model.into(),
            http,
            budget,
            token: None,
            epoch: None,
            conversed: Arc::default(),
        })
    }

    /// With the token that engine agents require.
    pub fn with_token(mut self, token: TokenFile) -> Self {
        self.token = Some(token);
        self
    }

    /// With the epoch that engine agents check before they take an order.
    pub fn of_driver(mut self, epoch: DriverEpoch) -> Self {
        self.epoch = Some(epoch);
        self
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        TokenFile::authorize(self.token.as_ref(), request)
    }

    /// A sampling request with the token: a real one, or the proof that a replica samples.
    fn completion(&self, replica: SocketAddr) -> reqwest::RequestBuilder {
        self.authorized(self.http.post(format!("http://{replica}/v1/completions")))
    }

    /// All current replicas.
    pub async fn replicas(&self) -> Vec<SocketAddr> {
        self.replicas.all().await
    }

    /// Asks a replica's agent which weights it serves.
    pub async fn status(&self, replica: SocketAddr) -> Result<AgentStatus, String> {
        let status = self.ask_status(replica).await;
        let serving = status.as_ref().ok().and_then(|status| status.serving.as_deref());
        self.replicas.serves(replica, serving);
        status
    }

    async fn ask_status(&self, replica: SocketAddr) -> Result<AgentStatus, String> {
        let request = self.authorized(self.http.get(format!("http://{replica}/agent/v1/status")));
        let request = epoch::stamped(self.epoch.as_ref(), request);
        let answer = request.timeout(Duration::from_secs(3)).send().await.map_err(brief)?;
        answer.error_for_status().map_err(brief)?.json().await.map_err(brief)
    }

    /// Why requests to a replica fail, if its last request failed.
    pub fn trouble(&self, replica: SocketAddr) -> Option<String> {
        self.replicas.trouble(replica)
    }

    /// Tells a replica's agent which weights to serve.
    pub async fn order(&self, replica: SocketAddr, order: &WeightsOrder) -> Result<(), OrderError> {
        self.put(replica, "weights", order).await
    }

    /// Tells a replica's agent which weights to download to its disk while it serves others.
    pub async fn prefetch(&self, replica: SocketAddr, order: &WeightsOrder) -> Result<(), OrderError> {
        self.put(replica, "prefetch", order).await
    }

    /// Tells a replica's agent to have its engine give its devices back, or take them again.
    pub async fn sleep(&self, replica: SocketAddr, order: SleepOrder) -> Result<(), OrderError> {
        self.put(replica, "sleep", &order).await
    }

    async fn put(&self, replica: SocketAddr, what: &str, order: &impl Serialize) -> Result<(), OrderError> {
        let failed = |error| OrderError::Failed(brief(error));
        let request = self.authorized(self.http.put(format!("http://{replica}/agent/v1/{what}")));
        let request = epoch::stamped(self.epoch.as_ref(), request).json(order);
        let answer = request.timeout(Duration::from_secs(5)).send().await.map_err(failed)?;
        let answer = epoch::of_this_driver(self.epoch.as_ref(), answer)?;
        answer.error_for_status().map(|_| ()).map_err(failed)
    }

    /// Samples once with the weights that `wanted` names, which may change during the wait. `home`: the episode's.
    pub async fn sample(
        &self,
        ask: &Ask<'_>,
        wanted: &watch::Receiver<String>,
        home: &Home,
    ) -> Result<Answered, EngineError> {
        let began = Instant::now();
        let mut retry = Retry::new(self.budget.total, PAUSES).with_jitter(&ask.seed.to_string());
        let proved = AtomicBool::new(false);
        loop {
            let version = wanted.borrow().clone();
            self.replicas.all().await;
            let last = if let Some(guard) = self.replicas.take(&version, home) {
                let asked = Instant::now();
                match self.ask(guard.replica, ask, &version, &proved).await {
                    Ok(answer) => {
                        self.replicas.answered(guard.replica);
                        return Ok(Answered::Sampled(Sampled {
                            answer,
                            weights: version,
                            took: asked.elapsed(),
                            waited: asked.duration_since(began),
                        }));
                    }
                    Err(Refused::Terminal(fault)) => return Err(EngineError::Terminal(fault)),
                    Err(Refused::Void(why)) => {
                        let host = self.replicas.host();
                        return Err(EngineError::Refused { host, why });
                    }
                    Err(Refused::Ended(end)) => {
                        let took = asked.elapsed();
                        return Ok(Answered::Ended { end, took });
                    }
                    Err(Refused::Again(why)) => {
                        tracing::debug!(replica = %guard.replica, %why, "asking an engine again");
                        format!("{}: {why}", guard.replica)
                    }
                }
            } else {
                self.replicas.none_ready(&version)
            };
            // A replica that proved itself and was lost in the middle of a long answer made progress.
            if proved.swap(false, Ordering::Relaxed) {
                retry.progress();
            }
            if let Err(ended) = retry.pause().await {
                return Err(EngineError::Unavailable {
                    host: self.replicas.host(),
                    within: ended.within,
                    last,
                });
            }
        }
    }

    /// Returns the answer, or that the replica hangs, or that the policy's time ended while it sampled.
    async fn ask(
        &self,
        replica: SocketAddr,
        ask: &Ask<'_>,
        version: &str,
        proved: &AtomicBool,
    ) -> Result<Sample, Refused> {
        tokio::select! {
            answer = self.complete(replica, ask, version) => answer,
            why = self.hangs(replica, ask, version, proved) => Err(self.rest(replica, why)),
            () = tokio::time::sleep(ask.time_left.max(self.budget.request)) => {
                match Box::pin(self.proof(replica, ask, version)).await {
                    // A server that speaks only text proves nothing about this request, which it may have lost.
                    Ok(()) if self.replicas.is_text_only(replica) => {
                        Err(self.rest(replica, "it did not answer in time".to_owned()))
                    }
                    Ok(()) => Err(Refused::Ended(EpisodeEnd::EpisodeTimeout)),
                    Err(why) => Err(self.rest(replica, why)),
                }
            }
        }
    }

    /// Returns when a replica has failed several proofs in a row.
    async fn hangs(&self, replica: SocketAddr, ask: &Ask<'_>, version: &str, proved: &AtomicBool) -> String {
        let mut missed = 0;
        loop {
            tokio::time::sleep(self.budget.request).await;
            match Box::pin(self.proof(replica, ask, version)).await {
                Ok(()) => {
                    missed = 0;
                    // Otherwise a request that a server loses again and again would be repeated without end.
                    proved.fetch_or(!self.replicas.is_text_only(replica), Ordering::Relaxed);
                }
                Err(why) => {
                    missed += 1;
                    if missed >= MISSED_PROOFS {
                        return format!("it hangs: {why}");
                    }
                }
            }
        }
    }

    /// Has a replica sample one token. A replica with a full queue, other weights or a server that speaks only text
    /// proves itself by its agent's status.
    async fn proof(&self, replica: SocketAddr, ask: &Ask<'_>, version: &str) -> Result<(), String> {
        let prompt = ask.prompt.last().into_iter().collect();
        let request = self.completion(replica);
        let sent = request
            .header(WEIGHTS_HEADER, version)
            .json(&CompletionRequest::of_tokens(&self.model, prompt, 1, ask.seed))
            .timeout(self.budget.request)
            .send()
            .await;
        let answer = sent.map_err(brief)?;
        if answer.status().is_success() {
            return Ok(());
        }
        match answer.json::<ErrorBody>().await.map_err(brief)? {
            error
                if matches!(
                    error.code,
                    ErrorCode::QueueFull | ErrorCode::WrongWeights | ErrorCode::TextOnly
                ) =>
            {
                match self.ask_status(replica).await?.serving {
                    Some(_) => Ok(()),
                    None => Err("its engine does not answer".into()),
                }
            }
            error => Err(error.message),
        }
    }

    async fn complete(&self, replica: SocketAddr, ask: &Ask<'_>, version: &str) -> Result<Sample, Refused> {
        if let Some(conversation) = ask.conversation.filter(|_| self.replicas.is_text_only(replica)) {
            // Boxed, as the proofs are: thousands of live episodes wait below, and few of them need this state.
            return Box::pin(self.converse(replica, ask, conversation, version)).await;
        }
        let settings = CompletionRequest {
            temperature: ask.temperature,
            top_p: ask.top_p,
            top_k: ask.top_k,
            stop_token_ids: ask.stop_token_ids.clone(),
            routed_experts_from: ask.experts.as_ref().map(|(_, from)| *from),
            ..CompletionRequest::of_tokens(&self.model, Vec::new(), ask.max_tokens, ask.seed)
        };
        let request = CompletionRequest::asking(ask.prompt, settings).with_penalties(ask.penalties);
        let body = request.to_json();
        let body = body.map_err(|error| Refused::Again(format!("writing the request: {error}")))?;
        // A wrapped body is freed once sent; reqwest keeps a body that it could send again until the answer arrives.
        let body = reqwest::Body::wrap(Full::new(Bytes::from(body)));
        let request = self.completion(replica).header(CONTENT_TYPE, "application/json");
        let sent = request.header(WEIGHTS_HEADER, version).body(body).send().await;
        let answer = sent.map_err(|error| self.rest(replica, brief(error)))?;
        if answer.status().is_success() {
            let answer: CompletionResponse = answer.json().await.map_err(|e| self.rest(replica, brief(e)))?;
            return checked(answer, version, ask).map_err(|wrong| match wrong {
                Wrong::Answer(why) => self.rest(replica, why),
                Wrong::Engine(why) => Refused::Terminal(TerminalFault::new(
                    Reason::ExpertsUnusable,
                    format!("which experts tokens went through cannot be learnt from engine {replica}: {why}"),
                )),
            });
        }
        let error = self.error_of(replica, answer).await?;
        Err(match ask.conversation {
            Some(_) if error.code == ErrorCode::TextOnly => {
                self.replicas.found_text_only(replica);
                Refused::Again(error.message)
            }
            _ => self.refusal(replica, error),
        })
    }

    /// The error in an answer without success.
    async fn error_of(&self, replica: SocketAddr, answer: reqwest::Response) -> Result<ErrorBody, Refused> {
        let status = answer.status();
        let words = answer.text().await.unwrap_or_default();
        serde_json::from_str(&words).map_err(|_| {
            // The token was refused, or the server is no engine agent.
            let words: String = words.chars().take(1000).collect();
            self.rest(replica, format!("status {status}: {words}"))
        })
    }

    fn refusal(&self, replica: SocketAddr, error: ErrorBody) -> Refused {
        if error.code == ErrorCode::WrongWeights {
            self.replicas.serves(replica, error.serving.as_deref());
        }
        match (error.fault, error.code) {
            (ErrorOrigin::Workload, _) => Refused::Terminal(TerminalFault::new(
                Reason::ModelDiverged,
                format!(
                    "engine {replica} says: {}; lower the learning rate or start from an earlier checkpoint",
                    error.message
                ),
            )),
            (_, ErrorCode::ExpertsNotReported) => Refused::Terminal(TerminalFault::new(
                Reason::ExpertsNotReported,
                format!(
                    "the model is a mixture of experts, and engine {replica} does not report them: {}; set spec.algorithm.routerReplay: true, so that \
                     the pool of the run does (a pool that is referred to: its spec.routedExperts: true), or false, so that the trainer's own router \
                     chooses",
                    error.message
                ),
            )),
            // Each request of the run has the setting, so the policy is not at fault.
            (_, ErrorCode::SettingRefused) => {
                let setting = error.setting.as_deref().unwrap_or_default();
                Refused::Terminal(TerminalFault::new(
                    Reason::EngineRefuses,
                    format!(
                        "the server of engine {replica} refuses {setting}: {}; leave out spec.rollout.sampling.{}, or set a value that the server takes",
                        error.message,
                        sampling::field_of(setting)
                    ),
                ))
            }
            (ErrorOrigin::Client, _) => Refused::Terminal(TerminalFault::new(
                Reason::EngineRefuses,
                format!(
                    "engine {replica} refuses what this run samples with: {}; compare the agent's contextTokens with the engine's length",
                    error.message
                ),
            )),
            // A replica that has switched is asked again as soon as it is eligible.
            (ErrorOrigin::Infrastructure, ErrorCode::WrongWeights) if error.serving.is_some() => {
                Refused::Again(error.message)
            }
            (ErrorOrigin::Infrastructure, code) => {
                let asked = error.retry_after_seconds.map(asked_pause);
                // An agent of ours has a place again sooner than a server has another minute.
                let is_rate = code == ErrorCode::QueueFull && self.replicas.is_text_only(replica);
                if asked.is_none() && !is_rate {
                    return self.rest(replica, error.message);
                }
                self.replicas.limited(replica, &error.message, asked);
                Refused::Again(error.message)
            }
        }
    }

    fn rest(&self, replica: SocketAddr, why: String) -> Refused {
        self.replicas.rest(replica, &why);
        Refused::Again(why)
    }
}

/// The innermost error, without the address, which the caller names anyway.
fn brief(error: reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}
