//! A run's files: one trait over [`object_store`] for every process that reads or writes them.
//!
//! [`Store`] states the guarantees of a backend; driver, trainer, readers and verifier rely on nothing else, and do not
//! know where a file is kept. [`LocalStore`] is a folder on a volume, [`RemoteStore`] one in a bucket. [`RunStore`]
//! adds the records: JSON with a schema. Code without a runtime calls through [`wait`].

#[cfg(any(test, feature = "fixture"))]
pub mod conformance;
#[cfg(any(test, feature = "fixture"))]
pub mod counted;
mod error;
mod io;
mod local;
mod local_copy;
mod named_upload;
mod remote;
mod run;
mod staged;
mod upload;

pub use error::{StoreError, advice};
pub use io::wait;
pub use local::LocalStore;
pub use local_copy::LocalCopy;
pub use remote::RemoteStore;
pub use run::{READ_AT_ONCE, RunStore};
pub use staged::Staged;
pub use upload::{Upload, Uploaded};

use async_trait::async_trait;
use bytes::Bytes;
use error::{access, missing_or};
use futures::TryStreamExt;
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use sha2::{Digest, Sha256};
use std::fmt::Debug;
use std::ops::Range;

/// Bytes of a large file that are in memory at once.
const PIECE: u64 = 4 << 20;

/// The result of a create, with the checksum if this caller's bytes are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// The bytes are stored and durable.
    Written { sha256: String },
    /// Another writer created the name first; nothing changed.
    Existed,
}

/// A file of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Below the store's root.
    pub path: String,
    pub bytes: u64,
}

/// The direct contents of a folder, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub files: Vec<String>,
    pub folders: Vec<String>,
}

/// The files below a run's root, by plain relative paths such as `journal/0000000001.json`.
///
/// Every backend guarantees:
///
/// * **Whole or absent.** A reader sees all bytes of a file or no file: after [`create_bytes`](Store::create_bytes),
///   [`replace`](Store::replace) and [`Upload::finish`], and after a crash at any moment.
/// * **Durable.** Acknowledged data survives a crash of every machine involved. On a volume, files and the folders that
///   name them are synced first. Only [`append`](Store::append) promises less.
/// * **One creator.** Of several callers that create one name, exactly one gets [`Created::Written`].
/// * **Read what was written.** A read or a listing that begins after a write was acknowledged sees the write.
/// * **No folders.** A folder is a common prefix of paths: it need not be created, and an empty one need not be listed.
///
/// A backend provides its [`objects`](Store::objects). It overrides a provided method only to keep a guarantee, or to
/// avoid a copy. The tests of this module check every guarantee on every backend.
#[async_trait]
pub trait Store: Debug + Send + Sync {
    /// The object store, rooted at the run's folder.
    fn objects(&self) -> &dyn ObjectStore;

    /// Names this store in messages, such as `file:///grpo/store/team/demo`. Not a path to open.
    fn location(&self) -> String;

    /// Creates `path` with these bytes, unless it exists.
    async fn create_bytes(&self, path: &str, bytes: Bytes) -> Result<Created, StoreError> {
        let sha256 = sha256_hex(&bytes);
        let options = PutOptions::from(PutMode::Create);
        match self.objects().put_opts(&at(path), bytes.into(), options).await {
            Ok(_) => Ok(Created::Written { sha256 }),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(Created::Existed),
            Err(source) => Err(access("creating", path, source)),
        }
    }

    /// Writes these bytes to `path`, whether or not it exists.
    async fn replace(&self, path: &str, bytes: Bytes) -> Result<(), StoreError> {
        let put = self.objects().put(&at(path), bytes.into()).await;
        put.map(|_| ()).map_err(|e| access("writing", path, e))
    }

    /// Begins a file that is too large for memory. When [`Upload::finish`] returns, it exists and has replaced any file
    /// of that name.
    async fn upload(&self, path: &str) -> Result<Upload, StoreError> {
        Upload::begin(self.objects(), path).await
    }

    /// Begins a file that gets the name `path` unless it is discarded before. Until then its name is `staged`, or a
    /// file whose name begins with `staged` describes it.
    async fn stage(&self, staged: &str, path: &str) -> Result<Staged, StoreError> {
        Ok(Staged::moving(self.upload(staged).await?, staged, path))
    }

    /// Discards everything that is staged in a folder. When this returns, each file has its name or never gets it.
    async fn discard_folder(&self, folder: &str) -> Result<(), StoreError> {
        self.delete_folder(folder).await
    }

    /// Appends to a file that only one process writes; creates it if necessary. A reader sees all or none of an
    /// addition. Additions may be lost in a crash: use this only for logs that may be lost.
    async fn append(&self, path: &str, bytes: Bytes) -> Result<(), StoreError> {
        let before = match self.bytes(path).await {
            Err(StoreError::Missing { .. }) => Bytes::new(),
            before => before?,
        };
        self.replace(path, [before, bytes].concat().into()).await
    }

    /// Moves a file and replaces any file at `to`. [`StoreError::Missing`] if `from` does not exist. On a volume this
    /// is atomic: of two concurrent moves, or a move and a delete, of one file, one wins. Object storage copies.
    async fn rename(&self, from: &str, to: &str) -> Result<(), StoreError> {
        let moved = self.objects().rename(&at(from), &at(to)).await;
        moved.map_err(|e| missing_or("renaming", from, e))
    }

