//! The part of a run's store that the trainer writes: files and folders that are there whole or not at all.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use grpo_records::paths;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::TrainError;

/// `l7` is 7; lineages are counted so that the newest is known.
pub fn lineage_number(lineage: &str) -> u32 {
    lineage.strip_prefix('l').and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Hex sha256.
pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
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
    fn folder(&self) -> String {
        format!("{}_{}_{}", self.run, self.attempt, self.rank)
    }

    /// Whether a folder belongs to a later attempt of the same run.
    fn is_before(&self, folder: &str) -> bool {
        let mut parts = folder.rsplitn(3, '_').skip(1);
        let attempt = parts.next().and_then(|attempt| attempt.parse::<u32>().ok());
        parts.next() == Some(self.run.as_str()) && attempt > Some(self.attempt)
    }
}

/// The part of a run's store that the trainer writes.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    /// None: nobody else writes here, and no attempt follows.
    epoch: Option<Epoch>,
}

impl Store {
    pub fn new(root: PathBuf) -> Self {
        Self { root, epoch: None }
    }

    /// An attempt stages under names of its own: the one before it may still be writing when it starts.
    pub fn of_attempt(root: PathBuf, epoch: Epoch) -> Self {
        Self {
            root,
            epoch: Some(epoch),
        }
    }

    /// From here on attempts before this one write nothing any more. Rank 0 calls it, then every rank [`Store::begin`].
    pub fn fence(&self) -> Result<(), TrainError> {
        let Some(epoch) = &self.epoch else { return Ok(()) };
        let folder = self.at(paths::STAGING);
        let Ok(entries) = fs::read_dir(&folder) else {
            return Ok(());
        };
        let mut others = Vec::new();
        for entry in entries {
            let path = entry.map_err(TrainError::disk("listing", &folder))?.path();
            if epoch.is_before(&name_of(&path)) {
                return Err(TrainError::Fenced {
                    doing: "starting",
                    attempt: epoch.attempt,
                });
            }
            others.push(path);
        }
        for other in others {
            fs::remove_dir_all(&other).map_err(TrainError::disk("removing the unfinished", &other))?;
        }
        Ok(())
    }

    /// Makes the folder in which this rank writes.
    pub fn begin(&self) -> Result<(), TrainError> {
        let Some(own) = self.own_folder() else { return Ok(()) };
        fs::create_dir_all(&own).map_err(TrainError::disk("making", &own))
    }

    fn own_folder(&self) -> Option<PathBuf> {
        let epoch = self.epoch.as_ref()?;
        Some(self.at(paths::STAGING).join(epoch.folder()))
    }

    /// Refuses where another attempt has followed.
    pub(super) fn still_ours(&self, doing: &'static str) -> Result<(), TrainError> {
        match (&self.epoch, self.own_folder()) {
            (Some(epoch), Some(own)) if !own.exists() => Err(TrainError::Fenced {
                doing,
                attempt: epoch.attempt,
            }),
            _ => Ok(()),
        }
    }

    /// Where a target is written before it has its name.
    fn staged(&self, target: &Path) -> Result<PathBuf, TrainError> {
        match self.own_folder() {
            Some(own) => Ok(own.join(name_of(target))),
            None => Ok(parent(target)?.join(format!(".{}-{}", std::process::id(), name_of(target)))),
        }
    }

    /// Gives what is staged its name. A fenced rank has nothing staged any more.
    fn name(&self, staged: &Path, target: &Path) -> Result<(), TrainError> {
        self.still_ours("publishing")?;
        fs::rename(staged, target).map_err(TrainError::disk("publishing", target))?;
        sync_folder(parent(target)?)
    }

    /// Writes a file whole, or not at all; what had its name is replaced.
    pub(super) fn put_file(&self, target: &Path, bytes: &[u8]) -> Result<(), TrainError> {
        self.still_ours("writing")?;
        let folder = parent(target)?;
        fs::create_dir_all(folder).map_err(TrainError::disk("making", folder))?;
        let staged = self.staged(target)?;
        let written = write_synced(&staged, bytes).and_then(|()| self.name(&staged, target));
        if written.is_err() {
            // Room for the next try; the error is the one to report.
            let _ = fs::remove_file(&staged);
        }
        written
    }

