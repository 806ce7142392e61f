//! The part of a run's store that the trainer writes: files, and folders that count when their manifest is there.

use std::path::Path;

use bytes::Bytes;
use grpo_records::claim::{Claim, ClaimError, ClaimedUpload};
use grpo_records::store::{StoreError, Upload, Uploaded, sha256_hex, wait};
use grpo_records::{RunStore, paths};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;

pub use grpo_records::paths::lineage_number;

const WRITING: &str = "writing";

/// Hex sha256.
pub fn sha256(bytes: &[u8]) -> String {
    sha256_hex(bytes)
}

/// Who writes: a rank of an attempt of a run.
#[derive(Clone, Debug)]
pub struct Epoch {
    /// The run's uid: attempts of a run that is made again count from 1 again.
    pub run: String,
    pub attempt: u32,
    pub rank: u32,
}

impl Epoch {
    /// Names its claim.
    fn claim(&self) -> String {
        format!("{}_{}_{}", self.run, self.attempt, self.rank)
    }

    /// Whether a claim is that of a later attempt of the same run.
    fn is_before(&self, claim: &str) -> bool {
        let mut parts = claim.rsplitn(3, '_').skip(1);
        let attempt = parts.next().and_then(|attempt| attempt.parse::<u32>().ok());
        parts.next() == Some(self.run.as_str()) && attempt > Some(self.attempt)
    }
}

/// The part of a run's store that the trainer writes.
#[derive(Clone, Debug)]
pub struct TrainerStore {
    store: RunStore,
    /// `None`: no other process writes here, and no attempt follows.
    attempt: Option<(Epoch, Claim)>,
}

impl TrainerStore {
    pub fn new(store: RunStore) -> Self {
        Self { store, attempt: None }
    }

    /// The store in a folder that is there.
    pub fn existing(dir: &Path) -> Result<Self, TrainError> {
        Ok(Self::new(RunStore::existing(dir)?))
    }

    /// An attempt writes under a claim of its own: the one before it may still be writing when it starts.
    pub fn of_attempt(store: RunStore, epoch: Epoch) -> Self {
        let claim = Claim::new(store.clone(), epoch.claim());
        Self {
            store,
            attempt: Some((epoch, claim)),
        }
    }

    /// What may be read, by any process.
    pub fn records(&self) -> &RunStore {
        &self.store
    }

    /// From here on attempts before this one write nothing any more. Rank 0 calls it, then every rank
    /// [`TrainerStore::begin`].
    pub fn fence(&self) -> Result<(), TrainError> {
        let Some((epoch, _)) = &self.attempt else { return Ok(()) };
        let others = wait(Claim::all(&self.store))?;
        if others.iter().any(|claim| epoch.is_before(claim)) {
            return Err(TrainError::Fenced {
                doing: "starting",
                attempt: epoch.attempt,
            });
        }
        for other in others {
            wait(Claim::new(self.store.clone(), other).withdraw())?;
        }
        Ok(())
    }

    /// Takes the claim under which this rank writes.
    pub fn begin(&self) -> Result<(), TrainError> {
        match &self.attempt {
            Some((_, claim)) => Ok(wait(claim.take())?),
            None => Ok(()),
        }
    }

    /// Refuses where another attempt has followed.
    pub(super) fn still_ours(&self, doing: &'static str) -> Result<(), TrainError> {
        match &self.attempt {
            Some((epoch, claim)) => wait(claim.check(doing, "")).map_err(|error| fenced(error, doing, epoch)),
            None => Ok(()),
        }
    }

    /// Writes a file whole, or not at all; what had its name is replaced.
    pub(super) fn put(&self, path: &str, bytes: impl Into<Bytes>) -> Result<(), TrainError> {
        match &self.attempt {
            Some((epoch, claim)) => {
                wait(claim.replace(path, bytes.into())).map_err(|error| fenced(error, "writing", epoch))
            }
            None => Ok(wait(self.store.replace(path, bytes.into()))?),
        }
    }

    /// Writes a file of these pieces, whole, or not at all, and answers its checksum, which was made on the way; what
    /// had its name is replaced.
    pub(super) fn put_pieces(
        &self,
        path: &str,
        mut pieces: impl Iterator<Item = Result<Vec<u8>, TrainError>>,
    ) -> Result<Uploaded, TrainError> {
        let mut file = self.begin_file(path)?;
        pieces.try_for_each(|piece| file.write(&piece?))?;
        file.finish()
    }

