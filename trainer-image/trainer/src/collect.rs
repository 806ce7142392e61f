//! Collects whole weights from the ranks' shards, to publish, export and compare them.

use grpo_model::weights::export::Named;
use grpo_model::weights::{Array, Precision, TensorsDigest, Unit, Weights};
use tch::Tensor;

use crate::error::TrainError;
use crate::gathering::Parts;
use crate::sharded::Sharded;

/// Values that are given at a time: copies of them, rounded and encoded, stand beside the unit that they are of.
pub(crate) const PIECE: usize = 1 << 20;

impl Sharded {
    /// A whole unit of the model, with names and shapes; an adapter is merged into its weights. Every rank must call
    /// it.
    pub fn unit(&self, index: usize) -> Result<(Unit, Vec<Tensor>), TrainError> {
        let mut tensors = self.gather_masters(index, Parts::All)?;
        let Some(lora) = &self.config.lora else {
            return Ok((self.shards[index].unit.clone(), tensors));
        };
        let unit = self.frozen[index].0.clone();
        let adapter = tensors.split_off(unit.tensors.len());
        for (target, matrices) in lora.targets().iter().zip(adapter.chunks_exact(2)) {
            let weight = format!("{}.weight", target.path());
            let at = unit.tensors.iter().position(|(name, _)| name.ends_with(&weight));
            if let Some(at) = at {
                tensors[at] = &tensors[at] + matrices[1].matmul(&matrices[0]) * lora.scale();
            }
        }
        Ok((unit, tensors))
    }

    /// The adapter's whole tensors of a unit. Every rank must call it.
    pub fn adapter(&self, index: usize) -> Result<(Unit, Vec<Tensor>), TrainError> {
        let tensors = self.gather_masters(index, Parts::Trained)?;
        Ok((self.shards[index].unit.clone(), tensors))
    }

    /// All weights, with the adapter, if any, merged. Every rank must call it.
    pub fn weights(&self) -> Result<Weights, TrainError> {
        self.collected(|index| self.unit(index))
    }

    /// The adapter's whole weights. Every rank must call it.
    pub fn adapter_weights(&self) -> Result<Weights, TrainError> {
        self.collected(|index| self.adapter(index))
    }

    /// Names and shapes of the published tensors, the adapter's or all, in the order of the layers.
    pub fn published_tensors(&self, adapter: bool) -> Vec<Named> {
        let trained = self.shards.iter().map(|shard| &shard.unit);
        let units: Vec<&Unit> = match adapter || self.frozen.is_empty() {
            true => trained.collect(),
            false => self.frozen.iter().map(|(unit, _)| unit).collect(),
        };
        units
            .into_iter()
            .flat_map(|unit| unit.tensors.iter().cloned())
            .collect()
    }

    /// Precision of a version's tensors: a model in the compute precision, an adapter in the masters' fp32.
    pub fn published_precision(&self, adapter: bool) -> Precision {
        match adapter {
            true => Precision::F32,
            false => self.compute.precision,
        }
    }

    /// A unit as it is published, on rank 0. The others send their parts, and neither copy the unit to the host nor
    /// merge an adapter into it. Every rank must call it.
    pub fn published_unit(&self, adapter: bool, index: usize) -> Result<Option<(Unit, Vec<Tensor>)>, TrainError> {
        match (self.group.rank(), adapter) {
            (0, true) => self.adapter(index).map(Some),
            (0, false) => self.unit(index).map(Some),
            (_, true) => self.send_masters(index, Parts::Trained).map(|()| None),
            (_, false) => self.send_masters(index, Parts::All).map(|()| None),
        }
    }

    /// Gives the values of the published tensors to `take` on rank 0: name and shape of a tensor, and its next values,
    /// at most [`PIECE`]. Tensors come in the order of [`Sharded::published_tensors`]. All ranks hold one unit at a
    /// time. Rank 0 reports itself busy with `doing` from one collective to the next: between two pieces a store that
    /// stood still would look like a hang to ranks that wait for the next unit. Every rank must call it.
    pub fn each_published(
        &self,
        adapter: bool,
        doing: &str,
        mut take: impl FnMut(&str, &[usize], &[f32]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let mut values = Vec::new();
        for index in 0..self.shards.len() {
            let Some((unit, tensors)) = self.published_unit(adapter, index)? else {
                continue;
            };
            self.group.busy(doing, || -> Result<(), TrainError> {
                for ((name, shape), tensor) in unit.tensors.iter().zip(tensors) {
                    let (tensor, whole) = (tensor.reshape([-1]), tensor.numel());
                    for at in (0..whole).step_by(PIECE) {
                        values.resize(PIECE.min(whole - at), 0.0);
                        let piece = tensor.f_narrow(0, at as i64, values.len() as i64)?;
                        piece.f_copy_data(&mut values, piece.numel())?;
                        take(name, shape, &values)?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The checksum of the published tensors, on rank 0. Every rank must call it.
    pub fn published_checksum(&self, adapter: bool) -> Result<Option<String>, TrainError> {
        let mut digest = TensorsDigest::of(self.published_precision(adapter));
        self.each_published(adapter, "comparing weights", |name, shape, values| {
            digest.add(name, shape, values);
            Ok(())
        })?;
        Ok((self.group.rank() == 0).then(|| digest.finish()))
    }

    fn collected(
        &self,
        unit: impl Fn(usize) -> Result<(Unit, Vec<Tensor>), TrainError>,
    ) -> Result<Weights, TrainError> {
        let mut weights = Weights::new();
        for index in 0..self.shards.len() {
            let (unit, tensors) = unit(index)?;
            for ((name, shape), tensor) in unit.tensors.into_iter().zip(tensors) {
                let values = Vec::<f32>::try_from(tensor.reshape([-1]))?;
                weights.insert(name, Array { shape, values });
            }
        }
        Ok(weights)
    }
}
