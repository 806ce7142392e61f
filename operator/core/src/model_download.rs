//! Puts a model of the hub or of a bucket into a pod: the init container that downloads it into a cache before the
//! pod's process starts, and the link at which the process finds it.
//!
//! All processes of a run hold the same files: the run's driver decides which ([`Pin::Driver`]). The replicas of a pool
//! without a run agree through the cache that they share ([`Pin::Cache`]).

use std::collections::BTreeMap;

use grpo_contracts::{ModelDownload, RemoteModel, RunConfig, access};
use grpo_crds::common::EnvVariable;
use grpo_crds::inference_pool::ModelCache;
use grpo_crds::sources::{ModelSource, joined};
use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity};
use serde_json::{Value, json};

use crate::{
    names,
    pod_parts::{
        claim_volume, container_security, environment, mount, resources, scratch_volume, secret_folder_volume,
        secret_volume,
    },
    settings::Settings,
};

/// The variable of the hub's own tools.
const HUB_ENDPOINT: &str = "HF_ENDPOINT";
const TOKEN_VOLUME: &str = "model-token";
const CREDENTIALS_VOLUME: &str = "model-credentials";
pub const CACHE_VOLUME: &str = "model-cache";
/// What a download takes of the resources of its process; devices stay with the process.
const SHARED_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Decides which files a pod downloads.
pub enum Pin {
    /// The driver of this run; the pod has a token for it.
    Driver { run: String, namespace: String },
    /// The first pod that shares the cache; the decision is stored under this name.
    Cache { name: String },
}

/// How a pod gets a downloaded model.
pub struct Fetch<'a> {
    pub model: RemoteModel,
    /// The folder for downloaded files.
    pub cache: String,
    /// The volume of that folder, as the init container mounts it.
    pub cache_mount: Value,
    pub pin: Pin,
    /// Variables of the process, which may set proxies or another hub.
    pub env: &'a [EnvVariable],
    /// Resources of the process.
    pub resources: Option<&'a ResourceRequirements>,
}

impl Fetch<'_> {
    pub fn container(&self, settings: &Settings, attempt: u32) -> Value {
        let mut args = vec!["fetch-model".to_owned()];
        let mut set = |flag: &str, value: &str| args.extend([flag.to_owned(), value.to_owned()]);
        let secret_flag = match &self.model {
            RemoteModel::Hub(hub) => {
                set("--repo", &hub.repo);
                if let Some(revision) = &hub.revision {
                    set("--revision", revision);
                }
                "--token-file"
            }
            RemoteModel::ObjectStore(store) => {
                set("--object-store", &store.url);
                if let Some(endpoint) = &store.endpoint {
                    set("--object-store-endpoint", endpoint);
                }
                if let Some(region) = &store.region {
                    set("--object-store-region", region);
                }
                "--credentials"
            }
        };
        set("--cache", &self.cache);
        set("--link", &joined(ModelSource::MOUNT, Some(ModelSource::CURRENT)));
        if let Some(path) = self.model.secret() {
            set(secret_flag, &path);
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
        mounts.extend(secret(&self.model).map(|(_, at)| at));
        json!({
            "name": "model",
            "image": settings.agent_image,
            "imagePullPolicy": settings.image_pull_policy,
            "args": args,
            "env": environment(settings, attempt, &endpoint(settings, self.env), self.env),
            "resources": resources(self.resources.map(shared).as_ref(), 0),
            "securityContext": container_security(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts,
        })
    }
}

/// Resources of a download. It ends before its process starts, so with the process's own it adds nothing to the pod's
/// request, and has limits where the process has them.
fn shared(of_process: &ResourceRequirements) -> ResourceRequirements {
    let kept = |amounts: &Option<BTreeMap<String, Quantity>>| -> Option<BTreeMap<String, Quantity>> {
        let mut kept = amounts.clone()?;
        kept.retain(|name, _| SHARED_RESOURCES.contains(&name.as_str()));
        Some(kept)
    };
    ResourceRequirements {
        claims: None,
        limits: kept(&of_process.limits),
        requests: kept(&of_process.requests),
    }
}

/// The variable with the cluster's hub, unless the given variables name another.
pub fn endpoint(settings: &Settings, given: &[EnvVariable]) -> Vec<(&'static str, String)> {
    let named = given.iter().any(|variable| variable.name == HUB_ENDPOINT);
    let endpoint = settings.hub_endpoint.iter().filter(|_| !named);
    endpoint.map(|endpoint| (HUB_ENDPOINT, endpoint.clone())).collect()
}

/// The volume of the Secret with a hub's token or a bucket's keys, and its mount in the downloading process. Secrets
/// are mounted as files: their values appear in no environment and no arguments.
pub fn secret(model: &RemoteModel) -> Option<(Value, Value)> {
    Some(match model {
        RemoteModel::Hub(hub) => {
            let token = hub.token_secret_ref.as_ref()?;
            (
                secret_volume(TOKEN_VOLUME, token, ModelDownload::TOKEN_FILE),
                mount(TOKEN_VOLUME, ModelDownload::TOKEN_MOUNT, true),
            )
        }
        RemoteModel::ObjectStore(store) => (
            secret_folder_volume(CREDENTIALS_VOLUME, store.credentials_secret_ref.as_ref()?),
            mount(CREDENTIALS_VOLUME, ModelDownload::CREDENTIALS_MOUNT, true),
        ),
    })
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
