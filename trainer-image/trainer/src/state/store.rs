//! The part of a run's store that the trainer writes: files, and folders that count only with a manifest.
//!
//! While the store does not answer, every call waits as long as its [`Patience`] says, and repeats its work, which may
//! be done twice. Only a [`FileUpload`] is not repeated here, because its bytes are gone.

use std::path::Path;

use bytes::Bytes;
use grpo_records::claim::{Claim, ClaimError, ClaimedUpload};
use grpo_records::store::{StoreError, Upload, Uploaded, sha256_hex, wait};
use grpo_records::{RunStore, paths};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::outage::Patience;

pub use grpo_records::paths::lineage_number;

const WRITING: &str = "writing";

/// Hex sha256.
pub fn sha256(bytes: &[u8]) -> String {
    sha256_hex(bytes)
}

/// Identity of a writer: a rank of an attempt of a run.
#[derive(Clone, Debug)]
pub struct Epoch {
    /// The run's uid: if a run is deleted and created again, its attempts start at 1 again.
    pub run: String,
    pub attempt: u32,
    pub rank: u32,
}

impl Epoch {
    /// Name of its write claim.
    fn claim(&self) -> String {
        format!("{}_{}_{}", self.run, self.attempt, self.rank)
    }

    /// Whether a claim belongs to a later attempt of the same run.
    fn is_before(&self, claim: &str) -> bool {
        self.attempt_of(claim).is_some_and(|attempt| attempt > self.attempt)
    }

    /// Whether a claim belongs to an earlier attempt of the same run.
    fn is_after(&self, claim: &str) -> bool {
        self.attempt_of(claim).is_some_and(|attempt| attempt < self.attempt)
    }

    /// The attempt of a claim, if it is of the same run.
    fn attempt_of(&self, claim: &str) -> Option<u32> {
        let mut parts = claim.rsplitn(3, '_').skip(1);
        let attempt = parts.next()?.parse().ok()?;
        (parts.next()? == self.run).then_some(attempt)
    }
}

/// The part of a run's store that the trainer writes.
#[derive(Clone, Debug)]
pub struct TrainerStore {
    store: RunStore,
    /// `None`: no other process writes here, and no attempt follows.
    attempt: Option<(Epoch, Claim)>,
    patience: Patience,
}

impl TrainerStore {
    pub fn new(store: RunStore) -> Self {
        Self {
            store,
            attempt: None,
            patience: Patience::none(),
        }
    }

    /// The store in an existing folder.
    pub fn existing(dir: &Path) -> Result<Self, TrainError> {
        Ok(Self::new(RunStore::existing(dir)?))
    }

    /// An attempt writes under its own claim: the previous attempt may still be writing when it starts.
    pub fn of_attempt(store: RunStore, epoch: Epoch) -> Self {
        let claim = Claim::new(store.clone(), epoch.claim());
        Self {
            store,
            attempt: Some((epoch, claim)),
            patience: Patience::none(),
        }
    }

    /// Waits for a store that does not answer.
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    pub fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Repeats this work while the store does not answer.
    pub(super) fn retried<T>(&self, work: impl FnMut() -> Result<T, TrainError>) -> Result<T, TrainError> {
        self.patience.retry(work)
    }

    fn claims(&self) -> Result<Vec<String>, TrainError> {
        self.retried(|| Ok(wait(Claim::all(&self.store))?))
    }

    fn withdraw(&self, claim: &Claim) -> Result<(), TrainError> {
        self.retried(|| Ok(wait(claim.withdraw())?))
    }

    /// The store for reading, which needs no claim.
    pub fn records(&self) -> &RunStore {
        &self.store
    }

    /// Fences earlier attempts: they can write nothing from now on. Rank 0 calls it, then every rank
    /// [`TrainerStore::begin`].
    pub fn fence(&self) -> Result<(), TrainError> {
        let Some((epoch, _)) = &self.attempt else { return Ok(()) };
        let others = self.claims()?;
        if others.iter().any(|claim| epoch.is_before(claim)) {
            return Err(TrainError::Fenced {
                doing: "starting",
                attempt: epoch.attempt,
            });
        }
        for other in others {
            self.withdraw(&Claim::new(self.store.clone(), other))?;
        }
        Ok(())
    }