    /// Removes a published folder. Its name goes first: whoever ended in between would leave a manifest of files that
    /// are not there. What is left then is removed with what else has no name.
    pub(crate) fn take_away(&self, folder: &Path) -> Result<(), TrainError> {
        self.still_ours("removing what is old")?;
        let staged = self.staged(folder)?;
        let unnamed = staged.with_file_name(format!("{}.old", name_of(&staged)));
        fs::rename(folder, &unnamed).map_err(TrainError::disk("removing the old", folder))?;
        sync_folder(parent(folder)?)?;
        fs::remove_dir_all(&unnamed).map_err(TrainError::disk("removing the old", &unnamed))
    }

    /// Removes checkpoints that attempts before this one began and did not finish.
    pub fn sweep(&self) -> Result<(), TrainError> {
        self.still_ours("tidying up")?;
        let folder = self.at(paths::CHECKPOINTS);
        let Ok(entries) = fs::read_dir(&folder) else {
            return Ok(());
        };
        for entry in entries {
            let path = entry.map_err(TrainError::disk("listing", &folder))?.path();
            if path.is_dir() && !path.join(paths::MANIFEST).exists() {
                fs::remove_dir_all(&path).map_err(TrainError::disk("removing the unfinished", &path))?;
            }
        }
        Ok(())
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub fn read(&self, path: &str) -> Result<Vec<u8>, TrainError> {
        let file = self.at(path);
        fs::read(&file).map_err(TrainError::disk("reading", &file))
    }

    /// Writes a file durably under a name that it did not have. Answers false where the name is taken.
    pub fn create(&self, path: &str, bytes: &[u8]) -> Result<bool, TrainError> {
        let file = self.at(path);
        if file.exists() {
            return Ok(false);
        }
        self.put_file(&file, bytes)?;
        Ok(true)
    }

    pub(super) fn manifests<T: for<'de> Deserialize<'de>>(&self, folder: &str) -> Result<Vec<T>, TrainError> {
        let folder = self.at(folder);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(TrainError::disk("listing", &folder)(e)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(TrainError::disk("listing", &folder))?;
            // A folder that was left half written is not a version.
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            let file = entry.path().join(paths::MANIFEST);
            if let Ok(bytes) = fs::read(&file) {
                let damaged = |e: serde_json::Error| TrainError::Damaged {
                    path: file.display().to_string(),
                    message: e.to_string(),
                };
                found.push(serde_json::from_slice(&bytes).map_err(damaged)?);
            }
        }
        Ok(found)
    }

    /// Writes a folder whole, or not at all.
    pub(super) fn put_folder(&self, target: &Path, files: &[(String, Vec<u8>)]) -> Result<(), TrainError> {
        self.still_ours("publishing")?;
        let above = parent(target)?;
        fs::create_dir_all(above).map_err(TrainError::disk("making", above))?;
        let staged = self.staged(target)?;
        let written = (|| {
            match fs::create_dir(&staged) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(TrainError::disk("making", &staged)(error));
                }
                _ => {}
            }
            for (name, bytes) in files {
                write_synced(&staged.join(name), bytes)?;
            }
            sync_folder(&staged)?;
            self.name(&staged, target)
        })();
        if written.is_err() {
            // Room for the next try; the error below is the one to report.
            let _ = fs::remove_dir_all(&staged);
        }
        written
    }
}

/// JSON as it is stored.
pub fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, TrainError> {
    serde_json::to_vec_pretty(value).map_err(|e| TrainError::Start(format!("writing JSON: {e}")))
}

fn parent(path: &Path) -> Result<&Path, TrainError> {
    path.parent()
        .ok_or_else(|| TrainError::Start(format!("{} has no folder", path.display())))
}

pub(super) fn name_of(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let mut file = File::create(path).map_err(TrainError::disk("creating", path))?;
    file.write_all(bytes).map_err(TrainError::disk("writing", path))?;
    file.sync_all().map_err(TrainError::disk("syncing", path))
}

fn sync_folder(path: &Path) -> Result<(), TrainError> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(TrainError::disk("syncing", path))
}
