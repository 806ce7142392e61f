//! A model of the hub in a pod: the init container that brings it into a cache before the pod's process starts, and the
//! link under which the process finds it.
//!
//! All processes of a run hold the files of one commit: its driver says which ([`Pin::Driver`]). The replicas of a pool
//! that no run owns agree on one through the cache that they share ([`Pin::Cache`]).

use grpo_contracts::{ModelDownload, RunConfig, access};
use grpo_crds::common::EnvVariable;
use grpo_crds::inference_pool::ModelCache;
use grpo_crds::sources::{HubModel, ModelSource, joined};
use serde_json::{Value, json};

use crate::{
    names,
    pod_parts::{claim_volume, container_security, environment, mount, resources, scratch_volume, secret_volume},
    settings::Settings,
};

/// The variable of the hub's own tools.
const HUB_ENDPOINT: &str = "HF_ENDPOINT";
const TOKEN_VOLUME: &str = "model-token";
pub const CACHE_VOLUME: &str = "model-cache";

/// Who says which commit it is.
pub enum Pin {
    /// The driver of this run, which the pod has a token for.
    Driver { run: String, namespace: String },
    /// The first pod that shares the cache, under this name.
    Cache { name: String },
}

/// How a pod gets a model of the hub.
pub struct Fetch<'a> {
    pub hub: &'a HubModel,
    /// The folder for files of the hub.
    pub cache: String,
    /// The volume of that folder, as the init container mounts it.
    pub cache_mount: Value,
    pub pin: Pin,
    /// Of the process: proxies and another hub are named there.
    pub env: &'a [EnvVariable],
}

impl Fetch<'_> {
    pub fn container(&self, settings: &Settings, attempt: u32) -> Value {
        let mut args = vec!["fetch-model".to_owned(), "--repo".to_owned(), self.hub.repo.clone()];
        let mut set = |flag: &str, value: &str| args.extend([flag.to_owned(), value.to_owned()]);
        if let Some(revision) = &self.hub.revision {
            set("--revision", revision);
        }
        set("--cache", &self.cache);
        set("--link", &joined(ModelSource::MOUNT, Some(ModelSource::CURRENT)));
        if let Some(file) = ModelDownload::token(self.hub) {
            set("--token-file", &file);
        }
        let mut mounts = vec![
            mount("model", ModelSource::MOUNT, false),
            mount("tmp", "/tmp", false),
            self.cache_mount.clone(),
        ];
        match &self.pin {
            Pin::Driver { run, namespace } => {
                let driver = format!(
                    "http://{}.{namespace}.svc:{}",
                    names::driver(run),
                    RunConfig::DRIVER_PORT
                );
                set("--pin-url", &format!("{driver}{}", ModelDownload::PIN_ROUTE));
                mounts.push(mount(access::TOKENS_VOLUME, access::TOKENS, true));
            }
            Pin::Cache { name } => set("--pin-name", name),
        }
        mounts.extend(token(self.hub).map(|(_, at)| at));
        json!({
            "name": "model",
            "image": settings.agent_image,
            "imagePullPolicy": settings.image_pull_policy,
            "args": args,
            "env": environment(settings, attempt, &endpoint(settings, self.env), self.env),
            "resources": resources(None, 0),
            "securityContext": container_security(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts,
        })
    }
}

/// The hub of the cluster, unless these variables name another.
pub fn endpoint(settings: &Settings, given: &[EnvVariable]) -> Vec<(&'static str, String)> {
    let named = given.iter().any(|variable| variable.name == HUB_ENDPOINT);
    let endpoint = settings.hub_endpoint.iter().filter(|_| !named);
    endpoint.map(|endpoint| (HUB_ENDPOINT, endpoint.clone())).collect()
}

/// The volume of a hub's token and its mount in the process that downloads.
pub fn token(hub: &HubModel) -> Option<(Value, Value)> {
    let secret = hub.token_secret_ref.as_ref()?;
    Some((
        secret_volume(TOKEN_VOLUME, secret, ModelDownload::TOKEN_FILE),
        mount(TOKEN_VOLUME, ModelDownload::TOKEN_MOUNT, true),
    ))
}

/// The volume of a pool's cache.
pub fn cache_volume(cache: Option<&ModelCache>) -> Value {
    let Some(cache) = cache else {
        return scratch_volume(CACHE_VOLUME);
    };
    match (&cache.claim_name, &cache.host_path, &cache.size_limit) {
        (Some(claim), ..) => claim_volume(CACHE_VOLUME, claim, false),
        (None, Some(path), _) => {
            json!({"name": CACHE_VOLUME, "hostPath": {"path": path, "type": "DirectoryOrCreate"}})
        }
        (None, None, Some(size)) => json!({"name": CACHE_VOLUME, "emptyDir": {"sizeLimit": size.0}}),
        (None, None, None) => scratch_volume(CACHE_VOLUME),
    }
}
