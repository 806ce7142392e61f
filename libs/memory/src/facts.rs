//! A model, how it is divided, and what a step of it takes.
//!
//! State is divided by the ranks that share it, tokens by the ranks that share a sequence. A step passes through a few
//! moments that may be the fullest, which differ by the trainer's schedule (`gradients.rs`); the estimate is the
//! largest. What autograd keeps of a block is counted operation by operation (`libs/model/src/model.rs`). The bench
//! measures the estimate against what libtorch's allocator has handed out (figure 6).

use grpo_crds::{
    GrpoRunSpec,
    grpo_run::{Offload, Trainer},
};

use crate::{
    estimate::Estimate,
    geometry::{Geometry, Mlp},
    parallel_dims::ParallelDims,
};

/// Bytes of a number: of what is trained, its gradients and moments.
const MASTER: u64 = 4;
/// Bytes of a number that a GPU computes with.
const BF16: u64 = 2;
/// Temporaries of the head that do not grow with the step: blocks of 1 MiB.
const HEAD_BLOCKS: u64 = 4 << 20;

/// Logits that exist at once where nothing else is asked for: 32 MiB of fp32, which a processor's cores pass over in
/// blocks.
pub const HEAD_LOGITS: usize = 1 << 23;

/// The same on a GPU: 2 GiB of fp32. With fewer, 16,384 tokens of a vocabulary of 152,000 take hundreds of launches,
/// and each product is too small to keep the GPU busy.
pub const GPU_HEAD_LOGITS: usize = 1 << 29;

/// Default of `trainer.maxTokensPerGpu` on CPUs, and on GPUs, which fewer tokens do not keep busy.
pub const TOKENS: u32 = 4096;
pub const GPU_TOKENS: u32 = 16_384;

/// A model and how it is divided.
#[derive(Clone, Debug)]
pub struct Facts {
    geometry: Geometry,
    /// Values of every unit, padded: of what is trained, and of what is frozen beside it.
    trained: Vec<u64>,
    frozen: Vec<u64>,
    /// Ranks that share the state.
    pub shards: u64,
    /// Ranks that share a sequence.
    pub sequence: u64,
    /// Whether the model that training began with is held as well.
    pub holds_base: bool,
    /// Bytes of a number that is computed with.
    pub compute: u64,
    /// Logits that exist at once.
    pub head_logits: u64,
    /// What is kept in the pod's memory instead of the GPU's, and so is not counted.
    pub offload: Offload,
    /// Whether a GPU computes the same bits every time, which takes longer.
    pub deterministic: bool,
}

/// What a rank computes in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Tokens of each of its micro-batches, its part of them where ranks share sequences.
    pub tokens: Vec<u64>,
    /// Most trained tokens of one of them.
    pub trained: u64,
}

impl Load {
    /// One micro-batch of so many tokens, all of them trained.
    pub fn one(tokens: u64) -> Self {
        Self {
            tokens: vec![tokens],
            trained: tokens,
        }
    }
}

/// Whether blocks' activations are kept, or computed again from their inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    Kept,
    Streamed,
}

impl Facts {
    /// Of a model over so many ranks, computed in fp32.
    pub fn of(geometry: Geometry, dims: ParallelDims, world: u32) -> Self {
        let shards = u64::from(dims.shard.unwrap_or(world).clamp(1, world.max(1)));
        let padded = |units: &[u64]| -> Vec<u64> { units.iter().map(|n| n.div_ceil(shards) * shards).collect() };
        let model = padded(&geometry.units);
        let (trained, frozen) = match &geometry.adapter {
            None => (model, Vec::new()),
            Some(adapter) => (padded(&adapter.units), model),
        };
        Self {
            geometry,
            trained,
            frozen,
            shards,
            sequence: u64::from(dims.sequence.max(1)),
            holds_base: false,
            compute: MASTER,
            head_logits: HEAD_LOGITS as u64,
            offload: Offload::default(),
            deterministic: false,
        }
    }

