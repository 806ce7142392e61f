//! The embedded inference engine: continuous batching on CPU, for clusters without GPUs, continuous integration and
//! laptops.
//!
//! It implements vLLM's completion API, so the driver sees no difference. Unlike vLLM, it guarantees that an answer is
//! a function of the request, its seed and the weights, bit for bit. Concurrent requests do not change it.
//!
//! Requests: [`http`] → [`request`] (checked) → [`inbox`] of [`job`]s (bounded) → [`scheduler`] (the loop, within its
//! [`memory`]; [`prefix`] reuse, [`sampling`]) → answer. [`chat`] turns a conversation in text into such a request. New
//! weights: `/admin/load` → [`loader`] → [`model`] (read and checked beside the running loop) → inbox → loop. The
//! loader also has the loop sleep while a trainer uses the memory: `/admin/sleep`, `/admin/wake`.

pub mod chat;
pub mod http;
pub mod inbox;
pub mod job;
pub mod loader;
mod memory;
pub mod metrics;
pub mod model;
pub mod prefix;
pub mod request;
pub mod sampling;
pub mod scheduler;

use chat::Chat;
use grpo_engine_protocol::BASE_VERSION;
use http::HttpState;
use inbox::Inbox;
use loader::{Loaded, Loader};
use metrics::Metrics;
use model::{Bounds, LoadError, Model};
use scheduler::{Report, Scheduler, SchedulerLimits};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Options of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of config.json and model.safetensors, served as version `base`. Its tokenizer and chat template, if it
    /// has them, serve conversations in text.
    pub model_dir: PathBuf,
    pub model_name: String,
    /// Rows in one pass.
    pub max_rows: usize,
    /// Longest prompt and continuation; the model's own limit unless given.
    pub max_context: Option<usize>,
    /// Requests that may wait.
    pub max_waiting: usize,
    pub threads: usize,
    /// Memory for keys and values of shared prefixes.
    pub prefix_cache_bytes: usize,
    /// Memory for keys and values of running rows; unless given, by the memory of the container ([`memory`]).
    pub kv_bytes: Option<usize>,
}

/// Why an engine could not start or stopped.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("cannot serve the model image: {0}")]
    Model(#[from] LoadError),
    #[error("loading the model broke off: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
    #[error("cannot start the engine loop: {0}")]
    Thread(std::io::Error),
    #[error("serving HTTP failed: {0}")]
    Http(std::io::Error),
    #[error("the engine loop ended by itself; its panic message is above. The container should be restarted")]
    LoopEnded,
}

/// Loads the model, then serves `listener` until `shutdown`. Nothing is answered before the model is ready.
pub async fn serve(
    listener: TcpListener,
    options: Options,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), EngineError> {
    let (dir, max_context) = (options.model_dir.clone(), options.max_context);
    let model = tokio::task::spawn_blocking(move || Model::load(&dir, BASE_VERSION, max_context)).await??;
    let bounds = Bounds {
        vocabulary: model.decoder.vocabulary(),
        max_context: model.max_context,
    };
    tracing::info!(
        sha256 = model.sha256,
        max_context = bounds.max_context,
        "model image loaded"
    );

    let dir = options.model_dir.clone();
    let chat = tokio::task::spawn_blocking(move || Chat::load(&dir)).await?;

    let loaded = Loaded {
        dir: options.model_dir,
        version: model.version.clone(),
        sha256: model.sha256.clone(),
    };
    let inbox = Arc::new(Inbox::new(options.max_waiting));
    let report = Arc::new(Mutex::new(Report::default()));
    let metrics = Arc::new(Metrics::default());
    let limits = SchedulerLimits {
        max_rows: options.max_rows,
        threads: options.threads,
        prefix_bytes: options.prefix_cache_bytes,
        kv_bytes: options
            .kv_bytes
            .unwrap_or_else(|| memory::kv_bytes_here(options.prefix_cache_bytes)),
    };
    tracing::info!(
        mib = limits.kv_bytes >> 20,
        "memory for keys and values of running rows"
    );
    let scheduler = Scheduler::new(inbox.clone(), report.clone(), metrics.clone(), Arc::new(model), limits);
    // Dropped when the loop ends, also by a panic.
    let (alive, ended) = oneshot::channel::<()>();
    let engine_loop = std::thread::Builder::new()
        .name("engine-loop".to_owned())
        .spawn(move || {
            let _alive = alive;
            scheduler.run();
        })
        .map_err(EngineError::Thread)?;

    let state = HttpState {
        loader: Loader::new(inbox.clone(), metrics.clone(), bounds, loaded),
        inbox: inbox.clone(),
        report,
        metrics,
        model_name: options.model_name,
        max_rows: options.max_rows,
        bounds,
        chat: Arc::new(chat),
        started: http::now(),
        answers: AtomicU64::new(0),
    };
    let server = axum::serve(listener, http::router(Arc::new(state))).with_graceful_shutdown(shutdown);
    let outcome = tokio::select! {
        served = server => served.map_err(EngineError::Http),
        _ = ended => Err(EngineError::LoopEnded),
    };
    inbox.close();
    // Ends with its current pass; a panic has been reported by `LoopEnded` already.
    let _ = tokio::task::spawn_blocking(move || engine_loop.join()).await;
    outcome
}
