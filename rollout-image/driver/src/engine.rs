//! Sampling: sends each request to the replica that [`crate::replicas`] chooses.
//!
//! A request carries the version it wants; a replica that serves another says so and is passed over until it has caught
//! up. Retries end at a deadline, and what they took is reported as waiting, so that nobody's episode pays for it.

mod answer;

use crate::experts::Mixture;
use crate::fault::TerminalFault;
use crate::replicas::{Endpoints, Replicas};
pub use answer::{Experts, Sample};
use answer::{Wrong, checked};
use grpo_engine_protocol::{
    AgentStatus, CompletionRequest, CompletionResponse, ErrorBody, ErrorCode, ErrorOrigin, Prompt, WEIGHTS_HEADER,
    WeightsOrder,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

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
    /// The mixture whose experts are wanted, and from which position on.
    pub experts: Option<(Arc<Mixture>, usize)>,
}

/// What was sampled, and by which weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub answer: Sample,
    pub weights: String,
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
    Terminal(TerminalFault),
}

/// The client of the replicas. Cloning is cheap.
#[derive(Clone)]
pub struct Engines {
    replicas: Replicas,
    model: String,
    http: reqwest::Client,
    patience: Duration,
}

enum Refused {
    Again(String),
    Terminal(TerminalFault),
}

impl Engines {
    pub fn new(endpoints: Endpoints, model: impl Into<String>, patience: Duration) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .pool_idle_timeout(Duration::from_secs(30))
            .no_proxy()
            .build()?;
        Ok(Self {
            replicas: Replicas::new(endpoints),
            model: model.into(),
            http,
            patience,
        })
    }

    /// Every replica there is now.
    pub async fn replicas(&self) -> Vec<SocketAddr> {
        self.replicas.all().await
    }

    /// Asks a replica's agent what it serves.
    pub async fn status(&self, replica: SocketAddr) -> Result<AgentStatus, String> {
        let request = self.http.get(format!("http://{replica}/agent/v1/status"));
        let answer = request.timeout(Duration::from_secs(3)).send().await.map_err(brief)?;
        let status: AgentStatus = answer.error_for_status().map_err(brief)?.json().await.map_err(brief)?;
        self.replicas.serves(replica, &status.serving);
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
            self.replicas.all().await;
            if let Some(guard) = self.replicas.least_busy(&version) {
                let asked = Instant::now();
                match self.ask(guard.replica, ask, &version).await {
                    Ok(answer) => {
                        return Ok(Sampled {
                            answer,
                            weights: version,
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
                last = format!("no replica serves {version} ({} known)", self.replicas.count());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(EngineError::Unavailable {
            host: self.replicas.host(),
            within: self.patience,
            last,
        })
    }

    async fn ask(&self, replica: SocketAddr, ask: &Ask, version: &str) -> Result<Sample, Refused> {
        let body = CompletionRequest {
            temperature: ask.temperature,
            top_p: ask.top_p,
            top_k: ask.top_k,
            stop_token_ids: ask.stop_token_ids.clone(),
            prompt: Prompt::Tokens(ask.prompt.clone()),
            routed_experts_from: ask.experts.as_ref().map(|(_, from)| *from),
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
            return checked(answer, version, ask).map_err(|wrong| match wrong {
                Wrong::Answer(why) => self.rest(replica, why),
                Wrong::Engine(why) => Refused::Terminal(TerminalFault::new(
                    "ExpertsUnusable",
                    format!("which experts tokens went through cannot be learnt from engine {replica}: {why}"),
                )),
            });
        }
        let status = answer.status();
        match answer.json::<ErrorBody>().await {
            Ok(error) => Err(self.refusal(replica, error)),
            Err(_) => Err(self.rest(replica, format!("status {status}"))),
        }
    }

    fn refusal(&self, replica: SocketAddr, error: ErrorBody) -> Refused {
        if error.code == ErrorCode::WrongWeights {
            self.replicas.serves(replica, &error.serving);
        }
        match (error.fault, error.code) {
            (ErrorOrigin::Workload, _) => Refused::Terminal(TerminalFault::new(
                "ModelDiverged",
                format!(
                    "engine {replica} says: {}; lower the learning rate or start from an earlier checkpoint",
                    error.message
                ),
            )),
            (_, ErrorCode::ExpertsNotReported) => Refused::Terminal(TerminalFault::new(
                "ExpertsNotReported",
                format!(
                    "the model is a mixture of experts, and engine {replica} does not report them: {}; set spec.algorithm.routerReplay: true, so that \
                     the pool of the run does (a pool that is referred to: its spec.routedExperts: true), or false, so that the trainer's own router \
                     chooses",
                    error.message
                ),
            )),
            (ErrorOrigin::Client, _) => Refused::Terminal(TerminalFault::new(
                "EngineRefuses",
                format!(
                    "engine {replica} refuses what this run samples with: {}; compare the agent's contextTokens with the engine's length",
                    error.message
                ),
            )),
            (ErrorOrigin::Infrastructure, ErrorCode::WrongWeights | ErrorCode::QueueFull) => {
                Refused::Again(error.message)
            }
            (ErrorOrigin::Infrastructure, _) => self.rest(replica, error.message),
        }
    }

    fn rest(&self, replica: SocketAddr, why: String) -> Refused {
        self.replicas.rest(replica);
        Refused::Again(why)
    }
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
