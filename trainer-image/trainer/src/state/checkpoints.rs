//! Checkpoints: each rank writes its state at a step, rank 0 seals them when all files are written, and a trainer of
//! any world size reads them back.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::resume_unwind;

use grpo_model::weights::{Precision, Unit};
use grpo_native::gpu_wait::wait_for;
use grpo_records::paths;
use grpo_records::store::{StoreError, Uploaded, wait};
use safetensors::tensor::SafeTensors;
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use super::store::{DamagedFile, TrainerStore, json, lineage_number, sha256};
use crate::collect::PIECE;
use crate::error::TrainError;
use crate::shard::padded;
use crate::sharded::Sharded;

/// Files of a checkpoint that are read concurrently, each in a stream of its own.
const READ_AT_ONCE: usize = 16;

/// Names of a unit's tensors in a rank's file, after the unit's number: values, then AdamW's moments.
const STATES: [&str; 3] = ["values", "first", "second"];

/// `checkpoints/<lineage>-s<step>/manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointManifest {
    pub lineage: String,
    pub step: u32,
    /// Optimizer steps taken.
    pub updates: u64,
    pub world: u32,
    /// PEFT's `adapter_config.json` if an adapter is trained; the checkpoint then holds the adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<serde_json::Value>,
    /// Files by name with their checksums.
    pub files: BTreeMap<String, String>,
}

/// A rank's written part of a checkpoint: the checksum of its file, or zeros if another rank writes the same part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    digest: [u8; 32],
}

impl Written {
    /// The parts of all ranks, by rank, or `None` until all have written. Every rank must call it, with `None` while it
    /// still writes.
    pub fn on_all_ranks(own: Option<Self>, model: &Sharded) -> Result<Option<Vec<Self>>, TrainError> {
        let (world, rank) = (model.group.world() as usize, model.group.rank() as usize);
        // For each rank, a flag for "written" and the digest's bytes: every rank fills its own places.
        let mut numbers = vec![0.0; 33 * world];
        if let Some(own) = own {
            numbers[33 * rank] = 1.0;
            for (place, byte) in numbers[33 * rank + 1..].iter_mut().zip(own.digest) {
                *place = byte.into();
            }
        }
        let numbers = model.sum(&numbers)?;
        let of_rank = |numbers: &[f64]| {
            let mut digest = [0; 32];
            for (byte, number) in digest.iter_mut().zip(&numbers[1..]) {
                *byte = *number as u8;
            }
            (numbers[0] > 0.0).then_some(Self { digest })
        };
        Ok(numbers.chunks_exact(33).map(of_rank).collect())
    }
}

/// A copy of one rank's state at a step, so that the model can train on. It takes as much memory as the state itself.
pub struct Snapshot {
    head: CheckpointManifest,
    /// Rank among those that share the state.
    rank: u32,
    /// Whether this rank writes: only one replica of the state is written.
    is_written: bool,
    /// Flat, fp32: values and both moments of every unit.
    tensors: Vec<(String, Tensor)>,
}

impl Snapshot {
    pub fn of(model: &Sharded, lineage: &str, step: u32) -> Self {
        let named = model.shards.iter().enumerate().flat_map(|(index, shard)| {
            let parts = [&shard.values, &shard.first_moment, &shard.second_moment].into_iter();
            let named = STATES.iter().zip(parts);
            named.map(move |(name, tensor)| (format!("{index:05}.{name}"), on_the_host(tensor)))
        });
        let is_written = model.replica() == 0;
        Self {
            tensors: named.filter(|_| is_written).collect(),
            rank: model.shard_group().rank(),
            is_written,
            head: CheckpointManifest::head(model, lineage, step),
        }
    }

    /// The manifest of its checkpoint, without the files.
    pub fn head(&self) -> &CheckpointManifest {
        &self.head
    }

