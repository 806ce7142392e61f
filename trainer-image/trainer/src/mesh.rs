//! The groups of ranks that divide a step.
//!
//! Ranks are numbered node by node, as by torchrun. Neighbours share sequences (`trainer.sequenceParallel`): each has a
//! part of a micro-batch's tokens, and they trade tokens for heads around attention ([`grpo_model::layout`]).
//! Micro-batches are dealt to such a *sequence-parallel group* as a whole. Independently, parameters, gradients and
//! optimizer state are sharded over all ranks, or (`trainer.shard: Node`) over those of a node: then every node has a
//! replica, gradients are scattered within nodes and summed over the *replicate group* (one rank of each node), and
//! only that sum crosses the network.
//!
//! ```text
//! 2 nodes of 4, sequenceParallel 2, shard Node      rank       0 1 2 3 | 4 5 6 7
//!                                                   sequence   0 0 1 1 | 2 2 3 3     its micro-batches: a quarter
//!                                                   shard      0 1 2 3 | 0 1 2 3     of every unit: one of four
//! ```

use std::rc::Rc;

use grpo_memory::ParallelDims;
use grpo_model::{Config, layout};
use grpo_native::{CollectiveError, Exchange, Group};

use crate::error::TrainError;

/// Checks that `world` ranks can train the model with these dimensions; the error names the field of the spec at fault.
pub fn check(dims: &ParallelDims, config: &Config, world: u32) -> Result<(), TrainError> {
    let refuse = |field, value, message| Err(TrainError::Division { field, value, message });
    let field = "sequenceParallel";
    if let Err(message) = layout::check_sharing(
        dims.sequence as usize,
        config.num_attention_heads,
        config.num_key_value_heads,
    ) {
        return refuse(field, dims.sequence, message);
    }
    if !world.is_multiple_of(dims.sequence) {
        let message = format!("there are {world} ranks: choose a divisor of {world}");
        return refuse(field, dims.sequence, message);
    }
    match dims.shard {
        Some(ranks) if ranks == 0 || !world.is_multiple_of(ranks) => {
            let message = format!("there are {world} ranks, not as many on every node: use shard: All");
            refuse("shard: Node, ranks of a node", ranks, message)
        }
        _ => Ok(()),
    }
}

/// This rank's groups.
pub struct Mesh {
    pub(crate) world: Group,
    pub(crate) groups: ParallelGroups,
}

/// Groups of some of the ranks.
pub(crate) struct ParallelGroups {
    /// The ranks that share sequences with this one.
    pub(crate) sequence: Rc<Exchange>,
    /// Set if the state is not sharded over all ranks.
    pub(crate) hybrid: Option<HybridShard>,
}

/// Groups for a state that is sharded over some of the ranks and replicated over the others.
pub(crate) struct HybridShard {
    /// The ranks over which the state is sharded.
    pub(crate) shard: Group,
    /// The ranks with the same part of the state as this one.
    pub(crate) replicate: Group,
}

impl ParallelGroups {
    pub(crate) fn shard<'a>(&'a self, world: &'a Group) -> &'a Group {
        self.hybrid.as_ref().map_or(world, |hybrid| &hybrid.shard)
    }

    pub(crate) fn replicate(&self) -> Option<&Group> {
        self.hybrid.as_ref().map(|hybrid| &hybrid.replicate)
    }
}

impl From<Group> for Mesh {
    /// The mesh of [`ParallelDims::DATA_PARALLEL`].
    fn from(world: Group) -> Self {
        let groups = ParallelGroups {
            sequence: Rc::new(Exchange::alone()),
            hybrid: None,
        };
        Self { world, groups }
    }
}

impl Mesh {
    /// Connects the groups; every rank calls it with the same dimensions, which have passed [`check`].
    pub fn new(world: Group, dims: ParallelDims) -> Result<Self, CollectiveError> {
        let (rank, ranks) = (world.rank(), world.world());
        let neighbours = |size: u32| {
            let first = rank / size * size;
            (first..first + size).collect::<Vec<u32>>()
        };
        let sequence = world.part("sequence", &neighbours(dims.sequence.max(1)), true)?;
        let hybrid = match dims.shard.filter(|size| (1..ranks).contains(size)) {
            None => None,
            Some(size) => {
                let replicas: Vec<u32> = (rank % size..ranks).step_by(size as usize).collect();
                Some(HybridShard {
                    shard: world.part("shard", &neighbours(size), false)?,
                    replicate: world.part("replicate", &replicas, false)?,
                })
            }
        };
        let groups = ParallelGroups {
            sequence: Rc::new(Exchange::new(sequence)?),
            hybrid,
        };
        Ok(Self { world, groups })
    }
}
