//! What a rank on a GPU takes of its pod's own memory, by the run's spec and the model's sizes.
//!
//! Only tensors are counted. Libraries (CUDA's part on the host, NCCL, libtorch), the rows of a batch and the pod's
//! `/dev/shm` come on top: their size is not known from the sizes of the model.

use super::{Facts, Load, MASTER};
use crate::estimate::in_words;

/// Bytes of the pod's memory for one rank's tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostEstimate {
    /// Parameters and moments that are offloaded.
    pub state: u64,
    /// Inputs of the blocks that are offloaded.
    pub inputs: u64,
    /// The copy of the state from which a checkpoint is written while training continues. A checkpoint's file, which is
    /// read before the first step, has the same size.
    pub checkpoint: u64,
}

impl HostEstimate {
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    pub fn parts(&self) -> [(&'static str, u64); 3] {
        [
            ("offloaded parameters and moments", self.state),
            ("offloaded inputs of the blocks", self.inputs),
            ("copy for a checkpoint", self.checkpoint),
        ]
    }

    /// Of so many ranks in one pod.
    pub fn of_ranks(&self, ranks: u32) -> Self {
        let all = |bytes: u64| bytes * u64::from(ranks);
        Self {
            state: all(self.state),
            inputs: all(self.inputs),
            checkpoint: all(self.checkpoint),
        }
    }
}

impl std::fmt::Display for HostEstimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = self.parts().map(|(name, bytes)| format!("{name} {}", in_words(bytes)));
        write!(f, "{} = {}", parts.join(" + "), in_words(self.total()))
    }
}

impl Facts {
    /// The pod's memory for a rank with this work.
    pub fn host(&self, load: &Load) -> HostEstimate {
        let trained: u64 = self.trained.iter().sum();
        let frozen: u64 = self.frozen.iter().sum();
        let of = |is_aside: bool, bytes: u64| if is_aside { bytes } else { 0 };
        let models = if self.holds_base { 2 } else { 1 };
        let parameters = of(
            self.offload.parameters,
            models * MASTER * trained + self.compute * frozen,
        );
        let moments = of(self.offload.optimizer, 2 * MASTER * trained);
        // libtorch's pinned memory comes in blocks of powers of two, one for each input.
        let input = |tokens: &u64| match self.compute * self.geometry.hidden * tokens {
            0 => 0,
            bytes => bytes.next_power_of_two(),
        };
        let inputs: u64 = load.tokens.iter().map(input).sum();
        HostEstimate {
            state: (parameters + moments) / self.shards,
            inputs: of(self.offload.activations, self.layers() as u64 * inputs),
            checkpoint: 3 * MASTER * self.trained_values(),
        }
    }

    /// The pod's memory for a rank with one row of `tokens` tokens.
    pub fn host_row(&self, tokens: u64) -> HostEstimate {
        self.host(&Load::one(tokens.div_ceil(self.sequence)))
    }
}

#[cfg(test)]
mod tests;
