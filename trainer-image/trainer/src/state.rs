//! What survives: checkpoints to go on from, and weights versions that engines pull.
//!
//! Both are written into a folder without a name of theirs, synced, and renamed, the manifest last: a name either holds everything or does
//! not exist. A checkpoint's shards are flat, so they are read back at another world size by putting them behind each other.
//!
//! An attempt begins by removing the folders in which those before it write: a rank of an earlier one that is still alive somewhere finds
//! nothing left to rename, and ends.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use grpo_policy::weights::{self, Weights};
use grpo_records::paths;
use grpo_records::weights::{WeightsFile, WeightsManifest};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tch::{Device, Tensor};

use crate::error::TrainError;
use crate::sharded::{Sharded, padded};

/// Weights versions kept beside the initial one: what a replica that boots may still ask for.
pub const WEIGHTS_KEPT: usize = 8;

/// What a version's folder is to those who load it.
pub enum Form<'a> {
    /// A model: config and tokenizer are those of this directory.
    Model(&'a Path),
    /// An adapter to the model that the run began with, and its `adapter_config.json`.
    Adapter(serde_json::Value),
}

impl Form<'_> {
    fn file(&self) -> &'static str {
        match self {
            Self::Model(_) => "model.safetensors",
            Self::Adapter(_) => "adapter_model.safetensors",
        }
    }

    /// The other files, as far as there are any.
    fn companions(&self) -> Result<Vec<(String, Vec<u8>)>, TrainError> {
        const OF_A_MODEL: [&str; 4] = [
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        Ok(match self {
            Self::Adapter(config) => vec![("adapter_config.json".to_owned(), json(config)?)],
            Self::Model(dir) => OF_A_MODEL
                .into_iter()
                .filter_map(|name| Some((name.to_owned(), fs::read(dir.join(name)).ok()?)))
                .collect(),
        })
    }
}

/// `checkpoints/<lineage>-s<step>/manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointManifest {
    pub lineage: String,
    pub step: u32,
    /// Optimizer steps taken.
    pub updates: u64,
    pub world: u32,
    /// PEFT's `adapter_config.json` where it is an adapter that is trained: what the checkpoint holds then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<serde_json::Value>,
    /// Files by name with their checksums.
    pub files: BTreeMap<String, String>,
}

/// One rank's state at a step, apart from the model, which may train on meanwhile. It takes as much memory as the state itself.
pub struct Snapshot {
    head: CheckpointManifest,
    /// Of those that share the state.
    rank: u32,
    /// Another copy of the state is written by others.
    is_written: bool,
    /// Flat, fp32: values and both moments of every unit.
    tensors: Vec<(String, Tensor)>,
}

impl Snapshot {
    pub fn of(model: &Sharded, lineage: &str, step: u32) -> Self {
        let named = model.shards.iter().enumerate().flat_map(|(index, shard)| {
            let parts = [
                ("values", &shard.values),
                ("first", &shard.first_moment),
                ("second", &shard.second_moment),
            ];
            parts.map(|(name, tensor)| (format!("{index:05}.{name}"), on_the_host(tensor)))
        });
        let is_written = model.copy() == 0;
        Self {
            tensors: named.filter(|_| is_written).collect(),
            rank: model.shard_group().rank(),
            is_written,
            head: CheckpointManifest::head(model, lineage, step),
        }
    }

    /// What a checkpoint of it is sealed with, but for its files.
    pub fn head(&self) -> &CheckpointManifest {
        &self.head
    }
}

