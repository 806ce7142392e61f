//! A model's memory on an engine's GPU: its share of the weights, and the cache of keys and values per token.

use crate::geometry::Geometry;

/// Bytes per value, in weights and cache: bf16.
const BF16: u64 = 2;

/// A model divided over the GPUs of one engine replica, in bf16. Savings by quantization are not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineShare {
    /// Bytes of a GPU's share of the weights.
    pub weights: u64,
    /// Bytes per token in a GPU's cache.
    pub token: u64,
}

impl EngineShare {
    /// Each layer is divided over `tensor` GPUs, and the layers over `stages`. The keys and values of one group are
    /// never divided: GPUs beyond the number of groups hold copies.
    pub fn of(geometry: &Geometry, tensor: u32, stages: u32) -> Self {
        let (tensor, stages) = (u64::from(tensor.max(1)), u64::from(stages.max(1)));
        let values: u64 = geometry.units.iter().sum();
        let layers = (geometry.mlps.len() as u64).div_ceil(stages);
        let groups = geometry.groups.div_ceil(tensor).max(1);
        Self {
            weights: (BF16 * values).div_ceil(tensor * stages),
            token: 2 * BF16 * layers * groups * geometry.head_dim,
        }
    }

    /// Tokens that fit in the cache if weights and cache share this many bytes; activations are not counted.
    pub fn tokens(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.weights) / self.token.max(1)
    }
}

#[cfg(test)]
mod tests;
