//! Sampling: finds every engine replica, sends each request to the least busy one that serves the wanted weights.
//!
//! The replicas are whatever addresses the pool's headless service resolves to, looked up every second. A request carries the
//! version it wants; a replica that serves another says so and is passed over until it has caught up. Retries end at a
//! deadline, and what they took is reported as waiting, so that nobody's episode pays for it.

use crate::fault::Fault;
use grpo_engine_protocol::{
    AgentStatus, CompletionRequest, CompletionResponse, ErrorBody, ErrorCode, Fault as Whose, FinishReason, Prompt,
    WEIGHTS_HEADER, WeightsOrder,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a replica that did not answer is left alone.
const COOL_DOWN: Duration = Duration::from_secs(1);
/// How long the list of addresses is trusted.
const LOOK_UP_EVERY: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Where the replicas are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// All addresses of this name, on this port.
    Name {
        host: String,
        port: u16,
    },
    Fixed(Vec<SocketAddr>),
}

/// What is to be sampled.
#[derive(Clone, Debug)]
pub struct Ask {
    pub prompt: Vec<u32>,
    pub max_tokens: u32,
    pub temperature: f64,
    pub top_p: f64,
    pub top_k: i64,
    pub seed: u64,
    pub stop_token_ids: Vec<u32>,
}

/// What was sampled, and by which weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub weights: String,
    pub finish: FinishReason,
    pub took: Duration,
    /// Spent on replicas that were away, busy with other weights, or wrong.
    pub waited: Duration,
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
    /// Nothing this run does can get over it.
    #[error(transparent)]
    Terminal(Fault),
}

#[derive(Debug, Default, Clone)]
struct Replica {
    in_flight: usize,
    serving: Option<String>,
    rest_until: Option<Instant>,
}

/// The pool of replicas, as the driver sees it. Cloning is cheap.
#[derive(Clone)]
pub struct Engines {
    endpoints: Endpoints,
    model: String,
    http: reqwest::Client,
    patience: Duration,
    replicas: Arc<Mutex<BTreeMap<SocketAddr, Replica>>>,
    looked_up: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

enum Refused {
    Again(String),
    Terminal(Fault),
}

impl Engines {
    pub fn new(endpoints: Endpoints, model: impl Into<String>, patience: Duration) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .pool_idle_timeout(Duration::from_secs(30))
            .no_proxy()
            .build()?;
        Ok(Self {
            endpoints,
            model: model.into(),
            http,
            patience,
            replicas: Arc::default(),
            looked_up: Arc::default(),
        })
    }

    /// The name of the pool, for messages.
    pub fn host(&self) -> String {
        match &self.endpoints {
            Endpoints::Name { host, .. } => host.clone(),
            Endpoints::Fixed(all) => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        }
    }

    /// Every replica there is now.
    pub async fn replicas(&self) -> Vec<SocketAddr> {
        let mut looked_up = self.looked_up.lock().await;
        if looked_up.is_none_or(|at| at.elapsed() >= LOOK_UP_EVERY) {
            match self.look_up().await {
                Ok(found) => self.remember(&found),
                // A name without addresses and a resolver that is away look alike; what was known stays in use.
                Err(error) => tracing::debug!(host = %self.host(), %error, "looking up the engines"),
            }
            *looked_up = Some(Instant::now());
        }
        self.known().keys().copied().collect()
    }

    /// Asks a replica's agent what it serves.
    pub async fn status(&self, replica: SocketAddr) -> Result<AgentStatus, String> {
        let request = self.http.get(format!("http://{replica}/agent/v1/status"));
        let answer = request.timeout(Duration::from_secs(3)).send().await.map_err(brief)?;
        let status: AgentStatus = answer.error_for_status().map_err(brief)?.json().await.map_err(brief)?;
        self.with(replica, |r| r.serving.clone_from(&status.serving));
        Ok(status)
    }

    /// Tells a replica's agent which weights to serve.
    pub async fn order(&self, replica: SocketAddr, order: &WeightsOrder) -> Result<(), String> {
        let request = self.http.put(format!("http://{replica}/agent/v1/weights")).json(order);
        let answer = request.timeout(Duration::from_secs(5)).send().await.map_err(brief)?;
        answer.error_for_status().map(|_| ()).map_err(brief)
    }

