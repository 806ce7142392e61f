//! Changes of the engine's weights, one at a time: a new version is loaded, or the engine sleeps and wakes up.
//!
//! A sleeping engine has given back the memory of its model, so that a trainer on the same machine can use it. It
//! knows the folder and the checksum of its version, and reads the same tensors again when it wakes up. A new version
//! wakes it up too, also if the earlier version's folder is gone.

use crate::inbox::{Inbox, Install};
use crate::metrics::Metrics;
use crate::model::{Bounds, LoadError, Model};
use grpo_engine_protocol::{ErrorBody, ErrorCode, LoadRequest, LoadResponse};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Mutex, oneshot};

/// A version that the engine loaded, and its folder.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub dir: PathBuf,
    pub version: String,
    pub sha256: String,
}

/// Loads versions into the engine loop.
pub struct Loader {
    inbox: Arc<Inbox>,
    metrics: Arc<Metrics>,
    /// Those of the first model; see [`Model::must_fit`].
    bounds: Bounds,
    /// Locked during a change, so that changes take effect in the order of their requests.
    current: Mutex<Current>,
}

/// The version of the engine, and whether its memory is given back.
struct Current {
    loaded: Loaded,
    asleep: bool,
}

impl Loader {
    /// For an engine whose loop has `loaded`.
    pub fn new(inbox: Arc<Inbox>, metrics: Arc<Metrics>, bounds: Bounds, loaded: Loaded) -> Self {
        Self {
            inbox,
            metrics,
            bounds,
            current: Mutex::new(Current { loaded, asleep: false }),
        }
    }

    /// Reads, checks and serves a version. After an error the engine is as it was, asleep or with its earlier version.
    pub async fn load(&self, request: LoadRequest) -> Result<LoadResponse, ErrorBody> {
        let mut current = self.current.lock().await;
        let dir = PathBuf::from(request.dir);
        let loaded = self
            .install(dir, request.version, request.sha256)
            .await
            .map_err(load_failed)?;
        let answer = LoadResponse {
            version: loaded.version.clone(),
            sha256: loaded.sha256.clone(),
        };
        self.metrics.loads.inc();
        tracing::info!(version = loaded.version, sha256 = loaded.sha256, "new weights serve");
        *current = Current { loaded, asleep: false };
        Ok(answer)
    }

    /// Refuses new requests, and gives the memory back when those in progress have ended.
    pub async fn sleep(&self) -> Result<(), ErrorBody> {
        let mut current = self.current.lock().await;
        if current.asleep {
            return Ok(());
        }
        let (done, asleep) = oneshot::channel();
        self.inbox.sleep(done);
        asleep.await.map_err(|_| load_failed(shutting_down()))?;
        current.asleep = true;
        tracing::info!(
            version = current.loaded.version,
            "asleep: the model's memory is given back"
        );
        Ok(())
    }

    /// Reads the version of before again and serves it.
    pub async fn wake(&self) -> Result<(), ErrorBody> {
        let mut current = self.current.lock().await;
        if !current.asleep {
            return Ok(());
        }
        let Loaded { dir, version, sha256 } = current.loaded.clone();
        self.install(dir, version.clone(), Some(sha256)).await.map_err(|why| {
            load_failed(format!(
                "the engine cannot wake up with {version}: {why}. It stays asleep; load a version with POST \
                 /admin/load, which wakes it up"
            ))
        })?;
        current.asleep = false;
        tracing::info!(version, "awake: it serves again");
        Ok(())
    }

    /// Reads and checks a model beside the running loop, and hands it over.
    async fn install(&self, dir: PathBuf, version: String, sha256: Option<String>) -> Result<Loaded, String> {
        let bounds = self.bounds;
        let (model, dir) = tokio::task::spawn_blocking(move || {
            let model = Model::load(&dir, &version, Some(bounds.max_context))?;
            model.must_fit(bounds)?;
            model.must_have(sha256.as_deref())?;
            Ok::<_, LoadError>((model, dir))
        })
        .await
        .map_err(|error| format!("loading broke off: {error}"))?
        .map_err(|error| error.to_string())?;
        let loaded = Loaded {
            dir,
            version: model.version.clone(),
            sha256: model.sha256.clone(),
        };
        let (done, installed) = oneshot::channel();
        self.inbox.install(Install {
            model: Arc::new(model),
            done,
        });
        installed.await.map_err(|_| shutting_down())?;
        Ok(loaded)
    }
}

fn load_failed(message: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::LoadFailed, message)
}

fn shutting_down() -> String {
    "the engine is shutting down".to_owned()
}
