//! Whole weights, put together from the ranks' shards: to be published, exported and compared.

use grpo_model::weights::{Array, Unit, Weights};
use tch::Tensor;

use crate::error::TrainError;
use crate::sharded::Sharded;

impl Sharded {
    /// A unit of the model, whole, with names and shapes; an adapter is added to the weights it belongs to. Every rank
    /// must call it.
    pub fn unit(&self, index: usize) -> Result<(Unit, Vec<Tensor>), TrainError> {
        let mut tensors = self.gather_masters(index)?;
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

    /// The adapter's tensors of a unit, whole. Every rank must call it.
    pub fn adapter(&self, index: usize) -> Result<(Unit, Vec<Tensor>), TrainError> {
        let tensors = self.gather_masters(index)?.split_off(self.frozen_tensors(index));
        Ok((self.shards[index].unit.clone(), tensors))
    }

    /// All weights, whole, with the adapter added where there is one. Every rank must call it.
    pub fn weights(&self) -> Result<Weights, TrainError> {
        self.collected(true, |index| self.unit(index))
    }

    /// The adapter's weights, whole. Every rank must call it.
    pub fn adapter_weights(&self) -> Result<Weights, TrainError> {
        self.collected(true, |index| self.adapter(index))
    }

    /// What is published, the adapter's weights or all: whole on rank 0. The other ranks hold a unit of it at a time,
    /// and answer nothing.
    pub fn published(&self, adapter: bool) -> Result<Weights, TrainError> {
        let kept = self.group.rank() == 0;
        match adapter {
            true => self.collected(kept, |index| self.adapter(index)),
            false => self.collected(kept, |index| self.unit(index)),
        }
    }

    fn collected(
        &self,
        kept: bool,
        unit: impl Fn(usize) -> Result<(Unit, Vec<Tensor>), TrainError>,
    ) -> Result<Weights, TrainError> {
        let mut weights = Weights::new();
        for index in 0..self.shards.len() {
            let (unit, tensors) = unit(index)?;
            if !kept {
                continue;
            }
            for ((name, shape), tensor) in unit.tensors.into_iter().zip(tensors) {
                let values = Vec::<f32>::try_from(tensor.reshape([-1]))?;
                weights.insert(name, Array { shape, values });
            }
        }
        Ok(weights)
    }
}
