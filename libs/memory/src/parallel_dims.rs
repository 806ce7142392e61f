//! The number of ranks in each dimension of parallelism.

use grpo_crds::grpo_run::{Shard, Trainer};

/// The number of ranks in each dimension of parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParallelDims {
    /// Ranks that share a sequence.
    pub sequence: u32,
    /// Ranks that share the state; `None` means all of them.
    pub shard: Option<u32>,
}

impl ParallelDims {
    /// Every rank has its own micro-batches, and the state is sharded over all ranks.
    pub const DATA_PARALLEL: Self = Self {
        sequence: 1,
        shard: None,
    };

    /// By the run's spec, with `per_node` ranks on each node.
    pub fn of(trainer: Option<&Trainer>, per_node: u32) -> Self {
        trainer.map_or(Self::DATA_PARALLEL, |trainer| Self {
            sequence: trainer.sequence_parallel,
            shard: (trainer.shard == Shard::Node).then_some(per_node),
        })
    }
}
