//! Checkpoints: one rank's state at a step, written, sealed by rank 0 when all are there, and read back at any world size.

use std::collections::BTreeMap;

use grpo_records::paths;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use super::{Store, json, lineage_number, name_of, sha256};
use crate::error::TrainError;
use crate::sharded::{Sharded, padded};

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

impl Store {
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
            self.take_away(&self.at(&paths::checkpoint(&old.lineage, old.step)))?;
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
