//! Downloads from a hub or a bucket. The driver pins the files of a run in its store before the first byte, so that a
//! later driver takes the same files even if the branch has moved, the bucket has changed, or the server is
//! unavailable.

use crate::fault::{DriverError, TerminalFault};
use crate::progress::{Board, Topic};
use grpo_contracts::reason::Reason;
use grpo_crds::progress::PinnedRevision;
use grpo_crds::sources::ObjectStoreSource;
use grpo_hub::snapshot::Progress;
use grpo_hub::{FileSource, Hub, HubError, HubSettings, Pin};
use grpo_records::store::{RunStore, sha256_hex};
use grpo_records::{StoreError, paths};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// How often a download reports its progress.
const SAY: Duration = Duration::from_secs(2);
/// Most revisions in `status.progress`.
const REVISIONS_SHOWN: usize = 64;

/// Downloads for one run.
pub struct Downloads<'a> {
    pub settings: HubSettings,
    pub store: &'a RunStore,
    /// The folder for downloaded files.
    pub cache: PathBuf,
    pub board: &'a Board,
}

/// The record in the store: the source and its pinned files.
#[derive(Debug, Serialize, Deserialize)]
struct Pinned<T> {
    #[serde(flatten)]
    of: T,
    #[serde(flatten)]
    pin: Pin,
}

/// The source in a record, for files of a bucket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WantedObjects {
    pub url: String,
    pub endpoint: Option<String>,
}

impl WantedObjects {
    pub fn of(source: &ObjectStoreSource) -> Self {
        Self {
            url: source.url.clone(),
            endpoint: source.endpoint.clone(),
        }
    }
}

impl Downloads<'_> {
    /// The hub's client, with the token from a file.
    pub fn hub(&self, token: Option<&Path>) -> Result<Hub, DownloadError> {
        Ok(Hub::new(&self.settings.clone().with_token_file(token)?)?)
    }

    /// The pin from the store, or the result of `pin`, which is stored now. `name`: a repository or a URL.
    pub async fn pinned<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        path: &str,
        of: T,
        pin: impl Future<Output = Result<Pin, HubError>>,
    ) -> Result<Pin, DownloadError> {
        let pinned: Pinned<T> = match self.store.read_json(path).await {
            Err(StoreError::Missing { .. }) => {
                let pin = pin.await?;
                self.store.create(path, &Pinned { of, pin }).await?;
                // If two drivers write, the first pin counts.
                self.store.read_json(path).await?
            }
            pinned => pinned?,
        };
        let pin = pinned.pin;
        self.board.change(|progress| {
            let revision = PinnedRevision {
                repo: name.to_owned(),
                commit: pin.commit.to_string(),
            };
            if !progress.revisions.contains(&revision) && progress.revisions.len() < REVISIONS_SHOWN {
                progress.revisions.push(revision);
            }
        });
        Ok(pin)
    }

    /// Downloads the files into a cache and returns their folder; reports its progress on the board.
    pub async fn bring(&self, source: &impl FileSource, pin: &Pin) -> Result<PathBuf, DownloadError> {
        let (progress, mut seen) = (Progress::default(), None);
        let mut download = std::pin::pin!(pin.fetch(source, &self.cache, &progress));
        let folder = loop {
            match tokio::time::timeout(SAY, &mut download).await {
                Ok(folder) => break folder,
                Err(_) => self.say(source, &progress, &mut seen),
            }
        };
        self.board.say(Topic::Download, None);
        let folder = folder?;
        tracing::info!(%source, commit = %pin.commit, files = pin.files.len(), "the files are here");
        Ok(folder)
    }

    /// `seen`: time and bytes of the first report, from which the rate is computed.
    fn say(&self, source: &impl FileSource, progress: &Progress, seen: &mut Option<(Instant, u64)>) {
        let (arrived, all) = progress.bytes();
        let (since, first) = *seen.get_or_insert((Instant::now(), arrived));
        let rate = arrived.saturating_sub(first) as f64 / since.elapsed().as_secs_f64().max(1.0);
        let text = in_words(source, arrived, all, rate);
        self.board.say(Topic::Download, Some(text));
    }
}

/// `Downloading model Qwen/Qwen3-8B 3.4/16.4 GB, 1.2 GB/s`
fn in_words(source: &impl fmt::Display, arrived: u64, all: u64, rate: f64) -> String {
    let of = |bytes: f64| if bytes >= 1e9 { (1e9, "GB") } else { (1e6, "MB") };
    let ((scale, unit), (rate_scale, rate_unit)) = (of(all as f64), of(rate));
    let [arrived, all] = [arrived, all].map(|bytes| format!("{:.1}", bytes as f64 / scale));
    let rate = rate / rate_scale;
    format!("Downloading {source} {arrived}/{all} {unit}, {rate:.1} {rate_unit}/s")
}

/// The name of the record of `of` in the store.
pub fn key(of: &impl Serialize) -> String {
    let mut name = sha256_hex(&serde_json::to_vec(of).unwrap_or_default());
    name.truncate(16);
    name
}

/// The folder for downloaded files in a run's store.
pub fn cache(store: &(PathBuf, String)) -> PathBuf {
    let (mount, root) = store;
    Path::new(mount).join(root).join(paths::HUB)
}

#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl DownloadError {
    /// A transient error ends this attempt only. Any other error needs a person and ends the run with this reason.
    /// `what`: the object of the download.
    pub fn ends(self, reason: Reason, what: &impl fmt::Display) -> DriverError {
        let message = format!("downloading {what}: {self}");
        match self {
            Self::Store(error) => error.into(),
            // Also worth a retry: a proxy's page instead of the hub's answer, a disk error, and a full disk.
            Self::Hub(error)
                if error.is_transient()
                    || matches!(
                        error,
                        HubError::Disk { .. } | HubError::Room { .. } | HubError::Malformed { .. }
                    ) =>
            {
                DriverError::Other(message)
            }
            _ => TerminalFault::new(reason, message).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_in_trouble_costs_an_attempt_and_a_refusal_the_run() {
        let error = |is_transient| {
            let source = "of a bucket".into();
            let error = DownloadError::Hub(HubError::Source { source, is_transient });
            error.ends(Reason::ModelUnavailable, &"model s3://models/qwen")
        };
        assert!(matches!(error(true), DriverError::Other(_)));
        let DriverError::Terminal(fault) = error(false) else {
            panic!("a refusal is terminal");
        };
        assert_eq!(fault.message, "downloading model s3://models/qwen: of a bucket");
    }

    #[test]
    fn a_download_says_how_far_it_is_in_units_that_people_read() {
        for (arrived, all, rate, words) in [
            (3_400_000_000, 16_400_000_000, 1.2e9, "3.4/16.4 GB, 1.2 GB/s"),
            (34_000_000, 16_400_000_000, 9e7, "0.0/16.4 GB, 90.0 MB/s"),
            (2_000_000, 2_500_000, 0.0, "2.0/2.5 MB, 0.0 MB/s"),
        ] {
            for model in ["model Qwen/Qwen3-8B", "model s3://models/qwen"] {
                let text = in_words(&model, arrived, all, rate);
                assert_eq!(text, format!("Downloading {model} {words}"));
            }
        }
    }
}
