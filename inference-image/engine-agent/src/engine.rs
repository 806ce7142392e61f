//! The interface between the agent and an engine of any kind.
//!
//! The rest of the agent (orders, pulling, status, HTTP) is the same for every engine. The differences are here, one
//! module per kind: how to ask for the served version, how to load a version, and how to send a request for tokens. A
//! conversation in text ([`chat`]) is sent to all kinds alike. A server that speaks only text answers the driver in
//! messages.
//!
//! | kind | versions | proof that a version serves |
//! |---|---|---|
//! | [`embedded`] | folders | the checksum of the tensors in its memory |
//! | [`vllm`] | adapters by name and path; folders, on GPUs | the name is listed; label, changed checksums; canary |
//! | [`sglang`] | adapters by name and path; folders | the name is listed; the label it was loaded with; the canary |
//! | [`openai`] | none: frozen | a probe |
//! | [`remote`] | orders, passed on | the other agent's status |
//!
//! Embedded, vLLM (on GPUs) and SGLang can sleep: they give the memory of their devices back while a trainer uses it.

pub mod adapters;
pub mod canary;
pub mod chat;
pub mod client;
pub mod completion;
pub mod dialect;
pub mod embedded;
pub mod experts;
pub mod openai;
pub mod refusal;
pub mod remote;
pub mod sglang;
pub mod vllm;
pub mod wire;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use axum::body::Bytes;
use grpo_engine_protocol::{ChatRequest, ErrorBody, ErrorCode, TextRequest, WeightsOrder};
use grpo_records::weights::Canary;

use wire::Answered;

/// The name under which the operator has vLLM and SGLang serve the model they booted with.
pub const SERVED_NAME: &str = "policy";

/// The served weights, as reported by an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    pub version: String,
    /// Checksum of the served tensors, if known.
    pub sha256: Option<String>,
}

/// How far an engine has given the memory of its devices back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepState {
    Awake,
    /// Some of the memory is taken up again, and the rest is not yet.
    Waking,
    Asleep,
}

/// A version to load.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    pub order: &'a WeightsOrder,
    /// The folder with its files; ignored by engines that do not read folders.
    pub dir: &'a Path,
    /// Checksum of its tensors, from its manifest.
    pub sha256: &'a str,
    /// Whether the files are an adapter to the model with which the engine booted.
    pub adapter: bool,
    /// The trainer's logprobs under these weights, if their manifest has them.
    pub canary: Option<&'a Canary>,
}

impl Weights<'_> {
    /// Compares the logprobs of the version's canary that the engine at `url` gave with the trainer's (`expected`).
    /// Without them nothing is proved, and the version serves.
    fn check(&self, expected: &[f32], url: &str, logprobs: Result<Vec<f32>, EngineFault>) -> Result<(), EngineFault> {
        let version = &self.order.version;
        let found = match logprobs {
            Ok(found) => found,
            Err(fault) => {
                tracing::warn!(version, "the canary is not compared: {fault}");
                return Ok(());
            }
        };
        match canary::compare(expected, &found) {
            Ok(distance) => {
                tracing::info!(version, distance, "the engine's logprobs are near the trainer's");
                Ok(())
            }
            Err(why) => Err(EngineFault::OtherWeights {
                url: url.to_owned(),
                version: version.clone(),
                why,
            }),
        }
    }
}

/// Why a request to an engine failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineFault {
    #[error("the engine at {url} does not answer: {cause}; if this lasts, look at the engine container's log")]
    Unreachable { url: String, cause: String },
    #[error("the engine at {url} refused: {message}")]
    Refused { url: String, message: String },
    #[error("the engine at {url} answered what this agent does not understand: {cause}; are both of the same release?")]
    Misunderstood { url: String, cause: String },
    #[error(
        "the engine at {url} said that it loaded {version} and computes with other weights: {why}. Restart its container; if that \
         does not help, compare its model and its quantization with the trainer's"
    )]
    OtherWeights { url: String, version: String, why: String },
    #[error("this engine cannot be given {version}: {why}")]
    Unable { version: String, why: String },
    #[error("{url} is not fit for training: {why}")]
    Unfit { url: String, why: String },
    #[error("this engine cannot sleep: {why}")]
    CannotSleep { why: &'static str },
}

impl EngineFault {
    /// The fault as an answer to a sampling request.
    pub fn refusal(self) -> ErrorBody {
        let code = match &self {
            Self::Misunderstood { .. } => ErrorCode::EngineMisbehaved,
            _ => ErrorCode::EngineUnavailable,
        };
        ErrorBody::new(
            code,
            format!("{self}; use another replica until this one is ready again"),
        )
    }
}

