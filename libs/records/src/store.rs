//! The run's store: created once, on disk before it is acknowledged, behind [`object_store`].
//!
//! A record is written to a staging file, synced, put in place by a hard link that fails if the name is taken, and its
//! folder is synced. So a name either holds everything or does not exist, and two writers of one name cannot both
//! believe they won.

use crate::record::{DecodeError, Record, SCHEMA, decode};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path as StorePath;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a create came to, and the checksum of the bytes that lie there now if they are ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// The bytes are there and durable.
    Written { sha256: String },
    /// Somebody had created the name before; nothing was changed.
    Existed,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("opening the store in {dir}: {source}; is the volume mounted and writable?")]
    Open {
        dir: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the store path {path:?} is not a plain relative path such as namespace/name")]
    Root { path: String },
    #[error("{doing} {path} in the store: {source}{}", advice(.source))]
    Access {
        doing: &'static str,
        path: String,
        source: object_store::Error,
    },
    #[error("{path} is not in the store")]
    Missing { path: String },
    #[error("{path} in the store cannot be read as the record it should be: {source}")]
    Unreadable { path: String, source: serde_json::Error },
    #[error("writing {path}: the record cannot be put into JSON: {source}")]
    Unwritable { path: String, source: serde_json::Error },
    #[error(
        "{path} in the store has schema {found}, this build reads schema {SCHEMA}; use an image of the version that wrote it, or give the run another store.path"
    )]
    Schema { path: String, found: u32 },
}

/// One run's part of a store. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct RunStore {
    inner: Arc<PrefixStore<LocalFileSystem>>,
    dir: PathBuf,
}

impl RunStore {
    /// The folder `root` (such as `namespace/name`) of the volume mounted at `mount`; made if it is not there.
    pub fn open(mount: &Path, root: &str) -> Result<Self, StoreError> {
        let plain = !root.is_empty() && root.split('/').all(crate::paths::is_plain_name);
        if !plain {
            return Err(StoreError::Root { path: root.to_owned() });
        }
        let dir = mount.join(root);
        let cannot = |source: Box<dyn std::error::Error + Send + Sync>| StoreError::Open {
            dir: dir.clone(),
            source,
        };
        std::fs::create_dir_all(&dir).map_err(|e| cannot(e.into()))?;
        let files = LocalFileSystem::new_with_prefix(mount)
            .map_err(|e| cannot(e.into()))?
            .with_fsync(true);
        Ok(Self {
            inner: Arc::new(PrefixStore::new(files, root)),
            dir,
        })
    }

    /// The folder on disk, for a writer that streams large files by itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Creates `path` with these bytes, durably, unless it exists.
    pub async fn create_bytes(&self, path: &str, bytes: impl Into<Bytes>) -> Result<Created, StoreError> {
        let bytes: Bytes = bytes.into();
        let sha256 = sha256_hex(&bytes);
        let options = PutOptions::from(PutMode::Create);
        match self.inner.put_opts(&at(path), bytes.into(), options).await {
            Ok(_) => Ok(Created::Written { sha256 }),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(Created::Existed),
            Err(source) => Err(access("creating", path, source)),
        }
    }

    /// Creates `path` with this record as JSON, durably, unless it exists.
    pub async fn create<T: Serialize>(&self, path: &str, record: &T) -> Result<Created, StoreError> {
        let mut json = serde_json::to_vec(record).map_err(|source| StoreError::Unwritable {
            path: path.to_owned(),
            source,
        })?;
        json.push(b'\n');
        self.create_bytes(path, json).await
    }

    pub async fn bytes(&self, path: &str) -> Result<Bytes, StoreError> {
        let got = self.inner.get(&at(path)).await.map_err(|e| missing_or(path, e))?;
        got.bytes().await.map_err(|e| access("reading", path, e))
    }

    pub async fn range(&self, path: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.inner
            .get_range(&at(path), range)
            .await
            .map_err(|e| missing_or(path, e))
    }

    /// Length in bytes; nothing when the path does not exist.
    pub async fn length(&self, path: &str) -> Result<Option<u64>, StoreError> {
        match self.inner.head(&at(path)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(access("looking at", path, source)),
        }
    }

    pub async fn exists(&self, path: &str) -> Result<bool, StoreError> {
        Ok(self.length(path).await?.is_some())
    }

    /// Reads a record and refuses one of another schema.
    pub async fn read<T: Record>(&self, path: &str) -> Result<T, StoreError> {
        let path = path.to_owned();
        decode(&self.bytes(&path).await?).map_err(|error| match error {
            DecodeError::Schema { found } => StoreError::Schema { path, found },
            DecodeError::Json(source) => StoreError::Unreadable { path, source },
        })
    }

    /// Reads any JSON.
    pub async fn read_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, StoreError> {
        let bytes = self.bytes(path).await?;
        serde_json::from_slice(&bytes).map_err(|source| StoreError::Unreadable {
            path: path.to_owned(),
            source,
        })
    }

    /// Reads a record, or nothing if it does not exist.
    pub async fn read_if_there<T: Record>(&self, path: &str) -> Result<Option<T>, StoreError> {
        match self.read(path).await {
            Ok(record) => Ok(Some(record)),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Every file below a folder, at any depth, in order of its path.
    pub async fn files_below(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        let listed: Vec<_> = self
            .inner
            .list(Some(&at(folder)))
            .map_ok(|meta| meta.location.to_string())
            .try_collect()
            .await
            .map_err(|e| access("listing", folder, e))?;
        let mut paths = listed;
        paths.sort();
        Ok(paths)
    }

    /// Names of files and of folders directly in a folder, in order.
    pub async fn names_in(&self, folder: &str) -> Result<(Vec<String>, Vec<String>), StoreError> {
        let listed = self
            .inner
            .list_with_delimiter(Some(&at(folder)))
            .await
            .map_err(|e| access("listing", folder, e))?;
        let last = |path: &StorePath| path.filename().map(str::to_owned);
        let mut files: Vec<String> = listed.objects.iter().filter_map(|o| last(&o.location)).collect();
        let mut folders: Vec<String> = listed.common_prefixes.iter().filter_map(last).collect();
        files.sort();
        folders.sort();
        Ok((files, folders))
    }

    /// Removes a file; it is no error if it is gone already. Only retention does this.
    pub async fn delete(&self, path: &str) -> Result<(), StoreError> {
        match self.inner.delete(&at(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(access("deleting", path, source)),
        }
    }
}

/// Lower-case hex SHA-256.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn at(path: &str) -> StorePath {
    StorePath::from(path)
}

fn access(doing: &'static str, path: &str, source: object_store::Error) -> StoreError {
    StoreError::Access {
        doing,
        path: path.to_owned(),
        source,
    }
}

/// What to do where there is no room: the end of a message, empty for any other error.
pub fn advice(error: &(dyn std::error::Error + 'static)) -> &'static str {
    let mut causes = std::iter::successors(Some(error), |cause| cause.source());
    let no_room = |cause: &std::io::Error| {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(cause.kind(), StorageFull | QuotaExceeded)
    };
    match causes.any(|cause| cause.downcast_ref().is_some_and(no_room)) {
        true => "; the store's volume is full: enlarge its claim or make room on it, nothing that was finished is lost",
        false => "",
    }
}

fn missing_or(path: &str, error: object_store::Error) -> StoreError {
    match error {
        object_store::Error::NotFound { .. } => StoreError::Missing { path: path.to_owned() },
        other => access("reading", path, other),
    }
}

#[cfg(test)]
mod tests;
