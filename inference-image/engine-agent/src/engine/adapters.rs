//! LoRA adapters of vLLM and SGLang, which load and unload them in the same way.
//!
//! An adapter's name and its folder are both its version, so neither is used for other files: an engine that gets
//! other files under a known name continues with its cache of the old ones. The previous adapter stays loaded, because
//! running requests are sampled from it. Older ones are unloaded before the next is loaded, since an engine has room
//! for few.
//! Unloading removes only the name: running rows of that adapter continue, and because the adapter has no room any
//! more, the engine reads its files again and again. vLLM crashes if the files are gone, so they stay on disk until the
//! last of these requests has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpo_engine_protocol::{BASE_VERSION, WeightsOrder};
use grpo_records::weights::Canary;
use serde::Deserialize;
use serde_json::json;

use super::wire::Server;
use super::{EngineFault, Page, Serving, Weights};

/// Deadline of an unload, which only removes a name.
const UNLOAD_DEADLINE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Adapters {
    server: Server,
    /// Prefix of the engine's routes for adapters.
    prefix: &'static str,
    current: Arc<Mutex<Option<Serving>>>,
    /// Names that this agent has loaded.
    own: Arc<Mutex<BTreeSet<String>>>,
    /// Requests in flight, by adapter.
    running: Arc<Mutex<BTreeMap<String, u32>>>,
}

/// An adapter to load, for a task that runs to its end.
#[derive(Debug)]
pub struct NewAdapter {
    order: WeightsOrder,
    dir: PathBuf,
    sha256: String,
    canary: Option<Canary>,
}

impl NewAdapter {
    pub fn of(weights: &Weights<'_>) -> Self {
        Self {
            order: weights.order.clone(),
            dir: weights.dir.to_owned(),
            sha256: weights.sha256.to_owned(),
            canary: weights.canary.cloned(),
        }
    }

    pub fn weights(&self) -> Weights<'_> {
        Weights {
            order: &self.order,
            dir: &self.dir,
            sha256: &self.sha256,
            adapter: true,
            canary: self.canary.as_ref(),
        }
    }
}

/// A running request to an adapter; ends when dropped.
#[derive(Debug)]
pub struct Sampling {
    adapters: Adapters,
    pub version: String,
}

impl Drop for Sampling {
    fn drop(&mut self) {
        let mut running = self.adapters.running();
        if let Some(requests) = running.get_mut(&self.version) {
            *requests -= 1;
        }
        running.retain(|_, requests| *requests > 0);
    }
}

#[derive(Deserialize)]
struct Models {
    data: Vec<ModelName>,
}

#[derive(Deserialize)]
struct ModelName {
    id: String,
    /// The base model of an adapter. The model itself has no parent, and its name does not identify it: SGLang renames
    /// it when its weights are replaced.
    #[serde(default)]
    parent: Option<String>,
}

impl Adapters {
    pub fn new(server: Server, prefix: &'static str) -> Self {
        Self {
            server,
            prefix,
            current: Arc::default(),
            own: Arc::default(),
            running: Arc::default(),
        }
    }

    /// The adapter that serves, if the engine still has it: a restarted engine has none.
    pub async fn serving(&self) -> Result<Option<Serving>, EngineFault> {
        let Some(current) = self.current() else {
            return Ok(None);
        };
        if self.loaded().await?.contains(&current.version) {
            return Ok(Some(current));
        }
        self.set(None);
        Ok(None)
    }

    /// The adapter that serves, as far as this agent knows. Requests name it.
    pub fn current(&self) -> Option<Serving> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The adapter that serves, if it is `version`, marked as in use.
    pub fn sampling(&self, version: &str) -> Option<Sampling> {
        // Counted before the check: an adapter that is removed between the two is not the one that serves.
        let sampling = self.counted(version);
        self.current()
            .is_some_and(|serving| serving.version == version)
            .then_some(sampling)
    }

