//! A file written under a claim: first all its bytes are stored, then it gets its name unless it was discarded.

use super::error::StoreError;
use super::{Store, Upload, Uploaded};

/// A file in progress. See [`Store::stage`].
pub struct Staged {
    upload: Option<Upload>,
    uploaded: Option<Uploaded>,
    staged: String,
    path: String,
    /// True: the upload goes to the staged name and is then moved. False: it goes to the final name.
    moves: bool,
}

impl Staged {
    /// An upload to the staged name.
    pub(super) fn moving(upload: Upload, staged: &str, path: &str) -> Self {
        Self {
            upload: Some(upload),
            uploaded: None,
            staged: staged.to_owned(),
            path: path.to_owned(),
            moves: true,
        }
    }

    /// An upload to the final name; a file at the staged name describes it.
    pub(super) fn in_place(upload: Upload, staged: &str, path: &str) -> Self {
        Self {
            moves: false,
            ..Self::moving(upload, staged, path)
        }
    }

    /// Adds bytes. After an error the value is unusable.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match &mut self.upload {
            Some(upload) => upload.write(bytes).await,
            None => Err(self.missing()),
        }
    }

    /// When this returns, every byte is durable, but the file has no name yet.
    pub async fn arrive(&mut self) -> Result<(), StoreError> {
        match &mut self.upload {
            Some(upload) if !self.moves => upload.arrive().await,
            _ => {
                let upload = self.upload.take().ok_or_else(|| self.missing())?;
                self.uploaded = Some(upload.finish().await?);
                Ok(())
            }
        }
    }

    /// Gives the file its name; an error if it was discarded.
    pub async fn name<S: Store + ?Sized>(mut self, store: &S) -> Result<Uploaded, StoreError> {
        match (self.uploaded.take(), self.upload.take()) {
            (Some(uploaded), _) => {
                store.rename(&self.staged, &self.path).await?;
                Ok(uploaded)
            }
            (None, Some(upload)) => {
                let uploaded = upload.complete().await?;
                store.delete(&self.staged).await?;
                Ok(uploaded)
            }
            (None, None) => Err(self.missing()),
        }
    }

    fn missing(&self) -> StoreError {
        StoreError::Missing {
            path: self.staged.clone(),
        }
    }
}