    /// The header of a safetensors file: the list of tensors, padded so that their data begins at a multiple of eight.
    fn file_header(&self) -> Vec<u8> {
        let mut entries = serde_json::Map::new();
        let mut begin = 0;
        for (name, tensor) in &self.tensors {
            let end = begin + 4 * tensor.numel();
            let entry = serde_json::json!({"dtype": "F32", "shape": [tensor.numel()], "data_offsets": [begin, end]});
            entries.insert(name.clone(), entry);
            begin = end;
        }
        let mut text = serde_json::Value::Object(entries).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        [&(text.len() as u64).to_le_bytes()[..], &text].concat()
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

impl TrainerStore {
    /// Every complete checkpoint. One whose manifest is damaged is left out, as one with a damaged file is later: an
    /// older checkpoint takes its place.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointManifest>, TrainError> {
        let readable = |(_, manifest): (String, Result<CheckpointManifest, DamagedFile>)| match manifest {
            Ok(manifest) => Some(manifest),
            Err(DamagedFile { path, message }) => {
                tracing::warn!("{path} is damaged ({message}): the checkpoint is left out");
                None
            }
        };
        let manifests = self.manifests(paths::CHECKPOINTS)?;
        Ok(manifests.into_iter().filter_map(readable).collect())
    }

    /// Writes this rank's part. Every rank calls it, then rank 0 calls [`TrainerStore::seal`] with the results of all
    /// ranks.
    pub fn write_shards(&self, model: &Sharded, lineage: &str, step: u32) -> Result<Written, TrainError> {
        self.write_snapshot(&Snapshot::of(model, lineage, step))
    }

    /// Writes a copied state. Memory holds the bytes of [`PIECE`] of its values at a time.
    pub fn write_snapshot(&self, snapshot: &Snapshot) -> Result<Written, TrainError> {
        if !snapshot.is_written {
            return Ok(Written::default());
        }
        let head = &snapshot.head;
        let path = paths::checkpoint_rank(&head.lineage, head.step, snapshot.rank, head.world);
        // The copy stays in memory, so the file can be written again from its beginning.
        let Uploaded { sha256, .. } = self.retried(|| {
            let tensors = snapshot
                .tensors
                .iter()
                .flat_map(|(_, tensor)| tensor.split(PIECE as i64, 0));
            let tensors = tensors.map(|piece| {
                let values = Vec::<f32>::try_from(piece)?;
                Ok(Precision::F32.encoded(&values))
            });
            let pieces = std::iter::once(Ok(snapshot.file_header())).chain(tensors);
            self.put_pieces(&path, pieces)
        })?;
        let mut digest = [0; 32];
        hex::decode_to_slice(&sha256, &mut digest).map_err(|error| {
            TrainError::Start(format!("the checksum {sha256} of {path} is not hexadecimal: {error}"))
        })?;
        Ok(Written { digest })
    }

    /// Makes a checkpoint complete, and removes all but the newest `keep`. `written`: results of all ranks, by rank.
    pub fn seal(
        &self,
        model: &Sharded,
        lineage: &str,
        step: u32,
        written: &[Written],
        keep: usize,
    ) -> Result<(), TrainError> {
        self.seal_snapshot(CheckpointManifest::head(model, lineage, step), written, keep)
    }

    /// Seals copied states that have this head.
    pub fn seal_snapshot(&self, head: CheckpointManifest, written: &[Written], keep: usize) -> Result<(), TrainError> {
        let (lineage, step) = (head.lineage.clone(), head.step);
        // The first ranks have the written replica of the state. The files are not read again: if a disk has changed
        // them since, the checksum fails.
        let file = |(rank, written): (u32, &Written)| {
            let path = paths::checkpoint_rank(&lineage, step, rank, head.world);
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            (name, hex::encode(written.digest))
        };
        let files = (0..head.world).zip(written).map(file).collect();
        let manifest = CheckpointManifest { files, ..head };
        // A damaged checkpoint, which was skipped, may have left its manifest under this name.
        self.put(&paths::checkpoint_manifest(&lineage, step), json(&manifest)?)?;
        let mut all = self.checkpoints()?;
        all.sort_by_key(|c| (lineage_number(&c.lineage), c.step));
        for old in all.iter().rev().skip(keep.max(1)) {
            self.take_away(&paths::checkpoint(&old.lineage, old.step))?;
        }
        Ok(())
    }

    /// The newest checkpoint with all files and matching checksums.
    pub fn newest_checkpoint(&self) -> Result<Option<CheckpointManifest>, TrainError> {
        self.newest_checkpoint_where(|_| true)
    }

    /// The newest complete checkpoint among those that are `wanted`.
    pub fn newest_checkpoint_where(
        &self,
        wanted: impl Fn(&CheckpointManifest) -> bool,
    ) -> Result<Option<CheckpointManifest>, TrainError> {
        let mut all = self.checkpoints()?;
        all.retain(wanted);
        all.sort_by_key(|c| (lineage_number(&c.lineage), c.step));
        for checkpoint in all.into_iter().rev() {
            if self.is_whole(&checkpoint)? {
                return Ok(Some(checkpoint));
            }
        }
        Ok(None)
    }

    /// Its files are read concurrently: meanwhile the other ranks wait, and one after the other the files of a large
    /// model took longer than a busy rank is waited for.
    fn is_whole(&self, checkpoint: &CheckpointManifest) -> Result<bool, TrainError> {
        let folder = paths::checkpoint(&checkpoint.lineage, checkpoint.step);
        let files: Vec<(&String, &String)> = checkpoint.files.iter().collect();
        for files in files.chunks(READ_AT_ONCE) {
            let whole = std::thread::scope(|scope| {
                let mut reading = Vec::new();
                for &(name, wanted) in files {
                    let path = format!("{folder}/{name}");
                    reading.push(scope.spawn(move || self.is_whole_file(&path, wanted)));
                }
                let read = reading
                    .into_iter()
                    .map(|file| file.join().unwrap_or_else(|panic| resume_unwind(panic)));
                read.collect::<Result<Vec<bool>, TrainError>>()
            })?;
            if whole.contains(&false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A file that cannot be read now may be readable later: an error, not damage.
    fn is_whole_file(&self, path: &str, wanted: &str) -> Result<bool, TrainError> {
        let found = self.retried(|| match wait(self.records().checksum(path)) {
            Ok(found) => Ok(Some(found)),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        })?;
        let whole = found.as_deref() == Some(wanted);
        if !whole {
            tracing::warn!("{path} is missing or damaged: the checkpoint is left out");
        }
        Ok(whole)
    }

    /// Loads a checkpoint's state into the model, for any world size that wrote it. Memory holds one of its files and a
    /// copy of one tensor at a time, and files without data of this rank are not read: a rank that could hold its state
    /// in training can also load it. After an error the model is not usable.
    pub fn load(&self, model: &mut Sharded, checkpoint: &CheckpointManifest) -> Result<(), TrainError> {
        let CheckpointManifest { lineage, step, .. } = checkpoint;
        let damaged = |message: String| TrainError::Damaged {
            path: paths::checkpoint(lineage, *step),
            message,
        };
        let head = CheckpointManifest::head(model, "", 0);
        if head.adapter != checkpoint.adapter {
            let words = |adapter: &Option<serde_json::Value>| {
                adapter.as_ref().map_or("all weights".to_owned(), ToString::to_string)
            };
            let (held, wanted) = (words(&checkpoint.adapter), words(&head.adapter));
            return Err(damaged(format!("it holds {held}, but trained are {wanted}")));
        }
        let (rank, world) = (model.shard_group().rank(), model.shard_group().world());
        for from in 0..checkpoint.world {
            let parts = model.shards.iter().map(|shard| {
                let (own, theirs) = (
                    part(&shard.unit, rank, world),
                    part(&shard.unit, from, checkpoint.world),
                );
                let both = own.start.max(theirs.start)..own.end.min(theirs.end);
                (own, theirs, both)
            });
            let parts: Vec<_> = parts.collect();
            if parts.iter().all(|(_, _, both)| both.is_empty()) {
                continue;
            }
            let path = paths::checkpoint_rank(lineage, *step, from, checkpoint.world);
            let bytes = self.read(&path)?;
            let name = path.rsplit('/').next().unwrap_or_default();
            if checkpoint.files.get(name) != Some(&sha256(&bytes)) {
                return Err(damaged(format!("{name} has another checksum than its manifest says")));
            }
            let tensors = SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
            if tensors.len() != STATES.len() * model.shards.len() {
                let (held, wanted) = (tensors.len() / STATES.len(), model.shards.len());
                return Err(damaged(format!("it holds {held} units, and the model has {wanted}")));
            }
            for (index, (shard, (own, theirs, both))) in model.shards.iter().zip(parts).enumerate() {
                if both.is_empty() {
                    continue;
                }
                let places = [&shard.values, &shard.first_moment, &shard.second_moment];
                for (name, place) in STATES.iter().zip(places) {
                    let tensor = tensors.tensor(&format!("{index:05}.{name}"));
                    let data = tensor.map_err(|e| damaged(e.to_string()))?.data();
                    if data.len() != 4 * theirs.len() {
                        let (held, wanted) = (data.len() / 4, theirs.len());
                        return Err(damaged(format!("unit {index} holds {held} values of {wanted}")));
                    }
                    let data = data[4 * (both.start - theirs.start)..4 * (both.end - theirs.start)].chunks_exact(4);
                    let values: Vec<f32> = data.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                    let mut place = place.narrow(0, (both.start - own.start) as i64, both.len() as i64);
                    place.copy_(&Tensor::from_slice(&values));
                }
            }
        }
        model.updates = checkpoint.updates;
        Ok(())
    }
}

/// The range of a unit's padded values that a rank holds.
fn part(unit: &Unit, rank: u32, world: u32) -> Range<usize> {
    let (rank, world) = (rank as usize, world as usize);
    let size = padded(unit, world) / world;
    size * rank..size * (rank + 1)
}

/// Always a copy: moving a tensor that is already on the host would not copy it.
fn on_the_host(tensor: &Tensor) -> Tensor {
    match tensor.device() {
        Device::Cpu => tensor.copy(),
        gpu => wait_for(gpu, || tensor.to_device(Device::Cpu)),
    }
}
