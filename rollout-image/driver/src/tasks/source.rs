//! The sources of a dataset's rows: a file on a mounted volume, a split from the hub, or a file from a bucket.
//!
//! Downloads are pinned once per run ([`downloads`]): `datasets/<key>.json` in the store names the files.

use crate::downloads::{self, DownloadError, Downloads, WantedObjects};
use crate::fault::DriverError;
use grpo_contracts::DatasetLocation;
use grpo_contracts::reason::Reason;
use grpo_crds::sources::ObjectStoreSource;
use grpo_hub::{FileSource, HubError, HubFiles, Pin, Repository, dataset};
use grpo_object_storage::{BucketFiles, Content};
use grpo_records::paths;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The location of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, as this process sees it.
    File(PathBuf),
    Hub(HubSplit),
    Bucket(BucketFile),
}

impl Default for Source {
    fn default() -> Self {
        Self::File(PathBuf::new())
    }
}

impl From<DatasetLocation> for Source {
    fn from(location: DatasetLocation) -> Self {
        match location {
            DatasetLocation::File(file) => Self::File(file),
            DatasetLocation::Hub { dataset, token } => Self::Hub(HubSplit {
                repository: dataset.repo,
                config: dataset.config,
                split: dataset.split,
                revision: dataset.revision,
                token,
            }),
            DatasetLocation::ObjectStore { file, credentials } => Self::Bucket(BucketFile { file, credentials }),
        }
    }
}

/// A split of a dataset of the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubSplit {
    pub repository: String,
    pub config: Option<String>,
    pub split: String,
    pub revision: Option<String>,
    /// The file with the token.
    #[serde(skip)]
    pub token: Option<PathBuf>,
}

/// A file of rows in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketFile {
    pub file: ObjectStoreSource,
    /// The folder with the keys.
    pub credentials: Option<PathBuf>,
}

/// The reason of a run that ends without its rows.
const UNAVAILABLE: Reason = Reason::DatasetUnavailable;

/// The file that may name a dataset's files.
const CARD: &str = "README.md";

impl Downloads<'_> {
    /// The files with the rows of a dataset, in their order.
    pub async fn files(&self, source: &Source) -> Result<Vec<PathBuf>, DriverError> {
        match source {
            Source::File(file) => Ok(vec![file.clone()]),
            Source::Hub(split) => {
                let repository = Repository::dataset(&split.repository);
                let files = self.split(split, &repository).await;
                files.map_err(|error| error.ends(UNAVAILABLE, &repository))
            }
            Source::Bucket(source) => {
                let files = self.bucket_file(source).await;
                files.map_err(|error| error.ends(UNAVAILABLE, &format!("dataset {}", source.file.url)))
            }
        }
    }

    async fn split(&self, split: &HubSplit, repository: &Repository) -> Result<Vec<PathBuf>, DownloadError> {
        let hub = self.hub(split.token.as_deref())?;
        let files = HubFiles { hub: &hub, repository };
        let path = paths::dataset(&downloads::key(split));
        let pin = self.pinned(&split.repository, &path, split.clone(), pin(files, split));
        self.rows(&files, &pin.await?).await
    }

    async fn bucket_file(&self, source: &BucketFile) -> Result<Vec<PathBuf>, DownloadError> {
        let BucketFile { file, credentials } = source;
        let files = BucketFiles::open(Content::Dataset, file, credentials.as_deref()).await;
        let files = files.map_err(HubError::from)?;
        let wanted = WantedObjects::of(file);
        let path = paths::dataset(&downloads::key(&wanted));
        let now = async { files.pin().await.map_err(HubError::from) };
        let pin = self.pinned(&file.url, &path, wanted, now).await?;
        self.rows(&files, &pin).await
    }

    async fn rows(&self, files: &impl FileSource, pin: &Pin) -> Result<Vec<PathBuf>, DownloadError> {
        let folder = self.bring(files, pin).await?;
        Ok(pin.files.iter().map(|file| folder.join(&file.path)).collect())
    }
}

/// The files of the split at the commit that its revision names now.
async fn pin(of: HubFiles<'_>, split: &HubSplit) -> Result<Pin, HubError> {
    let HubFiles { hub, repository } = of;
    let commit = hub.pin(repository, split.revision.as_deref()).await?;
    let all = hub.list(repository, &commit).await?;
    let card = match all.iter().any(|file| file.path == CARD) {
        true => Some(hub.text(repository, &commit, CARD).await?),
        false => None,
    };
    let files = dataset::split_files(repository, card.as_deref(), &all, split.config.as_deref(), &split.split)?;
    Ok(Pin { commit, files })
}
