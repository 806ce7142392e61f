//! A model, how it is sharded, and the memory of a step.
//!
//! State is divided over the ranks that share it, tokens over the ranks that share a sequence. A step has a few moments
//! of possible peak memory, which depend on the trainer's schedule (`gradients.rs`); the estimate is the largest.
//! Tensors that autograd keeps of a block are counted operation by operation (`libs/model/src/model.rs`). The bench
//! compares the estimate with the memory that libtorch's allocator handed out (figure 6).

pub(crate) mod host;

use grpo_crds::{
    GrpoRunSpec,
    grpo_run::{Offload, Trainer},
};

use crate::{
    estimate::Estimate,
    geometry::{AdapterGeometry, Geometry, Mlp},
    parallel_dims::ParallelDims,
};

/// Bytes per value of trained parameters, gradients and optimizer moments.
const MASTER: u64 = 4;
/// Bytes per value that a GPU computes with.
const BF16: u64 = 2;
/// Temporaries of the head whose size does not depend on the step: blocks of 1 MiB.
const HEAD_BLOCKS: u64 = 4 << 20;

/// Default of logits that exist at once: 32 MiB of fp32, which a processor's cores process in blocks.
pub const HEAD_LOGITS: usize = 1 << 23;

/// The default on a GPU: 2 GiB of fp32. With fewer, 16,384 tokens of a vocabulary of 152,000 take hundreds of launches,
/// and each product is too small to keep the GPU busy.
pub const GPU_HEAD_LOGITS: usize = 1 << 29;

/// Defaults of `trainer.maxTokensPerGpu` on CPUs, and on GPUs, which need more tokens to stay busy.
pub const TOKENS: u32 = 4096;
pub const GPU_TOKENS: u32 = 16_384;

/// A model and how it is sharded.
#[derive(Clone, Debug)]
pub struct Facts {
    geometry: Geometry,
    /// Padded sizes of every unit, in values: trained units, and frozen units beside them.
    trained: Vec<u64>,
    frozen: Vec<u64>,
    /// Ranks that share the state.
    pub shards: u64,
    /// Ranks that share a sequence.
    pub sequence: u64,
    /// Whether the initial model is also held.
    pub holds_base: bool,
    /// Bytes per value in computation.
    pub compute: u64,
    /// Logits that exist at once.
    pub head_logits: u64,
    /// State and inputs that are offloaded to the pod's memory. They count only on their way.
    pub offload: Offload,
    /// Whether a GPU computes deterministically, which is slower.
    pub deterministic: bool,
}

/// A rank's work in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Tokens of each of its micro-batches; if ranks share sequences, only its share of them.
    pub tokens: Vec<u64>,
    /// Maximum trained tokens of one micro-batch.
    pub trained: u64,
}

impl Load {
    /// One micro-batch of `tokens` tokens, all of them trained.
    pub fn one(tokens: u64) -> Self {
        Self {
            tokens: vec![tokens],
            trained: tokens,
        }
    }
}

/// Whether blocks' activations are kept, or recomputed from their inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    Kept,
    Streamed,
}

impl Facts {
    /// A model on `world` ranks, computed in fp32.
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

