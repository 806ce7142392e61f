//! A run's store: a folder on a volume or in a bucket.

use crate::bucket_error::is_refusal;
use crate::credentials::Credentials;
use crate::open::{OpenError, Opened, open};
use grpo_contracts::RunConfig;
use grpo_crds::sources::ObjectStoreSource;
use grpo_records::RunStore;
use grpo_records::store::{RemoteStore, Store, StoreError, wait};
use std::path::Path;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum RunStoreError {
    #[error("spec.store: {0}")]
    Open(#[from] OpenError),
    #[error("spec.store: {source}{}", advice(source))]
    Store {
        #[from]
        source: StoreError,
    },
}

/// The remedy if the server refuses: the end of a message.
fn advice(error: &StoreError) -> &'static str {
    match error {
        StoreError::Access { source, .. } if is_refusal(source) => {
            "; check that the bucket exists, and that the keys of credentialsSecretRef (or the pod's own identity) may read, write, \
list and delete there"
        }
        _ => "",
    }
}

impl RunStoreError {
    /// Whether a retry cannot help: a person must correct the cause.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Open(error) => !error.is_transient(),
            Self::Store { source } => match source {
                StoreError::Guarantee { .. } | StoreError::Root { .. } => true,
                StoreError::Access { source, .. } => is_refusal(source),
                _ => false,
            },
        }
    }
}

/// Opens a run's store; `mount` is the mount path of its volume, if it has one.
pub async fn store_of(config: &RunConfig, mount: &Path) -> Result<RunStore, RunStoreError> {
    match &config.spec.store.object_store {
        None => Ok(RunStore::open(mount, &config.store_path)?),
        Some(source) => run_store(source, RunConfig::store_secret(source), &config.store_path).await,
    }
}

/// Opens the folder `root` (such as `namespace/name`) below the source's URL, and probes whether the server keeps a
/// store's guarantees. `secret` is the folder of the mounted Secret with credentials; without it, the process's own
/// identity is used.
pub async fn run_store(
    source: &ObjectStoreSource,
    secret: Option<&Path>,
    root: &str,
) -> Result<RunStore, RunStoreError> {
    let store = opened(source, secret, root).await?;
    store.probe().await?;
    Ok(RunStore::from(Arc::new(store) as Arc<dyn Store>))
}

/// The same for a process without a runtime.
pub fn run_store_blocking(
    source: &ObjectStoreSource,
    secret: Option<&Path>,
    root: &str,
) -> Result<RunStore, RunStoreError> {
    RemoteStore::prepare()?;
    wait(run_store(source, secret, root))
}

/// The same, read-only: nothing is written, and the probe for writers is left out.
pub async fn read_store(
    source: &ObjectStoreSource,
    secret: Option<&Path>,
    root: &str,
) -> Result<RunStore, RunStoreError> {
    let store = opened(source, secret, root).await?;
    Ok(RunStore::from(Arc::new(store) as Arc<dyn Store>))
}

/// The same for a process without a runtime.
pub fn read_store_blocking(
    source: &ObjectStoreSource,
    secret: Option<&Path>,
    root: &str,
) -> Result<RunStore, RunStoreError> {
    RemoteStore::prepare()?;
    wait(read_store(source, secret, root))
}

async fn opened(source: &ObjectStoreSource, secret: Option<&Path>, root: &str) -> Result<RemoteStore, RunStoreError> {
    let credentials = Credentials::of_bucket(&source.url, secret).map_err(OpenError::from)?;
    let Opened { objects, parts, prefix } = open(source, &credentials).await?;
    let location = format!("{}/{root}", source.url.trim_end_matches('/'));
    Ok(RemoteStore::new(objects, parts, &prefix, root, location)?)
}
