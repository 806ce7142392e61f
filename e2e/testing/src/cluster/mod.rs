//! The connection to a cluster: applying runs, waiting for states, copying a run's store, writing files to volumes, and
//! tokens for services.

pub mod manifest;
pub mod store;
pub mod token;
pub mod volume;
pub mod wait;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::PathBuf;

/// The field manager of server-side apply.
pub const FIELD_MANAGER: &str = "grpo-demo";

#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("reading the kubeconfig {path}: {what}; bring the cluster up with `make cluster`")]
    Kubeconfig { path: PathBuf, what: String },
    #[error("{doing} {object}: {source}")]
    Api {
        doing: &'static str,
        object: String,
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Wait(#[from] wait::WaitError),
    #[error(transparent)]
    Manifest(#[from] manifest::ManifestError),
    #[error("copying the store of {run} to {to}: {what}")]
    Copy { run: String, to: PathBuf, what: String },
    #[error("writing to the volume of PersistentVolumeClaim {claim}: {what}")]
    Volume { claim: String, what: String },
}

/// Adds the failed request and its object to an error.
pub fn api(doing: &'static str, object: impl Into<String>) -> impl FnOnce(kube::Error) -> ClusterError {
    let object = object.into();
    move |source| ClusterError::Api {
        doing,
        object,
        source: Box::new(source),
    }
}

/// The path of the kubeconfig: `KUBECONFIG`, or the file that `make cluster` leaves in the cache.
pub fn kubeconfig_path() -> PathBuf {
    match std::env::var_os("KUBECONFIG") {
        Some(path) => path.into(),
        None => cache().join("kubeconfig"),
    }
}

/// This machine's address for pods: `GRPO_HOST_IP`, or that of `HOST_IP` in e2e/cluster/lib.sh.
pub fn host_address() -> String {
    std::env::var("GRPO_HOST_IP").unwrap_or_else(|_| "10.111.0.1".to_owned())
}

/// The cache of everything that setup and builds produce.
pub fn cache() -> PathBuf {
    match (std::env::var_os("GRPO_CACHE"), std::env::var_os("HOME")) {
        (Some(path), _) => path.into(),
        (None, Some(home)) => PathBuf::from(home).join(".cache/grpo-operator"),
        (None, None) => ".cache/grpo-operator".into(),
    }
}

/// A client for the cluster. Its requests have a deadline, its watches do not.
pub async fn connect() -> Result<Client, ClusterError> {
    let path = kubeconfig_path();
    let wrong = |what: String| ClusterError::Kubeconfig {
        path: path.clone(),
        what,
    };
    let read = Kubeconfig::read_from(&path).map_err(|e| wrong(e.to_string()))?;
    let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .map_err(|e| wrong(e.to_string()))?;
    Client::try_from(config).map_err(|e| wrong(e.to_string()))
}
