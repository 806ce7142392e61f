//! Files of a run's store for copies of it: their paths and sizes, and their bytes in pieces.
//!
//! Only files that are complete once they have a name, and useful outside the cluster, are available: no checkpoints,
//! no downloads, no files that are being written.

use super::{Records, Refusal, RefusalCode};
use crate::paths;
use crate::store::{StoreError, wait};
use bytes::Bytes;
use futures::Stream;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Folders whose files are available.
pub const FOLDERS: [&str; 14] = [
    paths::JOURNAL,
    paths::TASKS,
    paths::DATASETS,
    paths::MODELS,
    paths::VALIDATION,
    paths::BATCHES,
    paths::CONVERSATIONS,
    paths::ROLLOUTS,
    paths::EVALUATIONS,
    paths::METRICS,
    paths::TOKEN_STATS,
    paths::TENSORBOARD,
    paths::WANDB,
    paths::WEIGHTS,
];
/// Maximum files per page.
pub const FILES_A_PAGE: usize = 10_000;

/// Selects all files below a folder, at any depth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FilesOf {
    /// One of [`FOLDERS`], or a folder in it.
    pub folder: String,
    /// Only files after this path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A file of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredFile {
    /// Below the store's root.
    pub path: String,
    pub bytes: u64,
}

/// A page of files, ordered by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilePage {
    pub files: Vec<StoredFile>,
    /// The value of `after` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Selects bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileAt {
    pub path: String,
    /// The first byte.
    #[serde(default)]
    pub from: u64,
    /// The end, exclusive. Default: the end of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

impl FileAt {
    pub fn whole(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            from: 0,
            to: None,
        }
    }

    /// These bytes of a file of this length.
    pub(super) fn range(&self, there: u64) -> Range<u64> {
        let end = self.to.map_or(there, |to| to.min(there));
        self.from.min(end)..end
    }
}

/// Whether files with this path, or below it, are available.
pub(super) fn is_shown(path: &str) -> bool {
    let mut parts = path.split('/');
    FOLDERS.contains(&parts.next().unwrap_or_default()) && parts.all(paths::is_plain_name)
}

pub(super) fn not_shown(path: &str) -> Refusal {
    let shown: String = path.chars().take(200).collect();
    let message = format!(
        "{shown:?} is no path of a store that can be copied; one begins with {}",
        FOLDERS.join(", ")
    );
    Refusal::new(RefusalCode::BadPath, message)
}

impl Records {
    pub fn files(&self, wanted: &FilesOf) -> Result<FilePage, Refusal> {
        if !is_shown(&wanted.folder) {
            return Err(not_shown(&wanted.folder));
        }
        let listed = self
            .store
            .list_after(&wanted.folder, wanted.after.as_deref(), FILES_A_PAGE + 1);
        let mut listed = wait(listed)?;
        let is_last = listed.len() <= FILES_A_PAGE;
        listed.truncate(FILES_A_PAGE);
        let next = listed.last().filter(|_| !is_last).map(|file| file.path.clone());
        // The name of an unfinished file has another form, so it is not shown.
        let shown = listed.into_iter().filter(|file| is_shown(&file.path));
        let files = shown.map(|file| StoredFile {
            path: file.path,
            bytes: file.bytes,
        });
        Ok(FilePage {
            files: files.collect(),
            next,
        })
    }

    /// The number of bytes that follow, and the bytes.
    pub fn file(
        &self,
        wanted: &FileAt,
    ) -> Result<(u64, impl Stream<Item = Result<Bytes, StoreError>> + Send + use<>), Refusal> {
        if !is_shown(&wanted.path) {
            return Err(not_shown(&wanted.path));
        }
        let there = self.length(&wanted.path)?;
        let there = there.ok_or_else(|| Refusal::not_there(&wanted.path))?;
        let range = wanted.range(there);
        Ok((range.end - range.start, self.store.stream(&wanted.path, range)))
    }
}

#[cfg(test)]
mod tests;
