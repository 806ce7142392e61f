//! Where the rows of a dataset come from: files on a mounted volume, or a split that is downloaded from the hub.
//!
//! A split is pinned once for a run ([`downloads`]): `datasets/<key>.json` in the store names the commit and its files.

use crate::downloads::{self, DownloadError, Downloads};
use crate::fault::DriverError;
use grpo_contracts::DatasetLocation;
use grpo_hub::{Hub, HubError, Pin, Repository, dataset};
use grpo_records::paths;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where a dataset is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, as this process sees it.
    File(PathBuf),
    Hub(HubSplit),
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

/// The file that may name a dataset's files.
const CARD: &str = "README.md";

impl Downloads<'_> {
    /// The files with the rows of a dataset, in their order.
    pub async fn files(&self, source: &Source) -> Result<Vec<PathBuf>, DriverError> {
        let split = match source {
            Source::File(file) => return Ok(vec![file.clone()]),
            Source::Hub(split) => split,
        };
        let repository = Repository::dataset(&split.repository);
        let files = self.split(split, &repository).await;
        files.map_err(|error| error.ends("DatasetUnavailable", &repository))
    }

    async fn split(&self, split: &HubSplit, repository: &Repository) -> Result<Vec<PathBuf>, DownloadError> {
        let hub = self.hub(split.token.as_deref())?;
        let path = paths::dataset(&downloads::key(split));
        let now = pin(&hub, repository, split);
        let pin = self.pinned(repository, &path, split.clone(), now).await?;
        let folder = self.bring(&hub, repository, &pin, &self.cache).await?;
        Ok(pin.files.iter().map(|file| folder.join(&file.path)).collect())
    }
}

/// The files of the split at the commit that its revision names now.
async fn pin(hub: &Hub, repository: &Repository, split: &HubSplit) -> Result<Pin, HubError> {
    let commit = hub.pin(repository, split.revision.as_deref()).await?;
    let all = hub.list(repository, &commit).await?;
    let card = match all.iter().any(|file| file.path == CARD) {
        true => Some(hub.text(repository, &commit, CARD).await?),
        false => None,
    };
    let files = dataset::split_files(repository, card.as_deref(), &all, split.config.as_deref(), &split.split)?;
    Ok(Pin { commit, files })
}