    /// The adapter that serves, marked as in use. It may have been replaced when this returns; the previous adapter
    /// stays loaded, so that is harmless.
    pub fn sampling_now(&self) -> Option<Sampling> {
        self.current().map(|serving| self.counted(&serving.version))
    }

    /// Marks an adapter as in use.
    pub fn counted(&self, version: &str) -> Sampling {
        *self.running().entry(version.to_owned()).or_default() += 1;
        Sampling {
            adapters: self.clone(),
            version: version.to_owned(),
        }
    }

    pub fn in_use(&self) -> BTreeSet<String> {
        self.running().keys().cloned().collect()
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, serving: Option<Serving>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = serving;
    }

    /// Unloads adapters that an earlier agent has loaded. They may be another run's, whose versions have the same
    /// names, so neither they nor their prefixes in the engine's cache are this run's. The cache is dropped first: if
    /// that fails, a later attempt finds them again.
    pub async fn unload_those_of_others(
        &self,
        drop_cache: impl Future<Output = Result<(), EngineFault>>,
    ) -> Result<(), EngineFault> {
        let mut others = self.loaded().await?;
        others.retain(|name| !self.own().contains(name));
        if others.is_empty() {
            return Ok(());
        }
        drop_cache.await?;
        for name in others {
            self.unload(&name).await;
        }
        Ok(())
    }

    fn own(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the adapter beside the one that serves.
    pub async fn bring(&self, weights: &Weights<'_>, deadline: Duration) -> Result<(), EngineFault> {
        let version = weights.order.version.as_str();
        let serving = self.current().map(|serving| serving.version);
        let loaded = self.loaded().await?;
        for old in loaded
            .iter()
            .filter(|old| *old != version && Some(*old) != serving.as_ref())
        {
            self.unload(old).await;
        }
        if !loaded.iter().any(|known| known == version) {
            let adapter = json!({"lora_name": version, "lora_path": weights.dir});
            let path = format!("{}/load_lora_adapter", self.prefix);
            self.server.tell(&path, &adapter, deadline).await?;
            self.own().insert(version.to_owned());
            if !self.loaded().await?.iter().any(|known| known == version) {
                return Err(EngineFault::Misunderstood {
                    url: self.server.at(&path).to_string(),
                    cause: format!("it said that it loaded {version}, and does not list it"),
                });
            }
        }
        Ok(())
    }

    /// From now on requests name this adapter, which [`Self::bring`] has loaded.
    pub fn serve(&self, weights: &Weights<'_>) -> Serving {
        let serving = Serving {
            version: weights.order.version.clone(),
            sha256: Some(weights.sha256.to_owned()),
        };
        self.set(Some(serving.clone()));
        serving
    }

    /// Unloads an adapter that failed its check, so that the next try loads it again and does not find its name.
    pub async fn give_up(&self, version: &str) {
        if self.current().is_some_and(|serving| serving.version == version) {
            self.set(None);
        }
        self.unload(version).await;
    }

    async fn unload(&self, version: &str) {
        let forget = json!({"lora_name": version});
        let path = format!("{}/unload_lora_adapter", self.prefix);
        if let Err(fault) = self.server.tell(&path, &forget, UNLOAD_DEADLINE).await {
            tracing::warn!("cannot unload the adapter {version}: {fault}");
        }
    }

    /// Names of the engine's adapters.
    async fn loaded(&self) -> Result<Vec<String>, EngineFault> {
        let models: Models = self.server.ask(Page::Models.path()).await?;
        let adapters = models.data.into_iter().filter(|model| model.parent.is_some());
        Ok(adapters.map(|adapter| adapter.id).collect())
    }
}

/// The label of full weights before the agent has verified their load. No request asks for this name.
pub const UNVERIFIED: &str = "unverified";

/// The version of weights that the engine calls `label`.
pub fn version_of_label(label: &str) -> &str {
    // vLLM's and SGLang's label for the weights with which they booted.
    if label == "default" { BASE_VERSION } else { label }
}
