//! How many ranks each dimension of parallelism has.

use grpo_crds::grpo_run::{Shard, Trainer};

/// How many ranks each dimension of parallelism has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParallelDims {
    /// Ranks that share a sequence.
    pub sequence: u32,
    /// Ranks that share the state; none: all of them.
    pub shard: Option<u32>,
}

impl ParallelDims {
    /// Every rank has micro-batches of its own, and the state is sharded over all.
    pub const DATA_PARALLEL: Self = Self {
        sequence: 1,
        shard: None,
    };

    /// As the run's spec has it, with `per_node` ranks on each node.
    pub fn of(trainer: Option<&Trainer>, per_node: u32) -> Self {
        trainer.map_or(Self::DATA_PARALLEL, |trainer| Self {
            sequence: trainer.sequence_parallel,
            shard: (trainer.shard == Shard::Node).then_some(per_node),
        })
    }
}
