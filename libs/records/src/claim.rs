//! One writer's right to write into a store, until it is withdrawn.
//!
//! An attempt of the trainer can begin while the previous one is still alive, cut off from the cluster. It withdraws
//! the earlier claims; later writes under them change nothing.
//!
//! A claim is a folder below [`paths::STAGING`] with a file that marks it as held. Each write is staged in that folder
//! and then named. To withdraw a claim, the file is removed, then everything staged is discarded. After staging, the
//! writer looks for the file again. Three cases: the writer sees that the file is gone; or the staged bytes are
//! discarded and cannot be named; or they were named before the withdrawal returned.

use crate::paths;
use crate::store::{RunStore, Staged, StoreError, Uploaded};
use bytes::Bytes;

/// The file that marks a claim as held.
const HOLDS: &str = "claim";

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{doing} {path}: another writer withdrew the claim {claim}, so nothing is written under it any more")]
    Withdrawn {
        doing: &'static str,
        path: String,
        claim: String,
    },
}

/// A writer's right. The name is unique: two writers never share one.
#[derive(Clone, Debug)]
pub struct Claim {
    store: RunStore,
    name: String,
}

impl Claim {
    /// Names a claim; [`Claim::take`] makes it held.
    pub fn new(store: RunStore, name: String) -> Self {
        Self { store, name }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Every claim that was not withdrawn, by name.
    pub async fn all(store: &RunStore) -> Result<Vec<String>, StoreError> {
        Ok(store.names_in(paths::STAGING).await?.1)
    }

    pub async fn take(&self) -> Result<(), StoreError> {
        self.store.replace(&self.file(HOLDS), Bytes::new()).await
    }

    /// When this returns, every write under the claim has finished or will fail.
    pub async fn withdraw(&self) -> Result<(), StoreError> {
        let folder = format!("{}/{}", paths::STAGING, self.name);
        self.store.delete(&self.file(HOLDS)).await?;
        self.store.discard_folder(&folder).await?;
        self.store.delete_folder(&folder).await
    }

    /// Returns an error if the claim was withdrawn.
    pub async fn check(&self, doing: &'static str, path: &str) -> Result<(), ClaimError> {
        match self.store.exists(&self.file(HOLDS)).await? {
            true => Ok(()),
            false => Err(ClaimError::Withdrawn {
                doing,
                path: path.to_owned(),
                claim: self.name.clone(),
            }),
        }
    }

    /// Writes these bytes to `path`, whether or not it exists.
    pub async fn replace(&self, path: &str, bytes: Bytes) -> Result<(), ClaimError> {
        let mut upload = self.upload(path).await?;
        upload.write(&bytes).await?;
        upload.finish().await.map(|_| ())
    }

    /// Begins a file, which can be too large for memory.
    pub async fn upload(&self, path: &str) -> Result<ClaimedUpload, ClaimError> {
        self.check("writing", path).await?;
        let staged = self.store.stage(&self.staged(path), path).await;
        Ok(ClaimedUpload {
            staged: self.explained(path, staged).await?,
            claim: self.clone(),
            path: path.to_owned(),
        })
    }

    /// An error is reported as the withdrawal if the claim was withdrawn: its staged bytes were discarded.
    async fn explained<T>(&self, path: &str, done: Result<T, StoreError>) -> Result<T, ClaimError> {
        match done {
            Ok(done) => Ok(done),
            Err(error) => {
                self.check("writing", path).await?;
                Err(error.into())
            }
        }
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{}/{name}", paths::STAGING, self.name)
    }

    fn staged(&self, path: &str) -> String {
        self.file(&path.replace('/', "_"))
    }
}

/// An upload under a claim.
pub struct ClaimedUpload {
    claim: Claim,
    staged: Staged,
    path: String,
}

impl ClaimedUpload {
    /// Adds bytes. After an error the upload is unusable.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ClaimError> {
        let written = self.staged.write(bytes).await;
        self.claim.explained(&self.path, written).await
    }

    /// When this returns, the file has its name and is durable.
    pub async fn finish(mut self) -> Result<Uploaded, ClaimError> {
        let arrived = self.staged.arrive().await;
        self.claim.explained(&self.path, arrived).await?;
        self.claim.check("naming", &self.path).await?;
        let named = self.staged.name(&*self.claim.store).await;
        self.claim.explained(&self.path, named).await
    }
}

#[cfg(test)]
mod tests;
