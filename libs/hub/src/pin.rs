//! Pins a commit and a selection of its files, so that several processes download the same files.

use std::fs;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::client::HubFiles;
use crate::error::HubError;
use crate::model;
use crate::repository::{Commit, RemoteFile};
use crate::snapshot::{self, Progress};
use crate::source::FileSource;
use crate::transfer::in_background;

/// The folder, below a repository's folder in a cache, with the pins of processes that share the cache.
const PINS: &str = "pins";

/// Files of a commit. Written once, and read by every process that must hold the same files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    pub commit: Commit,
    pub files: Vec<RemoteFile>,
}

impl Pin {
    /// The files of a model at the commit that the revision names now.
    pub async fn of_model(of: HubFiles<'_>, revision: Option<&str>) -> Result<Self, HubError> {
        let HubFiles { hub, repository } = of;
        let commit = hub.pin(repository, revision).await?;
        let files = model::files(repository, &hub.list(repository, &commit).await?)?;
        Ok(Self { commit, files })
    }

    /// The pin that processes of this name, which share a cache, already use; otherwise the result of `now`.
    pub async fn agreed<E: From<HubError>>(
        source: &impl FileSource,
        cache: &Path,
        name: &str,
        now: impl Future<Output = Result<Self, E>>,
    ) -> Result<Self, E> {
        let path = cache.join(source.folder()).join(PINS).join(format!("{name}.json"));
        if let Some(pin) = in_background(read, path.clone()).await? {
            return Ok(pin);
        }
        let pin = now.await?;
        in_background(write_once, (pin.clone(), path.clone())).await?;
        // If two processes write, the first one's pin counts.
        Ok(in_background(read, path).await?.unwrap_or(pin))
    }

    /// The same commit without its weights: configuration and tokenizer only.
    pub fn without_weights(mut self) -> Self {
        self.files.retain(|file| !model::is_weights(&file.path));
        self
    }

    /// Downloads the files into a cache; returns the folder with them.
    pub async fn fetch(
        &self,
        source: &impl FileSource,
        cache: &Path,
        progress: &Progress,
    ) -> Result<PathBuf, HubError> {
        snapshot::ensure(source, &self.commit, &self.files, cache, progress).await
    }
}

fn read(path: PathBuf) -> Result<Option<Pin>, HubError> {
    let read = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.and_then(|bytes| serde_json::from_slice(&bytes).map_err(Into::into)),
    };
    read.map_err(HubError::disk("reading which files processes agreed on in", &path))
}

/// Writes the pin as a whole file, unless it exists.
fn write_once((pin, path): (Pin, PathBuf)) -> Result<(), HubError> {
    let own = path.with_extension(snapshot::host());
    let write = || {
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        let file = fs::File::create(&own)?;
        serde_json::to_writer(&file, &pin)?;
        file.sync_all()?;
        let named = match fs::hard_link(&own, &path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        };
        fs::remove_file(&own)?;
        named
    };
    write().map_err(HubError::disk("writing which files processes agree on to", &path))
}