/// An engine, as the agent sees it.
pub trait Engine: Clone + Send + Sync + 'static {
    /// Whether versions are pulled to local disk before they are loaded.
    fn reads_folders(&self) -> bool {
        true
    }

    /// Versions whose files it may read again although another version serves, because rows are still sampled from
    /// them.
    fn in_use(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    /// The version that it serves now.
    fn serving(&self) -> impl Future<Output = Result<Serving, EngineFault>> + Send;

    /// Loads these weights, and returns the engine's report afterwards. A sleeping engine wakes up by it. If an engine
    /// can check before it switches, wrong weights leave the earlier version serving.
    fn load(
        &self,
        weights: Weights<'_>,
        deadline: Duration,
    ) -> impl Future<Output = Result<Serving, EngineFault>> + Send;

    /// Whether a load of these weights waits until the requests at the engine have ended.
    fn waits_to_load(&self, _weights: &Weights<'_>) -> bool {
        false
    }

    /// Why it cannot sleep, if so. Such an engine is never told to.
    fn cannot_sleep(&self) -> Option<&'static str> {
        None
    }

    /// Whether it is asleep.
    fn sleep_state(&self) -> impl Future<Output = Result<SleepState, EngineFault>> + Send {
        async { Ok(SleepState::Awake) }
    }

    /// Gives the memory of its devices back. No request is at the engine.
    fn sleep(&self, _deadline: Duration) -> impl Future<Output = Result<(), EngineFault>> + Send {
        let why = self.cannot_sleep().unwrap_or_default();
        async move { Err(EngineFault::CannotSleep { why }) }
    }

    /// Takes memory up again, for the version with which it went to sleep. An engine that is awake stays so.
    fn wake(&self, _deadline: Duration) -> impl Future<Output = Result<(), EngineFault>> + Send {
        async { Ok(()) }
    }

    /// Samples from `version`. The answer and each of its rows name the version from which they were sampled.
    fn complete(&self, body: Bytes, version: Option<&str>) -> impl Future<Output = Result<Answered, ErrorBody>> + Send;

    /// Answers a conversation with the served weights.
    fn chat(&self, request: ChatRequest) -> impl Future<Output = Result<Answered, ErrorBody>> + Send;

    /// Answers the driver in messages, if the engine speaks only text.
    fn text(&self, _request: TextRequest) -> impl Future<Output = Result<Answered, ErrorBody>> + Send {
        let message = "this engine takes and returns token ids: ask /v1/completions";
        async move { Err(ErrorBody::new(ErrorCode::InvalidRequest, message)) }
    }

    /// One of the engine's own pages, unchanged.
    fn page(&self, page: Page) -> impl Future<Output = Result<Answered, EngineFault>> + Send;
}

/// Pages that every engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    Models,
    Health,
    Metrics,
}

impl Page {
    pub fn path(self) -> &'static str {
        match self {
            Self::Models => "/v1/models",
            Self::Health => "/health",
            Self::Metrics => "/metrics",
        }
    }
}

/// The engine behind an agent.
#[derive(Clone, Debug)]
pub enum EngineBackend {
    Embedded(embedded::Embedded),
    Vllm(vllm::Vllm),
    Sglang(sglang::Sglang),
    OpenAi(openai::OpenAi),
    Remote(remote::Remote),
}

/// Calls the same method on an engine of any kind.
macro_rules! on_each {
    ($backend:expr, $engine:ident => $call:expr) => {
        match $backend {
            EngineBackend::Embedded($engine) => $call,
            EngineBackend::Vllm($engine) => $call,
            EngineBackend::Sglang($engine) => $call,
            EngineBackend::OpenAi($engine) => $call,
            EngineBackend::Remote($engine) => $call,
        }
    };
}

impl Engine for EngineBackend {
    fn reads_folders(&self) -> bool {
        on_each!(self, engine => engine.reads_folders())
    }

    fn in_use(&self) -> BTreeSet<String> {
        on_each!(self, engine => engine.in_use())
    }

    async fn serving(&self) -> Result<Serving, EngineFault> {
        on_each!(self, engine => engine.serving().await)
    }

    async fn load(&self, weights: Weights<'_>, deadline: Duration) -> Result<Serving, EngineFault> {
        on_each!(self, engine => engine.load(weights, deadline).await)
    }

    fn waits_to_load(&self, weights: &Weights<'_>) -> bool {
        on_each!(self, engine => engine.waits_to_load(weights))
    }

    fn cannot_sleep(&self) -> Option<&'static str> {
        on_each!(self, engine => engine.cannot_sleep())
    }

    async fn sleep_state(&self) -> Result<SleepState, EngineFault> {
        on_each!(self, engine => engine.sleep_state().await)
    }

    async fn sleep(&self, deadline: Duration) -> Result<(), EngineFault> {
        on_each!(self, engine => engine.sleep(deadline).await)
    }

    async fn wake(&self, deadline: Duration) -> Result<(), EngineFault> {
        on_each!(self, engine => engine.wake(deadline).await)
    }

    async fn complete(&self, body: Bytes, version: Option<&str>) -> Result<Answered, ErrorBody> {
        on_each!(self, engine => engine.complete(body, version).await)
    }

    async fn chat(&self, request: ChatRequest) -> Result<Answered, ErrorBody> {
        on_each!(self, engine => engine.chat(request).await)
    }

    async fn text(&self, request: TextRequest) -> Result<Answered, ErrorBody> {
        on_each!(self, engine => engine.text(request).await)
    }

    async fn page(&self, page: Page) -> Result<Answered, EngineFault> {
        on_each!(self, engine => engine.page(page).await)
    }
}
