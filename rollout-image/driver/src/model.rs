//! A model of the hub: the driver says which commit the run takes, tells the run's other processes, and brings what it
//! reads of it itself.

use crate::downloads::{self, DownloadError, Downloads};
use crate::fault::DriverError;
use grpo_contracts::{ModelDownload, RunConfig};
use grpo_crds::sources::HubModel;
use grpo_hub::{HubFiles, Pin, Repository, snapshot};
use grpo_records::paths;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tokio::sync::watch;

/// What the record in the store is of.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Wanted {
    repository: String,
    revision: Option<String>,
}

/// Pins the model, tells the others, and links the path of the run's model to its files. Nothing is done for a model
/// that is mounted.
pub async fn bring(
    config: &RunConfig,
    downloads: &Downloads<'_>,
    told: &watch::Sender<Option<Pin>>,
) -> Result<(), DriverError> {
    let Some(download) = &config.model_download else {
        return Ok(());
    };
    let repository = Repository::model(&download.hub.repo);
    let token = ModelDownload::token(&download.hub).map(PathBuf::from);
    brought(
        download,
        &repository,
        token.as_deref(),
        Path::new(&config.model_path),
        downloads,
        told,
    )
    .await
    .map_err(|error| error.ends("ModelUnavailable", &repository))
}

async fn brought(
    download: &ModelDownload,
    repository: &Repository,
    token: Option<&Path>,
    link: &Path,
    downloads: &Downloads<'_>,
    told: &watch::Sender<Option<Pin>>,
) -> Result<(), DownloadError> {
    let HubModel { repo, revision, .. } = &download.hub;
    let wanted = Wanted {
        repository: repo.clone(),
        revision: revision.clone(),
    };
    let hub = downloads.hub(token)?;
    let path = paths::model(&downloads::key(&wanted));
    let of = HubFiles { hub: &hub, repository };
    let now = Pin::of_model(of, revision.as_deref());
    let pin = downloads.pinned(repository, &path, wanted, now).await?;
    told.send_replace(Some(pin.clone()));
    let own = match download.weights {
        true => pin,
        false => pin.without_weights(),
    };
    let folder = downloads.bring(&hub, repository, &own, &downloads.cache).await?;
    Ok(snapshot::link(&folder, link)?)
}