    /// Takes the claim under which this rank writes. Fails if a later attempt has taken its claims since
    /// [`TrainerStore::fence`]: that attempt could not withdraw this claim, which did not exist.
    pub fn begin(&self) -> Result<(), TrainError> {
        let Some((epoch, claim)) = &self.attempt else {
            return Ok(());
        };
        // A later attempt may withdraw the claim of a try whose answer was lost. Then its own claim is found below.
        self.retried(|| Ok(wait(claim.take())?))?;
        let others = self.claims()?;
        if others.iter().any(|other| epoch.is_before(other)) {
            self.withdraw(claim)?;
            return Err(TrainError::Fenced {
                doing: "starting",
                attempt: epoch.attempt,
            });
        }
        Ok(())
    }

    /// Fences the ranks of earlier attempts that took their claims after [`TrainerStore::fence`]. Rank 0 calls it when
    /// it has its own claim. Of two attempts that start at one time, either the earlier one sees the claim of the later
    /// one in [`TrainerStore::begin`], or the later one finds the earlier claim here.
    pub fn fence_again(&self) -> Result<(), TrainError> {
        let Some((epoch, _)) = &self.attempt else { return Ok(()) };
        for other in self.claims()? {
            if epoch.is_after(&other) {
                self.withdraw(&Claim::new(self.store.clone(), other))?;
            }
        }
        Ok(())
    }

    /// Fails if a later attempt has started.
    pub(super) fn still_ours(&self, doing: &'static str) -> Result<(), TrainError> {
        match &self.attempt {
            Some((epoch, claim)) => {
                self.retried(|| wait(claim.check(doing, "")).map_err(|error| fenced(error, doing, epoch)))
            }
            None => Ok(()),
        }
    }

    /// Writes a file atomically; replaces a file of the same name.
    pub(crate) fn put(&self, path: &str, bytes: impl Into<Bytes>) -> Result<(), TrainError> {
        let bytes: Bytes = bytes.into();
        self.retried(|| match &self.attempt {
            Some((epoch, claim)) => {
                wait(claim.replace(path, bytes.clone())).map_err(|error| fenced(error, WRITING, epoch))
            }
            None => Ok(wait(self.store.replace(path, bytes.clone()))?),
        })
    }

    /// Writes a file from these pieces atomically, and returns its checksum, computed on the way; replaces a file of
    /// the same name.
    pub(super) fn put_pieces(
        &self,
        path: &str,
        mut pieces: impl Iterator<Item = Result<Vec<u8>, TrainError>>,
    ) -> Result<Uploaded, TrainError> {
        let mut file = self.begin_file(path)?;
        pieces.try_for_each(|piece| file.write(&piece?))?;
        file.finish()
    }

