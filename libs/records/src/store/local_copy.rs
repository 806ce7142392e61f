//! A store's file as a local path.

use super::error::StoreError;
use super::{Store, pieces};
use std::io::Write;
use std::path::{Path, PathBuf};

/// See [`Store::local_copy`]. A copy is removed with the value.
#[derive(Debug)]
pub struct LocalCopy(Place);

#[derive(Debug)]
enum Place {
    Volume(PathBuf),
    Temporary(tempfile::TempPath),
}

impl LocalCopy {
    /// The file itself, if the store is a volume.
    pub(super) fn of_volume(path: PathBuf) -> Self {
        Self(Place::Volume(path))
    }

    pub(super) async fn download<S: Store + ?Sized>(store: &S, path: &str) -> Result<Self, StoreError> {
        let missing = || StoreError::Missing { path: path.to_owned() };
        let length = store.length(path).await?.ok_or_else(missing)?;
        let failed = |source| StoreError::Copy {
            path: path.to_owned(),
            source,
        };
        let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
        for piece in pieces(0..length) {
            file.write_all(&store.range(path, piece).await?).map_err(failed)?;
        }
        Ok(Self(Place::Temporary(file.into_temp_path())))
    }

    pub fn path(&self) -> &Path {
        match &self.0 {
            Place::Volume(path) => path,
            Place::Temporary(path) => path,
        }
    }
}