    /// Samples once with the weights that `wanted` names, which may change while this waits.
    pub async fn sample(&self, ask: &Ask, wanted: &watch::Receiver<String>) -> Result<Sampled, EngineError> {
        let began = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut last = "no replica is known".to_owned();
        while began.elapsed() < self.patience {
            let version = wanted.borrow().clone();
            self.replicas().await;
            if let Some(guard) = self.least_busy(&version) {
                let asked = Instant::now();
                match self.ask(guard.replica, ask, &version).await {
                    Ok((ids, logprobs, finish)) => {
                        return Ok(Sampled {
                            ids,
                            logprobs,
                            weights: version,
                            finish,
                            took: asked.elapsed(),
                            waited: asked.duration_since(began),
                        });
                    }
                    Err(Refused::Terminal(fault)) => return Err(EngineError::Terminal(fault)),
                    Err(Refused::Again(why)) => {
                        tracing::debug!(replica = %guard.replica, %why, "asking an engine again");
                        last = format!("{}: {why}", guard.replica);
                    }
                }
            } else {
                last = format!("no replica serves {version} ({} known)", self.known().len());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(EngineError::Unavailable {
            host: self.host(),
            within: self.patience,
            last,
        })
    }

    async fn ask(
        &self,
        replica: SocketAddr,
        ask: &Ask,
        version: &str,
    ) -> Result<(Vec<u32>, Vec<f32>, FinishReason), Refused> {
        let body = CompletionRequest {
            temperature: ask.temperature,
            top_p: ask.top_p,
            top_k: ask.top_k,
            stop_token_ids: ask.stop_token_ids.clone(),
            prompt: Prompt::Tokens(ask.prompt.clone()),
            ..CompletionRequest::of_tokens(&self.model, Vec::new(), ask.max_tokens, ask.seed)
        };
        let request = self.http.post(format!("http://{replica}/v1/completions"));
        let sent = request
            .header(WEIGHTS_HEADER, version)
            .json(&body)
            .timeout(self.patience)
            .send()
            .await;
        let answer = sent.map_err(|error| self.rest(replica, brief(error)))?;
        if answer.status().is_success() {
            let answer: CompletionResponse = answer.json().await.map_err(|e| self.rest(replica, brief(e)))?;
            return checked(answer, version, ask.max_tokens).map_err(|why| self.rest(replica, why));
        }
        let status = answer.status();
        match answer.json::<ErrorBody>().await {
            Ok(error) => Err(self.refusal(replica, error)),
            Err(_) => Err(self.rest(replica, format!("status {status}"))),
        }
    }

    fn refusal(&self, replica: SocketAddr, error: ErrorBody) -> Refused {
        if error.code == ErrorCode::WrongWeights {
            self.with(replica, |r| r.serving.clone_from(&error.serving));
        }
        match (error.fault, error.code) {
            (Whose::Workload, _) => Refused::Terminal(Fault::new(
                "ModelDiverged",
                format!(
                    "engine {replica} says: {}; lower the learning rate or start from an earlier checkpoint",
                    error.message
                ),
            )),
            (Whose::Client, _) => Refused::Terminal(Fault::new(
                "EngineRefuses",
                format!(
                    "engine {replica} refuses what this run samples with: {}; compare the agent's contextTokens with the engine's length",
                    error.message
                ),
            )),
            (Whose::Infrastructure, ErrorCode::WrongWeights | ErrorCode::QueueFull) => Refused::Again(error.message),
            (Whose::Infrastructure, _) => self.rest(replica, error.message),
        }
    }

    fn rest(&self, replica: SocketAddr, why: String) -> Refused {
        self.with(replica, |r| r.rest_until = Some(Instant::now() + COOL_DOWN));
        Refused::Again(why)
    }

    async fn look_up(&self) -> std::io::Result<Vec<SocketAddr>> {
        match &self.endpoints {
            Endpoints::Fixed(all) => Ok(all.clone()),
            Endpoints::Name { host, port } => {
                let found = tokio::net::lookup_host((host.as_str(), *port)).await?;
                Ok(found.collect())
            }
        }
    }

    fn remember(&self, found: &[SocketAddr]) {
        let mut known = self.known();
        known.retain(|replica, state| found.contains(replica) || state.in_flight > 0);
        for replica in found {
            known.entry(*replica).or_default();
        }
    }

    /// Takes the least busy replica that is not known to serve something else, and counts the request as its own until the
    /// guard is dropped.
    fn least_busy(&self, version: &str) -> Option<InFlight> {
        let mut known = self.known();
        let now = Instant::now();
        let (replica, state) = known
            .iter_mut()
            .filter(|(_, r)| r.rest_until.is_none_or(|until| until <= now))
            .filter(|(_, r)| r.serving.as_deref().is_none_or(|serving| serving == version))
            .min_by_key(|(_, r)| r.in_flight)?;
        state.in_flight += 1;
        Some(InFlight {
            replica: *replica,
            engines: self.clone(),
        })
    }

    fn with(&self, replica: SocketAddr, change: impl FnOnce(&mut Replica)) {
        if let Some(state) = self.known().get_mut(&replica) {
            change(state);
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<SocketAddr, Replica>> {
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct InFlight {
    replica: SocketAddr,
    engines: Engines,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.engines
            .with(self.replica, |r| r.in_flight = r.in_flight.saturating_sub(1));
    }
}

/// An answer is used only if it is one: ids with a logprob each, by the version that was asked for.
fn checked(
    mut answer: CompletionResponse,
    version: &str,
    max_tokens: u32,
) -> Result<(Vec<u32>, Vec<f32>, FinishReason), String> {
    let Some(choice) = answer.choices.pop().filter(|_| answer.choices.is_empty()) else {
        return Err("not exactly one choice".into());
    };
    let logprobs = choice.logprobs.map(|l| l.token_logprobs).unwrap_or_default();
    if choice.finish_reason == FinishReason::Abort {
        return Err("the engine gave the request up".into());
    }
    if choice.weights_version != version {
        return Err(format!(
            "sampled by {} though {version} was asked for",
            choice.weights_version
        ));
    }
    if choice.token_ids.is_empty() || choice.token_ids.len() > max_tokens as usize {
        return Err(format!(
            "{} ids where 1 to {max_tokens} were asked for",
            choice.token_ids.len()
        ));
    }
    if logprobs.len() != choice.token_ids.len() {
        return Err(format!(
            "{} ids but {} logprobs",
            choice.token_ids.len(),
            logprobs.len()
        ));
    }
    if logprobs.iter().any(|l| !l.is_finite() || *l > 0.0) {
        return Err("a logprob that is none".into());
    }
    Ok((choice.token_ids, logprobs, choice.finish_reason))
}

/// An error without the address it is about, which the caller names anyway.
fn brief(error: reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use grpo_engine_protocol::{ChoiceLogprobs, CompletionChoice, Usage};

    fn answer(ids: usize, logprobs: Option<usize>, version: &str) -> CompletionResponse {
        CompletionResponse {
            id: "x".into(),
            object: "text_completion".into(),
            created: 0,
            model: "m".into(),
            weights_version: version.into(),
            choices: vec![CompletionChoice {
                index: 0,
                text: String::new(),
                token_ids: vec![1; ids],
                finish_reason: FinishReason::Stop,
                stop_reason: None,
                logprobs: logprobs.map(|n| ChoiceLogprobs {
                    token_logprobs: vec![-0.1; n],
                }),
                weights_version: version.into(),
            }],
            usage: Usage::default(),
        }
    }

    /// Defect 24: an engine that does not say how likely a token was is asked again; nothing is made up.
    #[test]
    fn an_answer_with_missing_or_foreign_logprobs_is_no_answer() {
        assert!(checked(answer(3, Some(3), "a-v1"), "a-v1", 8).is_ok());
        assert!(checked(answer(3, Some(2), "a-v1"), "a-v1", 8).is_err());
        assert!(checked(answer(3, None, "a-v1"), "a-v1", 8).is_err());
        assert!(checked(answer(0, Some(0), "a-v1"), "a-v1", 8).is_err());
        assert!(checked(answer(9, Some(9), "a-v1"), "a-v1", 8).is_err());
        let mut nan = answer(1, Some(1), "a-v1");
        nan.choices[0].logprobs = Some(ChoiceLogprobs {
            token_logprobs: vec![f32::NAN],
        });
        assert!(checked(nan, "a-v1", 8).is_err());
    }

    #[test]
    fn an_answer_of_other_weights_is_no_answer() {
        assert!(checked(answer(3, Some(3), "a-v1"), "a-v2", 8).is_err());
    }
}
