//! Where the rows of a dataset come from: files on a mounted volume, or a split that is downloaded from the hub.
//!
//! A split is pinned once for a run: `datasets/<key>.json` in the store names the commit and its files. A driver that
//! starts again reads the same rows, also when the branch has moved or the hub is away.

use crate::fault::{DriverError, TerminalFault};
use crate::progress::{Board, Topic};
use grpo_contracts::DatasetLocation;
use grpo_hub::snapshot::{self, Progress};
use grpo_hub::{Commit, Hub, HubError, HubSettings, RemoteFile, Repository, dataset};
use grpo_records::store::{RunStore, sha256_hex};
use grpo_records::{StoreError, paths};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// How often a download says how far it is.
const SAY: Duration = Duration::from_secs(2);

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

/// What a run reads of a split: written once, before the first row is read.
#[derive(Debug, Serialize, Deserialize)]
struct Pinned {
    #[serde(flatten)]
    of: HubSplit,
    commit: String,
    files: Vec<RemoteFile>,
}

/// Downloads for one run.
pub struct Downloads<'a> {
    pub settings: HubSettings,
    pub store: &'a RunStore,
    /// The folder for files of the hub.
    pub cache: PathBuf,
    pub board: &'a Board,
}

impl Downloads<'_> {
    /// The files with the rows of a dataset, in their order.
    pub async fn files(&self, source: &Source) -> Result<Vec<PathBuf>, DriverError> {
        match source {
            Source::File(file) => Ok(vec![file.clone()]),
            Source::Hub(split) => self.split(split).await.map_err(|error| unavailable(split, error)),
        }
    }

    async fn split(&self, split: &HubSplit) -> Result<Vec<PathBuf>, DownloadError> {
        let mut settings = self.settings.clone();
        if let Some(file) = &split.token {
            let failed = |source| DownloadError::Token {
                path: file.clone(),
                source,
            };
            let read = std::fs::read_to_string(file).map_err(failed)?;
            settings.token = Some(read.trim().to_owned());
        }
        let (hub, repository) = (Hub::new(&settings)?, Repository::dataset(&split.repository));
        let pinned = self.pinned(&hub, &repository, split).await?;
        let commit = Commit::parse(&pinned.commit).ok_or_else(|| DownloadError::Record(pinned.commit.clone()))?;
        let (progress, mut seen) = (Progress::default(), None);
        let download = snapshot::ensure(&hub, &repository, &commit, &pinned.files, &self.cache, &progress);
        let mut download = std::pin::pin!(download);
        let folder = loop {
            match tokio::time::timeout(SAY, &mut download).await {
                Ok(folder) => break folder,
                Err(_) => self.say(split, &progress, &mut seen),
            }
        };
        self.board.say(Topic::Download, None);
        let folder = folder?;
        tracing::info!(repository = split.repository, %commit, files = pinned.files.len(), "the dataset is here");
        Ok(pinned.files.iter().map(|file| folder.join(&file.path)).collect())
    }

    /// The commit and the files that the run's first driver found.
    async fn pinned(&self, hub: &Hub, repository: &Repository, split: &HubSplit) -> Result<Pinned, DownloadError> {
        let name = sha256_hex(&serde_json::to_vec(split).unwrap_or_default());
        let path = paths::dataset(&name[..16]);
        match self.store.read_json(&path).await {
            Err(StoreError::Missing { .. }) => {}
            pinned => return Ok(pinned?),
        }
        let commit = hub.pin(repository, split.revision.as_deref()).await?;
        let all = hub.list(repository, &commit).await?;
        let card = match all.iter().any(|file| file.path == CARD) {
            true => Some(hub.text(repository, &commit, CARD).await?),
            false => None,
        };
        let files = dataset::split_files(repository, card.as_deref(), &all, split.config.as_deref(), &split.split)?;
        let pinned = Pinned {
            of: split.clone(),
            commit: commit.to_string(),
            files,
        };
        self.store.create(&path, &pinned).await?;
        // Of two drivers the first one's counts.
        Ok(self.store.read_json(&path).await?)
    }

    /// `seen`: the time and the bytes of the first look, from which the rate is counted.
    fn say(&self, split: &HubSplit, progress: &Progress, seen: &mut Option<(Instant, u64)>) {
        let (arrived, all) = progress.bytes();
        let (since, first) = *seen.get_or_insert((Instant::now(), arrived));
        let rate = arrived.saturating_sub(first) as f64 / since.elapsed().as_secs_f64().max(1.0);
        let [arrived, all, rate] = [arrived as f64, all as f64, rate].map(|bytes| format!("{:.1}", bytes / 1e6));
        let text = format!(
            "Downloading dataset {} {arrived}/{all} MB, {rate} MB/s",
            split.repository
        );
        self.board.say(Topic::Download, Some(text));
    }
}

/// The file that may name a dataset's files.
const CARD: &str = "README.md";

#[derive(Debug, thiserror::Error)]
enum DownloadError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("reading the token {}: {source}", path.display())]
    Token { path: PathBuf, source: std::io::Error },
    #[error("the store's record names {0:?}, which is no commit")]
    Record(String),
}

/// A hub in trouble may be well again for the next attempt; the rest is for people to mend.
fn unavailable(split: &HubSplit, error: DownloadError) -> DriverError {
    match error {
        DownloadError::Store(error) => error.into(),
        // A proxy's page in the place of the hub's answer passes, too.
        DownloadError::Hub(error)
            if error.is_transient() || matches!(error, HubError::Disk { .. } | HubError::Malformed { .. }) =>
        {
            DriverError::Other(format!("downloading dataset {}: {error}", split.repository))
        }
        error => TerminalFault::new(
            "DatasetUnavailable",
            format!("downloading dataset {}: {error}", split.repository),
        )
        .into(),
    }
}

/// The folder for files of the hub in a run's store.
pub fn cache(store: &(PathBuf, String)) -> PathBuf {
    let (mount, root) = store;
    Path::new(mount).join(root).join(paths::HUB)
}
