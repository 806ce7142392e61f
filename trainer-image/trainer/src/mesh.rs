//! How ranks divide a step between them.
//!
//! Ranks are counted node by node, as torchrun does. Neighbours share sequences (`trainer.sequenceParallel`): each has
//! a part of a micro-batch's tokens, and they trade tokens for heads around attention ([`grpo_model::layout`]). Such a
//! *line* of ranks counts as one where micro-batches are dealt. Apart from that, parameters, gradients and optimizer
//! state are sharded over all ranks, or (`trainer.shard: Node`) over those of a node: then every node has a copy,
//! gradients are scattered within nodes and summed over them, and only that sum crosses the network.
//!
//! ```text
//! 2 nodes of 4, sequenceParallel 2, shard Node      rank   0 1 2 3 | 4 5 6 7
//!                                                   line   0 0 1 1 | 2 2 3 3     its micro-batches are one of four parts of the step's
//!                                                   shard  0 1 2 3 | 0 1 2 3     of every unit, one of four
//! ```

use std::rc::Rc;

use grpo_crds::grpo_run::{Shard, Trainer};
use grpo_model::{Config, layout};
use grpo_native::{CollectiveError, Exchange, Group};

use crate::error::TrainError;

/// What is divided by how many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Ranks that share a sequence.
    pub sequence: u32,
    /// Ranks that share the state; none: all of them.
    pub shard: Option<u32>,
}

impl Plan {
    /// Every rank has micro-batches of its own, and the state is sharded over all.
    pub const DATA: Self = Self {
        sequence: 1,
        shard: None,
    };

    /// As the run's spec has it, with `per_node` ranks on each node.
    pub fn of(trainer: Option<&Trainer>, per_node: u32) -> Self {
        trainer.map_or(Self::DATA, |trainer| Self {
            sequence: trainer.sequence_parallel,
            shard: (trainer.shard == Shard::Node).then_some(per_node),
        })
    }

    /// Whether so many ranks can train that model so; else what in the spec is at fault.
    pub fn check(&self, config: &Config, world: u32) -> Result<(), TrainError> {
        let refuse = |field, value, message| Err(TrainError::Division { field, value, message });
        let field = "sequenceParallel";
        if let Err(message) = layout::check_sharing(
            self.sequence as usize,
            config.num_attention_heads,
            config.num_key_value_heads,
        ) {
            return refuse(field, self.sequence, message);
        }
        if !world.is_multiple_of(self.sequence) {
            let message = format!("there are {world} ranks: choose a divisor of {world}");
            return refuse(field, self.sequence, message);
        }
        match self.shard {
            Some(ranks) if ranks == 0 || !world.is_multiple_of(ranks) => {
                let message = format!("there are {world} ranks, not as many on every node: use shard: All");
                refuse("shard: Node, ranks of a node", ranks, message)
            }
            _ => Ok(()),
        }
    }
}

/// The groups that this rank is in.
pub struct Mesh {
    pub(crate) world: Group,
    pub(crate) parts: Parts,
}

/// Groups of some of the ranks.
pub(crate) struct Parts {
    /// Those that share a sequence with this rank.
    pub(crate) line: Rc<Exchange>,
    /// Where that is not all: those that share the state, and those that have the same part of it as this rank.
    pub(crate) node: Option<(Group, Group)>,
}

impl Parts {
    pub(crate) fn shard<'a>(&'a self, world: &'a Group) -> &'a Group {
        self.node.as_ref().map_or(world, |(shard, _)| shard)
    }
}

impl From<Group> for Mesh {
    /// [`Plan::DATA`].
    fn from(world: Group) -> Self {
        let line = Rc::new(Exchange::alone());
        let parts = Parts { line, node: None };
        Self { world, parts }
    }
}

impl Mesh {
    /// Connects the groups; every rank calls it with the same plan, which [`Plan::check`] has let pass.
    pub fn new(world: Group, plan: Plan) -> Result<Self, CollectiveError> {
        let (rank, ranks) = (world.rank(), world.world());
        let neighbours = |size: u32| {
            let first = rank / size * size;
            (first..first + size).collect::<Vec<u32>>()
        };
        let line = world.part("line", &neighbours(plan.sequence.max(1)), true)?;
        let node = match plan.shard.filter(|size| (1..ranks).contains(size)) {
            None => None,
            Some(size) => {
                let copies: Vec<u32> = (rank % size..ranks).step_by(size as usize).collect();
                let shard = world.part("shard", &neighbours(size), false)?;
                Some((shard, world.part("copies", &copies, false)?))
            }
        };
        let parts = Parts {
            line: Rc::new(Exchange::new(line)?),
            node,
        };
        Ok(Self { world, parts })
    }
}
