//! The right of one writer to write into a store, until it is withdrawn.
//!
//! An attempt of the trainer begins while the one before it may still be alive, cut off from the cluster. It withdraws
//! the claims before it; what these writers still do then changes nothing.
//!
//! A claim is a folder below [`paths::STAGING`] with a file that says it holds. What is written under it is staged
//! there first and then named. Withdrawing removes the file, then discards everything staged. The writer looks for
//! the file again when all is staged: either it sees that it is gone, or what it staged is discarded and cannot be
//! named, or it was named before the withdrawal returned.

use crate::paths;
use crate::store::{RunStore, Staged, StoreError, Uploaded};
use bytes::Bytes;

/// The file that says a claim holds.
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

/// A writer's right. Its name is its own: no two writers use one.
#[derive(Clone, Debug)]
pub struct Claim {
    store: RunStore,
    name: String,
}

impl Claim {
    /// Names a claim; [`Claim::take`] makes it hold.
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

    /// When this returns, every write under the claim is done or will fail.
    pub async fn withdraw(&self) -> Result<(), StoreError> {
        let folder = format!("{}/{}", paths::STAGING, self.name);
        self.store.delete(&self.file(HOLDS)).await?;
        self.store.discard_folder(&folder).await?;
        self.store.delete_folder(&folder).await
    }

    /// Refuses where the claim was withdrawn.
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

    /// Gives `path` these bytes, whether it exists or not.
    pub async fn replace(&self, path: &str, bytes: Bytes) -> Result<(), ClaimError> {
        let mut upload = self.upload(path).await?;
        upload.write(&bytes).await?;
        upload.finish().await.map(|_| ())
    }

    /// Begins a file, which may be too large for memory.
    pub async fn upload(&self, path: &str) -> Result<ClaimedUpload, ClaimError> {
        self.check("writing", path).await?;
        let staged = self.store.stage(&self.staged(path), path).await;
        Ok(ClaimedUpload {
            staged: self.explained(path, staged).await?,
            claim: self.clone(),
            path: path.to_owned(),
        })
    }

    /// What failed because what was staged is gone failed because of the withdrawal.
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
    /// Adds bytes. After an error the upload is of no use.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ClaimError> {
        let written = self.staged.write(bytes).await;
        self.claim.explained(&self.path, written).await
    }

    /// The file has its name and is durable when this returns.
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