impl CheckpointManifest {
    fn head(model: &Sharded, lineage: &str, step: u32) -> Self {
        Self {
            lineage: lineage.to_owned(),
            step,
            updates: model.updates,
            world: model.shard_group().world(),
            adapter: model.config.lora.as_ref().map(|lora| lora.peft_config("")),
            files: BTreeMap::new(),
        }
    }
}

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
    fn still_ours(&self, doing: &'static str) -> Result<(), TrainError> {
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
    fn put_file(&self, target: &Path, bytes: &[u8]) -> Result<(), TrainError> {
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

    /// Every published version.
    pub fn versions(&self) -> Result<Vec<WeightsManifest>, TrainError> {
        self.manifests(paths::WEIGHTS)
    }

    /// Every complete checkpoint.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointManifest>, TrainError> {
        self.manifests(paths::CHECKPOINTS)
    }

    fn manifests<T: for<'de> Deserialize<'de>>(&self, folder: &str) -> Result<Vec<T>, TrainError> {
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

    /// Publishes `weights`, in the form that engines load, and answers the manifest with its checksum. Publishing the same version again is a no-op; other weights
    /// under a published name are refused, because tokens were sampled from what the name meant.
    pub fn publish(
        &self,
        weights: &Weights,
        form: Form<'_>,
        lineage: &str,
        step: u32,
        parent_version: Option<String>,
    ) -> Result<(WeightsManifest, String), TrainError> {
        let version = paths::weights_version(lineage, step);
        let tensors_sha256 = weights::checksum(weights);
        let target = self.at(&paths::weights(&version));
        if let Ok(bytes) = fs::read(target.join(paths::MANIFEST)) {
            let damaged = |message: String| TrainError::Damaged {
                path: target.display().to_string(),
                message,
            };
            let manifest: WeightsManifest = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
            return match manifest.tensors_sha256 == tensors_sha256 {
                true => Ok((manifest, sha256(&bytes))),
                false => Err(damaged("other weights were published under this name".to_owned())),
            };
        }
        let mut files = vec![(form.file().to_owned(), weights::to_safetensors(weights)?)];
        files.extend(form.companions()?);
        let manifest = WeightsManifest {
            version: version.clone(),
            lineage: lineage.to_owned(),
            step,
            parent: parent_version,
            files: files
                .iter()
                .map(|(name, bytes)| WeightsFile {
                    name: name.clone(),
                    bytes: bytes.len() as u64,
                    sha256: sha256(bytes),
                })
                .collect(),
            tensors_sha256,
        };
        let text = json(&manifest)?;
        let checksum = sha256(&text);
        files.push((paths::MANIFEST.to_owned(), text));
        self.put_folder(&target, &files)?;
        Ok((manifest, checksum))
    }

    /// Writes a folder whole, or not at all.
    fn put_folder(&self, target: &Path, files: &[(String, Vec<u8>)]) -> Result<(), TrainError> {
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

    /// Writes this rank's part. Every rank calls it, then rank 0 calls [`Store::seal`].
    pub fn write_shards(&self, model: &Sharded, lineage: &str, step: u32) -> Result<(), TrainError> {
        self.write_snapshot(&Snapshot::of(model, lineage, step))
    }

    /// The same of a state that was put aside.
    pub fn write_snapshot(&self, snapshot: &Snapshot) -> Result<(), TrainError> {
        if !snapshot.is_written {
            return Ok(());
        }
        let malformed = |e: safetensors::SafeTensorError| TrainError::Start(format!("packing a checkpoint: {e}"));
        let tensors = snapshot.tensors.iter();
        let tensors = tensors
            .map(|(name, tensor)| {
                let values = Vec::<f32>::try_from(tensor)?;
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                Ok((name, bytes, values.len()))
            })
            .collect::<Result<Vec<_>, TrainError>>()?;
        let views = tensors
            .iter()
            .map(|(name, bytes, n)| {
                Ok((
                    name.as_str(),
                    TensorView::new(Dtype::F32, vec![*n], bytes).map_err(malformed)?,
                ))
            })
            .collect::<Result<Vec<_>, TrainError>>()?;
        let bytes = safetensors::serialize(views, None).map_err(malformed)?;
        let head = &snapshot.head;
        let path = paths::checkpoint_rank(&head.lineage, head.step, snapshot.rank, head.world);
        self.put_file(&self.at(&path), &bytes)
    }

    /// Makes a checkpoint complete, and removes all but the newest `keep`.
    pub fn seal(&self, model: &Sharded, lineage: &str, step: u32, keep: usize) -> Result<(), TrainError> {
        self.seal_snapshot(CheckpointManifest::head(model, lineage, step), keep)
    }

    /// The same of states that were put aside under this head.
    pub fn seal_snapshot(&self, head: CheckpointManifest, keep: usize) -> Result<(), TrainError> {
        let (lineage, step) = (head.lineage.clone(), head.step);
        let mut files = BTreeMap::new();
        for rank in 0..head.world {
            let path = paths::checkpoint_rank(&lineage, step, rank, head.world);
            files.insert(name_of(&self.at(&path)), sha256(&self.read(&path)?));
        }
        let manifest = CheckpointManifest { files, ..head };
        // A checkpoint that was found damaged, and passed over, may have left its manifest under this name.
        self.put_file(&self.at(&paths::checkpoint_manifest(&lineage, step)), &json(&manifest)?)?;
        let mut all = self.checkpoints()?;
        all.sort_by_key(|c| (lineage_number(&c.lineage), c.step));
        for old in all.iter().rev().skip(keep.max(1)) {
            let folder = self.at(&paths::checkpoint(&old.lineage, old.step));
            fs::remove_dir_all(&folder).map_err(TrainError::disk("removing the old checkpoint", &folder))?;
        }
        Ok(())
    }

    /// Removes old versions: kept are the newest, and step 0.
    pub fn prune_versions(&self) -> Result<(), TrainError> {
        self.still_ours("removing old versions")?;
        let mut all = self.versions()?;
        all.sort_by_key(|v| (lineage_number(&v.lineage), v.step));
        for old in all.iter().rev().skip(WEIGHTS_KEPT).filter(|version| version.step > 0) {
            let folder = self.at(&paths::weights(&old.version));
            fs::remove_dir_all(&folder).map_err(TrainError::disk("removing the old version", &folder))?;
        }
        Ok(())
    }

    /// The newest checkpoint whose every file is there with its checksum.
    pub fn newest_checkpoint(&self) -> Result<Option<CheckpointManifest>, TrainError> {
        let mut all = self.checkpoints()?;
        all.sort_by_key(|c| (lineage_number(&c.lineage), c.step));
        Ok(all.into_iter().rev().find(|checkpoint| {
            checkpoint.files.iter().all(|(name, checksum)| {
                let path = format!("{}/{name}", paths::checkpoint(&checkpoint.lineage, checkpoint.step));
                self.read(&path).is_ok_and(|bytes| sha256(&bytes) == *checksum)
            })
        }))
    }

    /// Puts a checkpoint's state into the model, whatever world size wrote it.
    pub fn load(&self, model: &mut Sharded, checkpoint: &CheckpointManifest) -> Result<(), TrainError> {
        let parts = (0..checkpoint.world)
            .map(|rank| {
                self.read(&paths::checkpoint_rank(
                    &checkpoint.lineage,
                    checkpoint.step,
                    rank,
                    checkpoint.world,
                ))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let path = paths::checkpoint(&checkpoint.lineage, checkpoint.step);
        let damaged = |message: String| TrainError::Damaged {
            path: path.clone(),
            message,
        };
        let parts = parts
            .iter()
            .map(|bytes| SafeTensors::deserialize(bytes).map_err(|e| damaged(e.to_string())))
            .collect::<Result<Vec<_>, _>>()?;
        let head = CheckpointManifest::head(model, "", 0);
        if head.adapter != checkpoint.adapter {
            let words = |adapter: &Option<serde_json::Value>| {
                adapter.as_ref().map_or("all weights".to_owned(), ToString::to_string)
            };
            let (held, wanted) = (words(&checkpoint.adapter), words(&head.adapter));
            return Err(damaged(format!("it holds {held}, but trained are {wanted}")));
        }
        let group = model.shard_group();
        let (rank, world) = (group.rank() as usize, group.world() as usize);
        for (index, shard) in model.shards.iter_mut().enumerate() {
            let numel = shard.unit.numel();
            let part = padded(&shard.unit, world) / world;
            let whole = |name: &str| {
                let mut flat = Vec::with_capacity(numel);
                for tensors in &parts {
                    let tensor = tensors
                        .tensor(&format!("{index:05}.{name}"))
                        .map_err(|e| damaged(e.to_string()))?;
                    let data = tensor.data().chunks_exact(4);
                    flat.extend(data.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
                }
                if flat.len() < numel {
                    return Err(damaged(format!("unit {index} holds {} values of {numel}", flat.len())));
                }
                flat.truncate(numel);
                flat.resize(part * world, 0.0);
                Ok(Tensor::from_slice(&flat[part * rank..part * (rank + 1)]))
            };
            shard.values = whole("values")?.to_device(shard.values.device());
            shard.first_moment = whole("first")?.to_device(shard.first_moment.device());
            shard.second_moment = whole("second")?.to_device(shard.second_moment.device());
        }
        model.updates = checkpoint.updates;
        Ok(())
    }
}

/// A copy of its own: a tensor that is on the host is not copied by moving it there.
fn on_the_host(tensor: &Tensor) -> Tensor {
    match tensor.device() {
        Device::Cpu => tensor.copy(),
        _ => tensor.to_device(Device::Cpu),
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

fn name_of(path: &Path) -> String {
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