    /// By a run's spec, with `per_pod` ranks in each pod: bf16 on GPUs, fp32 without.
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
            offload: on_gpus.map_or_else(Offload::default, Trainer::keeps_aside),
            deterministic: on_gpus.is_some_and(|trainer| trainer.deterministic),
            ..Self::of(geometry, ParallelDims::of(trainer, per_pod), world)
        }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Values that one rank's optimizer updates.
    pub(crate) fn trained_values(&self) -> u64 {
        self.trained.iter().sum::<u64>() / self.shards
    }

    /// Whether an adapter is trained beside the frozen model.
    pub fn trains_an_adapter(&self) -> bool {
        !self.frozen.is_empty()
    }

    /// The estimate for one row of `tokens` tokens, divided over the ranks that share it, in the schedule with the
    /// least memory.
    pub fn row(&self, tokens: u64) -> Estimate {
        self.estimate(&Load::one(tokens.div_ceil(self.sequence)), Schedule::Streamed)
    }

    /// The estimate at the moment of peak memory in a step.
    pub fn estimate(&self, load: &Load, schedule: Schedule) -> Estimate {
        let moments = match schedule {
            Schedule::Kept => self.kept(load),
            Schedule::Streamed => self.streamed(load),
        };
        let all = moments.into_iter().chain(self.optimizing());
        all.max_by_key(Estimate::total).unwrap_or_default()
    }

    /// A schedule's peak memory for gradients, without state and head, which both schedules hold: gathered units, their
    /// gradients, blocks' inputs, and the tensors that autograd keeps of the largest micro-batch.
    pub fn step_bytes(&self, load: &Load, schedule: Schedule) -> u64 {
        let beyond = |at: &Estimate| at.gathered + at.gradients + at.activations + at.inputs;
        let moments = match schedule {
            Schedule::Kept => self.kept(load),
            Schedule::Streamed => self.streamed(load),
        };
        moments.iter().map(beyond).max().unwrap_or(0)
    }

    /// Bytes of attention's outputs and logarithms in one layer, for these micro-batches. On a GPU cuDNN pads a long
    /// piece to a multiple of 1,024 tokens.
    pub fn attended_bytes(&self, load: &Load) -> u64 {
        let padded = |tokens: u64| match self.compute {
            BF16 => tokens.next_multiple_of(1024),
            _ => tokens,
        };
        let tokens: u64 = load.tokens.iter().copied().map(padded).sum();
        tokens * self.geometry.heads * (self.geometry.head_dim * self.compute + MASTER)
    }

    /// The number of layers whose attention outputs are kept if blocks are computed twice: as many as fit into half of
    /// the memory that the step leaves of `room`, and into `most` bytes.
    pub fn attended_layers(&self, load: &Load, room: Option<u64>, most: u64) -> u64 {
        let bytes = room.map_or(most, |room| {
            let spare = room.saturating_sub(self.step_bytes(load, Schedule::Streamed));
            most.min(spare / 2)
        });
        (self.layers() as u64).min(bytes / self.attended_bytes(load).max(1))
    }

    /// Bytes that a rank holds between steps.
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

    /// Bytes of a gathered unit. A single rank computes with its own values, unless they are in another precision or
    /// offloaded.
    fn whole(&self, unit: usize) -> u64 {
        let copied = self.shards > 1 || self.offload.parameters;
        let of = |copied: bool, values: u64| if copied { self.compute * values } else { 0 };
        let frozen = self.frozen.get(unit).copied().unwrap_or(0);
        of(copied || self.compute != MASTER, self.trained[unit]) + of(copied, frozen)
    }

    /// Bytes of a unit's gradient in transit: the flat gradient, the parts received from all ranks, and their sum. On a
    /// single rank, the flat gradient is the sum.
    fn leaving(&self, unit: usize) -> u64 {
        let flat = MASTER * self.trained[unit];
        if self.shards == 1 {
            flat
        } else {
            2 * flat + flat / self.shards
        }
    }

    /// Bytes of offloaded parts on the device on their way to a gathered unit: one that comes, and one that is rounded.
    fn arriving(&self) -> u64 {
        let of = |unit: usize| {
            let frozen = self.frozen.get(unit).copied().unwrap_or(0);
            (MASTER * self.trained[unit] + self.compute * frozen) / self.shards
        };
        match self.offload.parameters {
            true => 2 * (0..self.trained.len()).map(of).max().unwrap_or(0),
            false => 0,
        }
    }

    /// The moment of the optimizer's step, if offloaded state comes to the device for it: one unit's comes, one's is
    /// changed and one's returns. Activations are gone then.
    fn optimizing(&self) -> Option<Estimate> {
        let of = |aside: bool, bytes: u64| if aside { bytes } else { 0 };
        let each = of(self.offload.parameters, MASTER) + of(self.offload.optimizer, 2 * MASTER);
        let mut units = self.trained.clone();
        units.sort_unstable();
        let largest: u64 = units.iter().rev().take(3).sum();
        (each > 0).then(|| Estimate {
            moment: "in the optimizer's step",
            state: self.state(),
            gathered: each * largest / self.shards,
            // Shards, and a unit's clipped one.
            gradients: MASTER * (self.trained_values() + units.last().copied().unwrap_or(0) / self.shards),
            ..Estimate::default()
        })
    }

    /// Adds the rotary angles of so many tokens, which all layers share.
    fn with_angles(&self, mut moments: Vec<Estimate>, tokens: u64) -> Vec<Estimate> {
        let angles = MASTER * self.geometry.head_dim * tokens;
        for moment in &mut moments {
            moment.activations += angles;
        }
        moments
    }

    fn layers(&self) -> usize {
        self.geometry.mlps.len()
    }

    /// The layer with the largest unit, counted from 1.
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
        // Input, residual, and both after their norms; logarithms.
        let mut values = 4 * h + g.heads;
        // Queries, keys and values as attention receives them, its output, and queries and keys before their norms.
        values += (2 * g.heads + g.groups + copied) * d;
        if g.norms_heads {
            values += (g.heads + g.groups) * d;
        }
        if self.sequence > 1 {
            // Keys are also copies of the received ones, and the output is sent back.
            values += g.heads * d + (copied - g.groups) * d;
        }
        // Each adapter's input after dropout.
        values += g.adapter.as_ref().map_or(0, AdapterGeometry::dropped);
        values
            + match g.mlps[layer] {
                // Gate and up. Their product is recomputed, unless the layer that consumes it has an adapter.
                Mlp::Dense { width } => (2 + u64::from(g.adapter.is_some())) * width,
                Mlp::Experts {
                    count,
                    per_token,
                    width,
                } => per_token * (2 * h + 4 * width) + 2 * count,
            }
    }

    /// Temporaries of a block's backward pass per token: gradients of the widest part.
    fn transient(&self, layer: usize) -> u64 {
        let h = self.geometry.hidden;
        2 * h
            + match self.geometry.mlps[layer] {
                Mlp::Dense { width } => 3 * width,
                Mlp::Experts { per_token, width, .. } => per_token * (2 * h + 2 * width),
            }
    }

    /// Logits of a chunk, held throughout.
    fn logits(&self) -> u64 {
        let vocabulary = self.geometry.vocabulary;
        MASTER * (self.head_logits / vocabulary).max(1) * vocabulary
    }

    /// Hidden states of the trained tokens, before and after the norm, and their gradients; for one chunk, also those
    /// divided by temperature.
    fn head(&self, load: &Load, tokens: u64) -> u64 {
        let (h, vocabulary) = (self.geometry.hidden, self.geometry.vocabulary);
        let chunk = (self.head_logits / vocabulary).clamp(1, load.trained.max(1));
        // Temporaries between two blocks of logits.
        let blocks = HEAD_BLOCKS.min(4 * MASTER * chunk * vocabulary);
        self.logits() + blocks + self.compute * h * (4 * load.trained + 2 * chunk + tokens)
    }

    fn kept(&self, load: &Load) -> Vec<Estimate> {
        let largest = load.tokens.iter().copied().max().unwrap_or(0);
        let all: u64 = (0..self.layers()).map(|layer| self.saved(layer)).sum();
        let gathered: u64 = (0..self.trained.len()).map(|unit| self.whole(unit)).sum();
        let ends = MASTER * self.trained[0];
        let blocks: u64 = self.trained[1..].iter().map(|values| MASTER * values).sum();
        let last = self.layers().saturating_sub(1);
        let base = Estimate {
            state: self.state(),
            gathered: gathered + self.arriving(),
            head: self.logits(),
            ..Estimate::default()
        };
        let moments = vec![
            Estimate {
                moment: "in the head",
                // Gradients of earlier micro-batches.
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
        ];
        self.with_angles(moments, largest)
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
        // If offloaded, blocks' inputs are in the pod's memory, except the one being read and the one being written.
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
            gathered: self.whole(0) + two + self.arriving(),
            gradients: ends,
            head: self.logits(),
            ..Estimate::default()
        };
        // A block that is not the first to be reduced: the gradients of the one before it are in transit.
        let before = if layers > 1 { self.leaving(unit) } else { 0 };
        let moments = vec![
            Estimate {
                moment: "in the last block",
                activations: self.compute * largest * (self.transient(last) + 2 * h),
                inputs: stack(layers + 1),
                ..base.clone()
            },
            Estimate {
                moment: "in the head",
                gathered: self.whole(0) + self.whole(unit) + self.arriving(),
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
        ];
        self.with_angles(moments, all)
    }
}

#[cfg(test)]
mod tests;