    /// All bytes of a file.
    async fn bytes(&self, path: &str) -> Result<Bytes, StoreError> {
        let got = self.objects().get(&at(path)).await;
        let got = got.map_err(|e| missing_or("reading", path, e))?;
        got.bytes().await.map_err(|e| access("reading", path, e))
    }

    /// Some bytes of a file; fewer if the file ends earlier.
    async fn range(&self, path: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let got = self.objects().get_range(&at(path), range).await;
        got.map_err(|e| missing_or("reading", path, e))
    }

    /// Length in bytes; `None` if the path does not exist.
    async fn length(&self, path: &str) -> Result<Option<u64>, StoreError> {
        match self.objects().head(&at(path)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(access("looking at", path, source)),
        }
    }

    /// Hex SHA-256 of a file, read piece by piece.
    async fn checksum(&self, path: &str) -> Result<String, StoreError> {
        let missing = || StoreError::Missing { path: path.to_owned() };
        let length = self.length(path).await?.ok_or_else(missing)?;
        let mut digest = Sha256::new();
        for piece in pieces(0..length) {
            digest.update(&self.range(path, piece).await?);
        }
        Ok(hex::encode(digest.finalize()))
    }

    /// Every file below a folder, at any depth, ordered by path.
    async fn list(&self, folder: &str) -> Result<Vec<Listed>, StoreError> {
        let listed = self.objects().list(Some(&at(folder))).map_ok(|meta| Listed {
            path: meta.location.to_string(),
            bytes: meta.size,
        });
        let mut listed: Vec<Listed> = listed.try_collect().await.map_err(|e| access("listing", folder, e))?;
        listed.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(listed)
    }

    /// The first files below a folder whose paths come after `after`, at any depth, ordered by path; at most `most`.
    ///
    /// Buckets list in the order of paths, so the listing begins at `after`, and ends when enough files are known.
    async fn list_after(&self, folder: &str, after: Option<&str>, most: usize) -> Result<Vec<Listed>, StoreError> {
        let is_behind = |path: &str| after.is_none_or(|after| path > after);
        let mut listed = match after {
            Some(after) => self.objects().list_with_offset(Some(&at(folder)), &at(after)),
            None => self.objects().list(Some(&at(folder))),
        };
        let mut first: Vec<Listed> = Vec::new();
        while first.len() < most {
            let next = listed.try_next().await;
            let Some(meta) = next.map_err(|e| access("listing", folder, e))? else {
                break;
            };
            let (path, bytes) = (meta.location.to_string(), meta.size);
            if first.last().is_some_and(|last| last.path > path) {
                // A server with another order, such as a directory bucket: only the whole listing has the first files.
                let mut all = self.list(folder).await?;
                all.retain(|file| is_behind(&file.path));
                all.truncate(most);
                return Ok(all);
            }
            if is_behind(&path) {
                first.push(Listed { path, bytes });
            }
        }
        Ok(first)
    }

    /// The direct contents of a folder; empty if it does not exist.
    async fn names(&self, folder: &str) -> Result<Names, StoreError> {
        let listed = self.objects().list_with_delimiter(Some(&at(folder))).await;
        let listed = listed.map_err(|e| access("listing", folder, e))?;
        let last = |path: &StorePath| path.filename().map(str::to_owned);
        let mut names = Names {
            files: listed.objects.iter().filter_map(|o| last(&o.location)).collect(),
            folders: listed.common_prefixes.iter().filter_map(last).collect(),
        };
        names.files.sort();
        names.folders.sort();
        Ok(names)
    }

    /// Removes a file; no error if it does not exist.
    async fn delete(&self, path: &str) -> Result<(), StoreError> {
        match self.objects().delete(&at(path)).await {
            Ok(()) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(source) => Err(access("deleting", path, source)),
        }
    }

    /// Removes every file below a folder, in no fixed order; no error if the folder does not exist.
    async fn delete_folder(&self, folder: &str) -> Result<(), StoreError> {
        for file in self.list(folder).await? {
            self.delete(&file.path).await?;
        }
        Ok(())
    }

    /// The file as a local path, for readers that take only a path: another program (the official grader reads logs),
    /// or a library that opens or maps files (the tokenizer). On a volume it is the file itself and must not be
    /// changed; otherwise it is a copy that is removed with the value.
    async fn local_copy(&self, path: &str) -> Result<LocalCopy, StoreError> {
        LocalCopy::download(self, path).await
    }
}

/// Whether a file to delete does not exist. S3 deletes by lists, also a list of one file; a server's answer for a file
/// that was deleted at the same time is then in a generic error.
fn is_gone(error: &object_store::Error) -> bool {
    match error {
        object_store::Error::NotFound { .. } => true,
        object_store::Error::Generic { source, .. } => source.to_string().contains("NoSuchKey"),
        _ => false,
    }
}

/// Splits a range into pieces that fit in memory.
fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> + Send {
    let end = range.end;
    range
        .step_by(PIECE as usize)
        .map(move |start| start..end.min(start + PIECE))
}

/// Lower-case hex SHA-256.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn at(path: &str) -> StorePath {
    StorePath::from(path)
}

#[cfg(test)]
mod tests;
