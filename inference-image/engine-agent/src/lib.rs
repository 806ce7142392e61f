//! The engine agent: the only way to reach an engine pod.
//!
//! Weights: an order from the driver ([`http`]) → [`worker`] → [`pull`] into the [`cache`] → the [`engine`]'s admin API
//! → verified → status. Large files come in chunks, which agents pass on to each other ([`relay`], [`chunks`]).
//! Sampling: a request → checked for its weights version ([`http`]) → the engine on loopback → checked again
//! → answer. The agent makes no decisions: the driver decides on versions, replicas and the handling of failures.
//! Sleep: an order → [`worker`] → the [`gate`] closes and the requests at the engine end → the engine gives the memory
//! of its devices back → status.
//!
//! Before an engine or a trainer starts, the same program downloads its model from the hub or a bucket
//! ([`fetch_model`]).

pub mod cache;
pub mod chunks;
mod delta;
pub mod engine;
pub mod fetch_model;
pub mod gate;
pub mod http;
pub mod metrics;
pub mod pull;
pub mod relay;
pub mod source;
pub mod worker;

use cache::Cache;
use chunks::Shelf;
use engine::client::{ClientError, client_of};
use engine::embedded::Embedded;
use engine::openai::{OpenAi, Probe};
use engine::remote::Remote;
use engine::sglang::Sglang;
use engine::vllm::Vllm;
use engine::wire::Server;
use engine::{Engine, EngineBackend};
use gate::Gate;
use grpo_auth::{Guard, TokenFile};
use grpo_contracts::access::Service;
use grpo_contracts::driver_epoch::Fence;
use grpo_engine_protocol::{AgentState, AgentStatus};
use http::access::Grants;
use http::{HttpState, Limits};
use metrics::Metrics;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, InvalidHeaderValue};
use source::PullClient;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use worker::{Orders, Pace, Worker};

/// Options of an agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// The engine's address: on loopback, unless it is an external engine.
    pub engine: Url,
    pub kind: Kind,
    /// Sent to the engine as `Authorization: Bearer`.
    pub api_key: Option<String>,
    /// Folder of pulled versions. The engine must see it under the same path.
    pub cache_dir: PathBuf,
    /// Most concurrent requests at the engine; more are refused with 429.
    pub max_inflight: u32,
    pub limits: Limits,
    /// Deadline of one completion, from first byte to last.
    pub request_deadline: Duration,
    /// Unique among all processes that served at this address.
    pub instance: String,
    pub pace: Pace,
    /// The folder with this pod's tokens.
    pub tokens: PathBuf,
    /// Whether the engine is another agent of this cluster, to which this pod's own token is sent.
    pub own_token: bool,
    /// What each account may call, of those that the guard lets in.
    pub grants: Grants,
    /// Most concurrent requests of clients outside of runs; more are refused with 429.
    pub client_inflight: u32,
    /// Key that the kubelet sends with its drain request, since it has no token; `None`: drain requests are refused.
    pub drain_key: Option<String>,
}

/// Kind of an engine, with its own options.
#[derive(Clone, Debug)]
pub enum Kind {
    Embedded,
    /// `no_folders`: why versions cannot be loaded from this pod's disk, if so; `cpu`: whether it is the CPU build.
    Vllm {
        no_folders: Option<String>,
        cpu: bool,
    },
    Sglang {
        no_folders: Option<String>,
    },
    /// `text_only`: the server returns no token ids.
    OpenAi {
        model: Option<String>,
        text_only: bool,
        probe: Probe,
    },
    Agent,
}

/// Why an agent could not start or stopped.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot use {path} for weights: {cause}; mount a writable volume there, in the engine's container too")]
    CacheDir { path: String, cause: std::io::Error },
    #[error("cannot make an HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    #[error("cannot call the engine: {0}")]
    EngineClient(#[from] ClientError),
    #[error("the API key cannot be sent as a header: {0}; look at the Secret for a line break at its end")]
    ApiKey(#[from] InvalidHeaderValue),
    #[error("the weights worker ended by itself; the container should be restarted")]
    WorkerEnded,
}

/// A name for this process: the pod's name and the start time.
pub fn new_instance(pod: &str) -> String {
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{pod}-{:x}", began.as_micros())
}

/// Serves the engine's API until `shutdown`; `guard` authenticates callers.
pub async fn serve(
    listener: TcpListener,
    options: Options,
    guard: Guard,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), AgentError> {
    std::fs::create_dir_all(&options.cache_dir).map_err(|cause| AgentError::CacheDir {
        path: options.cache_dir.display().to_string(),
        cause,
    })?;
    let engine = backend(&options)?;
    let (orders, ordered) = watch::channel(Orders::default());
    let (status, seen) = watch::channel(AgentStatus {
        instance: options.instance,
        serving: None,
        wanted: None,
        state: AgentState::Booting,
        message: Some("the engine has not answered yet".to_owned()),
        loaded_sha256: None,
        pulled: None,
        changed: None,
        relays: engine.reads_folders(),
    });
    let gate = Arc::new(Gate::new(options.max_inflight));
    let cache = Cache::new(options.cache_dir);
    let shelf = Shelf::new(cache.clone());
    let metrics = Metrics::default();
    let worker = Worker {
        engine: engine.clone(),
        cache,
        client: PullClient::new(
            TokenFile::in_folder(&options.tokens, Service::Driver),
            TokenFile::in_folder(&options.tokens, Service::EngineAgent),
            shelf.clone(),
            metrics.pulled.clone(),
        )?,
        orders: ordered,
        status,
        gate: gate.clone(),
        pace: options.pace,
    };
    let state = HttpState {
        engine,
        orders,
        fence: Fence::default(),
        status: seen,
        gate,
        drain_key: options.drain_key,
        shelf,
        grants: options.grants,
        client_places: Semaphore::new(options.client_inflight as usize),
        limits: options.limits,
        metrics,
    };
    let work = tokio::spawn(worker.run());
    let stop = work.abort_handle();
    let router = http::guarded(Arc::new(state), guard);
    let outcome = tokio::select! {
        () = grpo_auth::serve(listener, router, shutdown) => Ok(()),
        _ = work => Err(AgentError::WorkerEnded),
    };
    stop.abort();
    outcome
}

/// The engine with its own client, the only one that carries the key.
fn backend(options: &Options) -> Result<EngineBackend, AgentError> {
    let mut headers = HeaderMap::new();
    if let Some(key) = &options.api_key {
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", key.trim()))?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
    }
    let server = Server {
        client: client_of(&options.engine, headers)?,
        token: options
            .own_token
            .then(|| TokenFile::in_folder(&options.tokens, Service::EngineAgent)),
        url: options.engine.clone(),
        completion_deadline: options.request_deadline,
        answer_bytes: options.limits.answer_bytes,
        dialect: Arc::default(),
    };
    Ok(match options.kind.clone() {
        Kind::Embedded => EngineBackend::Embedded(Embedded(server)),
        Kind::Vllm { no_folders, cpu } => EngineBackend::Vllm(Vllm::new(server, no_folders, cpu)),
        Kind::Sglang { no_folders } => EngineBackend::Sglang(Sglang::new(server, no_folders)),
        Kind::OpenAi {
            model,
            text_only,
            probe,
        } => EngineBackend::OpenAi(OpenAi::new(server, model, text_only, probe)),
        Kind::Agent => EngineBackend::Remote(Remote(server)),
    })
}