    /// Begins a file, which may be too large for memory. It exists only after [`FileUpload::finish`].
    pub(super) fn begin_file(&self, path: &str) -> Result<FileUpload<'_>, TrainError> {
        match &self.attempt {
            Some((epoch, claim)) => {
                let upload =
                    self.retried(|| wait(claim.upload(path)).map_err(|error| fenced(error, WRITING, epoch)))?;
                Ok(FileUpload::Claimed(Box::new(upload), epoch))
            }
            None => {
                let upload = self.retried(|| Ok(wait(self.store.upload(path))?))?;
                Ok(FileUpload::Plain(Box::new(upload)))
            }
        }
    }

    /// Removes a published folder, its manifest first: a process that ended in between must not leave a manifest of
    /// missing files. [`TrainerStore::sweep`] removes the remaining files.
    pub(super) fn take_away(&self, folder: &str) -> Result<(), TrainError> {
        self.still_ours("removing what is old")?;
        let manifest = format!("{folder}/{}", paths::MANIFEST);
        self.retried(|| Ok(wait(self.store.delete(&manifest))?))?;
        self.retried(|| Ok(wait(self.store.delete_folder(folder))?))
    }

    /// Removes checkpoints and versions that earlier attempts did not finish.
    pub fn sweep(&self) -> Result<(), TrainError> {
        self.still_ours("tidying up")?;
        for of in [paths::CHECKPOINTS, paths::WEIGHTS] {
            for folder in self.folders(of)? {
                if !self.exists(&format!("{folder}/{}", paths::MANIFEST))? {
                    // Again: a later attempt may have finished the folder meanwhile.
                    self.still_ours("tidying up")?;
                    self.retried(|| Ok(wait(self.store.delete_folder(&folder))?))?;
                }
            }
        }
        Ok(())
    }

    pub fn exists(&self, path: &str) -> Result<bool, TrainError> {
        self.retried(|| Ok(wait(self.store.exists(path))?))
    }

    /// The length of a file, or `None` if it does not exist.
    pub(super) fn length(&self, path: &str) -> Result<Option<u64>, TrainError> {
        self.retried(|| Ok(wait(self.store.length(path))?))
    }

    pub fn read(&self, path: &str) -> Result<Bytes, TrainError> {
        self.retried(|| Ok(wait(self.store.bytes(path))?))
    }

    /// The bytes of a file, or `None` if it does not exist.
    pub(crate) fn read_if_there(&self, path: &str) -> Result<Option<Bytes>, TrainError> {
        self.retried(|| match wait(self.store.bytes(path)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    /// Writes a new file durably. Returns false if the name is taken.
    pub fn create(&self, path: &str, bytes: impl Into<Bytes>) -> Result<bool, TrainError> {
        if self.exists(path)? {
            return Ok(false);
        }
        self.put(path, bytes)?;
        Ok(true)
    }

    fn folders(&self, of: &str) -> Result<Vec<String>, TrainError> {
        let (_, folders) = self.retried(|| Ok(wait(self.store.names_in(of))?))?;
        Ok(folders.iter().map(|name| format!("{of}/{name}")).collect())
    }

    /// The manifest of every folder that has one, with the folder's name: other folders are not published. A manifest
    /// that cannot be parsed is its path and the reason in its place.
    pub(super) fn manifests<T: for<'de> Deserialize<'de>>(
        &self,
        of: &str,
    ) -> Result<Vec<(String, Result<T, DamagedFile>)>, TrainError> {
        let mut found = Vec::new();
        for folder in self.folders(of)? {
            let path = format!("{folder}/{}", paths::MANIFEST);
            let Some(bytes) = self.read_if_there(&path)? else {
                continue;
            };
            let damaged = |error: serde_json::Error| DamagedFile {
                path,
                message: error.to_string(),
            };
            let name = folder.rsplit('/').next().unwrap_or_default().to_owned();
            found.push((name, serde_json::from_slice(&bytes).map_err(damaged)));
        }
        Ok(found)
    }
}

/// A file that is not what its name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedFile {
    pub path: String,
    pub message: String,
}

/// A file on its way into the store.
pub(super) enum FileUpload<'a> {
    Claimed(Box<ClaimedUpload>, &'a Epoch),
    Plain(Box<Upload>),
}

impl FileUpload<'_> {
    /// Adds bytes. After an error the upload is not usable.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), TrainError> {
        match self {
            Self::Claimed(upload, epoch) => wait(upload.write(bytes)).map_err(|error| fenced(error, WRITING, epoch)),
            Self::Plain(upload) => Ok(wait(upload.write(bytes))?),
        }
    }

    /// Names the file and makes it durable.
    pub(super) fn finish(self) -> Result<Uploaded, TrainError> {
        match self {
            Self::Claimed(upload, epoch) => wait(upload.finish()).map_err(|error| fenced(error, WRITING, epoch)),
            Self::Plain(upload) => Ok(wait(upload.finish())?),
        }
    }
}

fn fenced(error: ClaimError, doing: &'static str, epoch: &Epoch) -> TrainError {
    match error {
        ClaimError::Store(error) => error.into(),
        ClaimError::Withdrawn { .. } => TrainError::Fenced {
            doing,
            attempt: epoch.attempt,
        },
    }
}

/// JSON in the stored form.
pub fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, TrainError> {
    serde_json::to_vec_pretty(value).map_err(|e| TrainError::Start(format!("writing JSON: {e}")))
}
