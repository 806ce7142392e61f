//! A model from the hub or a bucket: the driver pins the files of the run, tells the run's other processes, and
//! downloads the files that it reads itself.

use crate::downloads::{self, DownloadError, Downloads, WantedObjects};
use crate::fault::DriverError;
use grpo_contracts::reason::Reason;
use grpo_contracts::{ModelDownload, RemoteModel, RunConfig};
use grpo_crds::sources::{HubModel, ObjectStoreSource};
use grpo_hub::{FileSource, HubError, HubFiles, Pin, Repository, snapshot};
use grpo_object_storage::{BucketFiles, Content};
use grpo_records::paths;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tokio::sync::watch;

/// The reason of a run that ends without its model.
const UNAVAILABLE: Reason = Reason::ModelUnavailable;

/// The source in a record, for a model of the hub.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Wanted {
    repository: String,
    revision: Option<String>,
}

/// Pins the model, tells the other processes, and links the run's model path to its files. Does nothing for a mounted
/// model.
pub async fn bring(
    config: &RunConfig,
    downloads: &Downloads<'_>,
    told: &watch::Sender<Option<Pin>>,
) -> Result<(), DriverError> {
    let Some(download) = &config.model_download else {
        return Ok(());
    };
    let own = OwnModel {
        download,
        link: Path::new(&config.model_path),
        secret: download.from.secret().map(PathBuf::from),
        downloads,
        told,
    };
    match &download.from {
        RemoteModel::Hub(model) => {
            let repository = Repository::model(&model.repo);
            let brought = own.of_hub(model, &repository).await;
            brought.map_err(|error| error.ends(UNAVAILABLE, &repository))
        }
        RemoteModel::ObjectStore(source) => {
            let brought = own.of_bucket(source).await;
            brought.map_err(|error| error.ends(UNAVAILABLE, &format!("model {}", source.url)))
        }
    }
}

/// The driver's own copy of the model.
struct OwnModel<'a> {
    download: &'a ModelDownload,
    link: &'a Path,
    /// The file with the hub's token, or the folder with the bucket's keys.
    secret: Option<PathBuf>,
    downloads: &'a Downloads<'a>,
    told: &'a watch::Sender<Option<Pin>>,
}

impl OwnModel<'_> {
    async fn of_hub(&self, model: &HubModel, repository: &Repository) -> Result<(), DownloadError> {
        let HubModel { repo, revision, .. } = model;
        let wanted = Wanted {
            repository: repo.clone(),
            revision: revision.clone(),
        };
        let hub = self.downloads.hub(self.secret.as_deref())?;
        let files = HubFiles { hub: &hub, repository };
        let path = paths::model(&downloads::key(&wanted));
        let now = Pin::of_model(files, revision.as_deref());
        let pin = self.downloads.pinned(repo, &path, wanted, now).await?;
        self.take(&files, pin).await
    }

    async fn of_bucket(&self, source: &ObjectStoreSource) -> Result<(), DownloadError> {
        let files = BucketFiles::open(Content::Model, source, self.secret.as_deref()).await;
        let files = files.map_err(HubError::from)?;
        let wanted = WantedObjects::of(source);
        let path = paths::model(&downloads::key(&wanted));
        let now = async { files.pin().await.map_err(HubError::from) };
        let pin = self.downloads.pinned(&source.url, &path, wanted, now).await?;
        self.take(&files, pin).await
    }

    async fn take(&self, files: &impl FileSource, pin: Pin) -> Result<(), DownloadError> {
        self.told.send_replace(Some(pin.clone()));
        let own = match self.download.weights {
            true => pin,
            false => pin.without_weights(),
        };
        let folder = self.downloads.bring(files, &own).await?;
        Ok(snapshot::link(&folder, self.link)?)
    }
}
