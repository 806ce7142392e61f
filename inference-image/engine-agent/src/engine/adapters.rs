//! LoRA adapters of vLLM and SGLang, which are loaded and unloaded alike.
//!
//! An adapter's name and its folder both are its version, so neither is ever used twice: an engine that is given other files under a known
//! name goes on with what it has cached of the old ones. The adapter before the one that serves stays loaded, because running requests are
//! sampled from it; older ones are unloaded before the next is loaded, since an engine has room for few.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grpo_engine_protocol::BASE_VERSION;
use serde::Deserialize;
use serde_json::json;

use super::wire::Server;
use super::{EngineFault, Page, Serving, Weights};

/// Unloading forgets a name; it is quick.
const UNLOAD_DEADLINE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Adapters {
    server: Server,
    /// What the engine's routes for adapters begin with.
    prefix: &'static str,
    current: Arc<Mutex<Option<Serving>>>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<ModelName>,
}

#[derive(Deserialize)]
struct ModelName {
    id: String,
}

impl Adapters {
    pub fn new(server: Server, prefix: &'static str) -> Self {
        Self {
            server,
            prefix,
            current: Arc::default(),
        }
    }

    /// The adapter that serves, if the engine still has it: one that restarted has none.
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

    pub fn set(&self, serving: Option<Serving>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = serving;
    }

    pub async fn load(&self, weights: Weights<'_>, deadline: Duration) -> Result<Serving, EngineFault> {
        let version = weights.order.version.as_str();
        let serving = self.current().map(|serving| serving.version);
        let loaded = self.loaded().await?;
        for old in loaded
            .iter()
            .filter(|old| *old != version && Some(*old) != serving.as_ref())
        {
            let forget = json!({"lora_name": old});
            let path = format!("{}/unload_lora_adapter", self.prefix);
            if let Err(fault) = self.server.tell(&path, &forget, UNLOAD_DEADLINE).await {
                tracing::warn!("cannot unload the adapter {old}: {fault}");
            }
        }
        // Loaded before this agent began: name and folder are the version, so it is the same adapter.
        if !loaded.iter().any(|known| known == version) {
            let adapter = json!({"lora_name": version, "lora_path": weights.dir});
            let path = format!("{}/load_lora_adapter", self.prefix);
            self.server.tell(&path, &adapter, deadline).await?;
            if !self.loaded().await?.iter().any(|known| known == version) {
                return Err(EngineFault::Misunderstood {
                    url: self.server.at(&path).to_string(),
                    cause: format!("it said that it loaded {version}, and does not list it"),
                });
            }
        }
        let serving = Serving {
            version: version.to_owned(),
            sha256: Some(weights.sha256.to_owned()),
        };
        self.set(Some(serving.clone()));
        Ok(serving)
    }

    /// Names of the adapters the engine has.
    async fn loaded(&self) -> Result<Vec<String>, EngineFault> {
        let models: Models = self.server.ask(Page::Models.path()).await?;
        let names = models.data.into_iter().map(|model| model.id);
        Ok(names.filter(|name| name != super::vllm::SERVED_NAME).collect())
    }
}

/// The version of weights that the engine calls `label`.
pub fn version_of_label(label: &str) -> &str {
    // vLLM's and SGLang's word for the weights they booted with.
    if label == "default" { BASE_VERSION } else { label }
}
