//! One run's store with its records: JSON with a schema, created once.

use super::error::StoreError;
use super::{Created, LocalStore, Names, Store, pieces};
use crate::record::{DecodeError, Record, decode};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// Pieces of a stream that are requested at once: a bucket answers each after a round trip.
const PIECES_AHEAD: usize = 4;

/// Records of a list that are read concurrently: a network volume and a bucket answer each after a round trip.
pub const READ_AT_ONCE: usize = 64;

/// One run's part of a store. Cloning is cheap. It also has all methods of [`Store`].
#[derive(Clone, Debug)]
pub struct RunStore(Arc<dyn Store>);

impl From<Arc<dyn Store>> for RunStore {
    fn from(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl Deref for RunStore {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl RunStore {
    /// The folder `root` (such as `namespace/name`) of the volume mounted at `mount`; created if missing.
    pub fn open(mount: &Path, root: &str) -> Result<Self, StoreError> {
        Ok(Self(Arc::new(LocalStore::open(mount, root)?)))
    }

    /// A folder, created if missing.
    pub fn make(dir: &Path) -> Result<Self, StoreError> {
        Ok(Self(Arc::new(LocalStore::make(dir)?)))
    }

    /// An existing folder: a copied store, or a mounted one that another process writes.
    pub fn existing(dir: &Path) -> Result<Self, StoreError> {
        Ok(Self(Arc::new(LocalStore::existing(dir)?)))
    }

    /// Creates `path` with these bytes, durably, unless it exists.
    pub async fn create_bytes(&self, path: &str, bytes: impl Into<Bytes>) -> Result<Created, StoreError> {
        self.0.create_bytes(path, bytes.into()).await
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

    pub async fn exists(&self, path: &str) -> Result<bool, StoreError> {
        Ok(self.0.length(path).await?.is_some())
    }

    /// Reads a record; refuses another schema.
    pub async fn read<T: Record>(&self, path: &str) -> Result<T, StoreError> {
        decoded(path, &self.bytes(path).await?)
    }

    /// The same with a limit of its size, in one request; `None` if the file has more bytes.
    pub async fn read_within<T: Record>(&self, path: &str, most: u64) -> Result<Option<T>, StoreError> {
        let bytes = self.0.range(path, 0..most + 1).await?;
        match bytes.len() as u64 > most {
            true => Ok(None),
            false => decoded(path, &bytes).map(Some),
        }
    }

    /// Reads any JSON.
    pub async fn read_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, StoreError> {
        let bytes = self.bytes(path).await?;
        serde_json::from_slice(&bytes).map_err(|source| StoreError::Unreadable {
            path: path.to_owned(),
            source,
        })
    }

    /// Reads a record; `None` if it does not exist.
    pub async fn read_if_there<T: Record>(&self, path: &str) -> Result<Option<T>, StoreError> {
        match self.read(path).await {
            Ok(record) => Ok(Some(record)),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the records at these paths in their order, [`READ_AT_ONCE`] concurrently. So a hundred thousand records
    /// need neither one round trip each nor memory for all.
    pub fn read_each<T, I>(&self, paths: I) -> impl Stream<Item = Result<T, StoreError>> + Send + use<T, I>
    where
        T: Record + Send,
        I: IntoIterator<Item = String>,
        I::IntoIter: Send,
    {
        let store = self.clone();
        let read = futures::stream::iter(paths).map(move |path| {
            let store = store.clone();
            async move { store.read::<T>(&path).await }
        });
        read.buffered(READ_AT_ONCE)
    }

    /// Paths of every file below a folder, at any depth, in order.
    pub async fn files_below(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        let listed = self.0.list(folder).await?;
        Ok(listed.into_iter().map(|file| file.path).collect())
    }

    /// Names of files and of folders directly in a folder, in order.
    pub async fn names_in(&self, folder: &str) -> Result<(Vec<String>, Vec<String>), StoreError> {
        let Names { files, folders } = self.0.names(folder).await?;
        Ok((files, folders))
    }

    /// Bytes of a file that is too large for memory, piece by piece. The range ends within the file.
    pub fn stream(
        &self,
        path: &str,
        range: Range<u64>,
    ) -> impl Stream<Item = Result<Bytes, StoreError>> + Send + use<> {
        let (store, path) = (self.clone(), path.to_owned());
        let read = futures::stream::iter(pieces(range)).map(move |piece| {
            let (store, path) = (store.clone(), path.clone());
            async move { store.range(&path, piece).await }
        });
        read.buffered(PIECES_AHEAD)
    }
}

fn decoded<T: Record>(path: &str, bytes: &[u8]) -> Result<T, StoreError> {
    let path = path.to_owned();
    decode(bytes).map_err(|error| match error {
        DecodeError::Schema { found } => StoreError::Schema { path, found },
        DecodeError::Json(source) => StoreError::Unreadable { path, source },
    })
}