    /// Begins a file, which may be too large for memory. Without [`FileUpload::finish`] it never was.
    pub(super) fn begin_file(&self, path: &str) -> Result<FileUpload<'_>, TrainError> {
        Ok(match &self.attempt {
            Some((epoch, claim)) => {
                let upload = wait(claim.upload(path)).map_err(|error| fenced(error, WRITING, epoch))?;
                FileUpload::Claimed(Box::new(upload), epoch)
            }
            None => FileUpload::Plain(Box::new(wait(self.store.upload(path))?)),
        })
    }

    /// Removes a published folder. Its manifest goes first: a process that ended in between would leave a manifest of
    /// files that are not there. What is left then is removed by [`TrainerStore::sweep`].
    pub(super) fn take_away(&self, folder: &str) -> Result<(), TrainError> {
        self.still_ours("removing what is old")?;
        wait(async {
            self.store.delete(&format!("{folder}/{}", paths::MANIFEST)).await?;
            self.store.delete_folder(folder).await
        })?;
        Ok(())
    }

    /// Removes checkpoints and versions that attempts before this one began and did not finish.
    pub fn sweep(&self) -> Result<(), TrainError> {
        self.still_ours("tidying up")?;
        for of in [paths::CHECKPOINTS, paths::WEIGHTS] {
            for folder in self.folders(of)? {
                if !wait(self.store.exists(&format!("{folder}/{}", paths::MANIFEST)))? {
                    wait(self.store.delete_folder(&folder))?;
                }
            }
        }
        Ok(())
    }

    pub fn exists(&self, path: &str) -> Result<bool, TrainError> {
        Ok(wait(self.store.exists(path))?)
    }

    pub fn read(&self, path: &str) -> Result<Bytes, TrainError> {
        Ok(wait(self.store.bytes(path))?)
    }

    /// The bytes of a file, or nothing where it is not there.
    pub(crate) fn read_if_there(&self, path: &str) -> Result<Option<Bytes>, TrainError> {
        match wait(self.store.bytes(path)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a file durably under a name that it did not have. Answers false where the name is taken.
    pub fn create(&self, path: &str, bytes: impl Into<Bytes>) -> Result<bool, TrainError> {
        if self.exists(path)? {
            return Ok(false);
        }
        self.put(path, bytes)?;
        Ok(true)
    }

    fn folders(&self, of: &str) -> Result<Vec<String>, TrainError> {
        let (_, folders) = wait(self.store.names_in(of))?;
        Ok(folders.iter().map(|name| format!("{of}/{name}")).collect())
    }

    /// The manifest of every folder that has one: without it nothing was published.
    pub(super) fn manifests<T: for<'de> Deserialize<'de>>(&self, of: &str) -> Result<Vec<T>, TrainError> {
        let mut found = Vec::new();
        for folder in self.folders(of)? {
            let path = format!("{folder}/{}", paths::MANIFEST);
            let Some(bytes) = self.read_if_there(&path)? else {
                continue;
            };
            let damaged = |e: serde_json::Error| TrainError::Damaged {
                path,
                message: e.to_string(),
            };
            found.push(serde_json::from_slice(&bytes).map_err(damaged)?);
        }
        Ok(found)
    }
}

/// A file on its way into the store.
pub(super) enum FileUpload<'a> {
    Claimed(Box<ClaimedUpload>, &'a Epoch),
    Plain(Box<Upload>),
}

impl FileUpload<'_> {
    /// Adds bytes. After an error the upload is of no use.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), TrainError> {
        match self {
            Self::Claimed(upload, epoch) => wait(upload.write(bytes)).map_err(|error| fenced(error, WRITING, epoch)),
            Self::Plain(upload) => Ok(wait(upload.write(bytes))?),
        }
    }

    /// The file has its name and is durable when this returns.
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

/// JSON as it is stored.
pub fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, TrainError> {
    serde_json::to_vec_pretty(value).map_err(|e| TrainError::Start(format!("writing JSON: {e}")))
}