    /// As a run's spec has it, with `per_pod` ranks in each pod: bf16 on GPUs, fp32 without.
    pub fn of_run(geometry: Geometry, spec: &GrpoRunSpec, per_pod: u32, world: u32) -> Self {
        let trainer = spec.trainer.as_ref();
        let on_gpus: Option<&Trainer> = trainer.filter(|trainer| trainer.gpus_per_node > 0);
        Self {
            holds_base: geometry.adapter.is_none() && spec.algorithm.kl.is_some(),
            compute: if on_gpus.is_some() { BF16 } else { MASTER },
            head_logits: if on_gpus.is_some() {
                GPU_HEAD_LOGITS
            } else {
                HEAD_LOGITS
            } as u64,
            offload: on_gpus.map_or_else(Offload::default, |trainer| trainer.offload.clone()),
            deterministic: on_gpus.is_some_and(|trainer| trainer.deterministic),
            ..Self::of(geometry, ParallelDims::of(trainer, per_pod), world)
        }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Values that a rank steps.
    pub(crate) fn trained_values(&self) -> u64 {
        self.trained.iter().sum::<u64>() / self.shards
    }

    /// Whether an adapter is trained beside the frozen model.
    pub fn trains_an_adapter(&self) -> bool {
        !self.frozen.is_empty()
    }

    /// Of one row of so many tokens, divided over the ranks that share it, in the schedule that takes least.
    pub fn row(&self, tokens: u64) -> Estimate {
        self.estimate(&Load::one(tokens.div_ceil(self.sequence)), Schedule::Streamed)
    }

    /// At the fullest moment of a step.
    pub fn estimate(&self, load: &Load, schedule: Schedule) -> Estimate {
        let moments = match schedule {
            Schedule::Kept => self.kept(load),
            Schedule::Streamed => self.streamed(load),
        };
        moments.into_iter().max_by_key(Estimate::total).unwrap_or_default()
    }

    /// What a schedule holds at its fullest moment beyond state and head, which are held in either: units whole, their
    /// gradients, blocks' inputs, and what autograd keeps of the largest micro-batch.
    pub fn step_bytes(&self, load: &Load, schedule: Schedule) -> u64 {
        let beyond = |at: &Estimate| at.gathered + at.gradients + at.activations + at.inputs;
        let moments = match schedule {
            Schedule::Kept => self.kept(load),
            Schedule::Streamed => self.streamed(load),
        };
        moments.iter().map(beyond).max().unwrap_or(0)
    }

    /// What a rank holds between steps.
    pub fn state_bytes(&self) -> u64 {
        self.state()
    }

    fn state(&self) -> u64 {
        let (trained, frozen): (u64, u64) = (self.trained.iter().sum(), self.frozen.iter().sum());
        let rotations = 2 * self.geometry.positions * self.geometry.head_dim;
        let here = |aside: bool, bytes: u64| if aside { 0 } else { bytes };
        let models = if self.holds_base { 2 } else { 1 };
        let parameters = here(
            self.offload.parameters,
            models * MASTER * trained + self.compute * frozen,
        );
        let moments = here(self.offload.optimizer, 2 * MASTER * trained);
        (parameters + moments) / self.shards + MASTER * rotations
    }

    /// A unit, gathered. Alone, a rank computes with what it has, unless that is in another precision or aside.
    fn whole(&self, unit: usize) -> u64 {
        let copied = self.shards > 1 || self.offload.parameters;
        let of = |copied: bool, values: u64| if copied { self.compute * values } else { 0 };
        let frozen = self.frozen.get(unit).copied().unwrap_or(0);
        of(copied || self.compute != MASTER, self.trained[unit]) + of(copied, frozen)
    }

    /// A unit's gradient on its way: flat, what arrives, and the sum. Alone, flat is the sum.
    fn leaving(&self, unit: usize) -> u64 {
        let flat = MASTER * self.trained[unit];
        if self.shards == 1 {
            flat
        } else {
            2 * flat + flat / self.shards
        }
    }

    fn layers(&self) -> usize {
        self.geometry.mlps.len()
    }

    /// The layer whose unit is largest, counted from 1.
    fn largest(&self) -> usize {
        (1..self.trained.len())
            .max_by_key(|unit| self.whole(*unit))
            .unwrap_or(0)
    }

    /// Values that autograd keeps of one token in a layer.
    fn saved(&self, layer: usize) -> u64 {
        let g = &self.geometry;
        let (h, d) = (g.hidden, g.head_dim);
        let copied = g.groups.max(self.sequence);
        // Input, residual, and both behind their norms; angles of queries and keys; logarithms.
        let mut values = 4 * h + 2 * d + g.heads;
        // Queries, keys and values as attention has them, its output, and queries and keys before their norms.
        values += (2 * g.heads + g.groups + copied) * d;
        if g.norms_heads {
            values += (g.heads + g.groups) * d;
        }
        if self.sequence > 1 {
            // Keys as well are copies of what came, and the output goes back.
            values += g.heads * d + (copied - g.groups) * d;
        }
        // What is left of each adapter's input.
        values += g.adapter.as_ref().map_or(0, |adapter| adapter.dropped);
        values
            + match g.mlps[layer] {
                // Gate and up; their product is made again, but where an adapter is beside the layer that it goes
                // through.
                Mlp::Dense { width } => (2 + u64::from(g.adapter.is_some())) * width,
                Mlp::Experts {
                    count,
                    per_token,
                    width,
                } => per_token * (2 * h + 4 * width) + 2 * count,
            }
    }

    /// What a block's backward pass makes beside what is kept of a token: gradients of the widest part.
    fn transient(&self, layer: usize) -> u64 {
        let h = self.geometry.hidden;
        2 * h
            + match self.geometry.mlps[layer] {
                Mlp::Dense { width } => 3 * width,
                Mlp::Experts { per_token, width, .. } => per_token * (2 * h + 2 * width),
            }
    }

    /// Logits of a chunk, always.
    fn logits(&self) -> u64 {
        let vocabulary = self.geometry.vocabulary;
        MASTER * (self.head_logits / vocabulary).max(1) * vocabulary
    }

    /// Hidden states of the trained tokens, before and after the norm, and their gradients; of a chunk of them over its
    /// temperatures.
    fn head(&self, load: &Load, tokens: u64) -> u64 {
        let (h, vocabulary) = (self.geometry.hidden, self.geometry.vocabulary);
        let chunk = (self.head_logits / vocabulary).clamp(1, load.trained.max(1));
        // What is computed between two blocks of logits.
        let blocks = HEAD_BLOCKS.min(4 * MASTER * chunk * vocabulary);
        self.logits() + blocks + self.compute * h * (4 * load.trained + 2 * chunk + tokens)
    }

    fn kept(&self, load: &Load) -> Vec<Estimate> {
        let largest = load.tokens.iter().copied().max().unwrap_or(0);
        let all: u64 = (0..self.layers()).map(|layer| self.saved(layer)).sum();
        let gathered = (0..self.trained.len()).map(|unit| self.whole(unit)).sum();
        let ends = MASTER * self.trained[0];
        let blocks: u64 = self.trained[1..].iter().map(|values| MASTER * values).sum();
        let last = self.layers().saturating_sub(1);
        let base = Estimate {
            state: self.state(),
            gathered,
            head: self.logits(),
            ..Estimate::default()
        };
        vec![
            Estimate {
                moment: "in the head",
                // Of micro-batches before this one.
                gradients: ends + if load.tokens.len() > 1 { blocks } else { 0 },
                activations: self.compute * largest * all,
                head: self.head(load, largest),
                ..base.clone()
            },
            Estimate {
                moment: "in the last block's backward pass",
                gradients: ends
                    + if load.tokens.len() > 1 {
                        blocks
                    } else {
                        MASTER * self.trained[self.largest()]
                    },
                activations: self.compute * largest * (all + self.transient(last)),
                ..base.clone()
            },
            Estimate {
                moment: "in the first block's backward pass",
                gradients: ends + blocks,
                activations: self.compute * largest * (self.saved(0) + self.transient(0)),
                ..base.clone()
            },
            Estimate {
                moment: "as gradients leave",
                gradients: ends + blocks + self.leaving(0),
                ..base
            },
        ]
    }

    fn streamed(&self, load: &Load) -> Vec<Estimate> {
        let h = self.geometry.hidden;
        let all: u64 = load.tokens.iter().sum();
        let largest = load.tokens.iter().copied().max().unwrap_or(0);
        let layers = self.layers() as u64;
        let (unit, last) = (self.largest(), self.layers().saturating_sub(1));
        let two = (if layers > 1 { 2 } else { 1 }) * self.whole(unit);
        let ends = MASTER * self.trained[0];
        let parts = self.trained[1..].iter().sum::<u64>() * MASTER / self.shards;
        // Aside, a block's inputs are in the pod's memory but for those it reads and those it writes.
        let here = |blocks: u64| {
            if self.offload.activations {
                blocks.min(2)
            } else {
                blocks
            }
        };
        let stack = |blocks: u64| self.compute * h * all * here(blocks);
        let base = Estimate {
            state: self.state(),
            gathered: self.whole(0) + two,
            gradients: ends,
            head: self.logits(),
            ..Estimate::default()
        };
        // A block that is not the first to leave: the one before it is on its way.
        let before = if layers > 1 { self.leaving(unit) } else { 0 };
        vec![
            Estimate {
                moment: "in the last block",
                activations: self.compute * largest * (self.transient(last) + 2 * h),
                inputs: stack(layers + 1),
                ..base.clone()
            },
            Estimate {
                moment: "in the head",
                gathered: self.whole(0) + self.whole(unit),
                inputs: stack(layers + 1),
                head: self.head(load, largest),
                ..base.clone()
            },
            Estimate {
                moment: "in a block's backward pass",
                gradients: ends + MASTER * self.trained[unit] + before,
                activations: self.compute * largest * (self.saved(last) + self.transient(last)),
                inputs: stack(layers),
                ..base.clone()
            },
            Estimate {
                moment: "as a block's gradient leaves",
                gradients: ends + MASTER * self.trained[unit] + self.leaving(unit),
                inputs: stack(layers),
                ..base.clone()
            },
            Estimate {
                moment: "as the last gradient leaves",
                gathered: self.whole(0),
                gradients: ends + self.leaving(0) + before + parts,
                inputs: stack(1),
                ..base
            },
        ]
    }
}

#[cfg(test)]
mod tests;
