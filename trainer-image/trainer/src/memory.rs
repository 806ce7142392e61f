//! What a rank's tensors take at a step's fullest moment, part by part, before anything is allocated.
//!
//! State is divided by the ranks that share it, tokens by the ranks that share a sequence. A step passes through a few
//! moments that may be the fullest, which differ by schedule (`gradients.rs`); the estimate is the largest. What
//! autograd keeps of a block is counted operation by operation ([`grpo_model::model`]). The bench measures the estimate
//! against what libtorch's allocator has handed out (figure 6).
//!
//! A run is refused where not even one row of one token would fit, and warned where one row of full length would not:
//! how long rows become, nobody knows before.

use grpo_model::Config;
use grpo_model::adapter;
use grpo_model::weights::{self, Unit};

use crate::error::TrainError;
use crate::mesh::ParallelDims;

/// Bytes of a number: of what is trained, its gradients and moments.
const MASTER: u64 = 4;
/// Temporaries of the head that do not grow with the step: blocks of 1 MiB.
const HEAD_BLOCKS: u64 = 4 << 20;

/// Logits that exist at once where nothing else is asked for: 32 MiB of fp32.
pub(crate) const HEAD_LOGITS: usize = 1 << 23;

/// A model and how it is divided.
#[derive(Clone, Debug)]
pub struct Facts {
    config: Config,
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
}

/// What a rank computes in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Tokens of each of its micro-batches, its part of them where ranks share sequences.
    pub tokens: Vec<u64>,
    /// Most trained tokens of one of them.
    pub trained: u64,
}

/// Whether blocks' activations are kept, or computed again from their inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    Kept,
    Streamed,
}

/// Bytes at the fullest moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// This moment.
    pub moment: &'static str,
    /// Parameters and moments of this rank's part, a frozen model's part, and the table of rotations.
    pub state: u64,
    /// Whole units on every rank.
    pub gathered: u64,
    /// Whole, on the way, and this rank's parts.
    pub gradients: u64,
    /// What autograd keeps, and what backward makes beside it.
    pub activations: u64,
    /// Inputs of all blocks, from which they are computed again.
    pub inputs: u64,
    /// A chunk's logits and the trained tokens' hidden states.
    pub head: u64,
}

impl Estimate {
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    pub fn parts(&self) -> [(&'static str, u64); 6] {
        [
            ("parameters, moments and tables", self.state),
            ("gathered units", self.gathered),
            ("gradients", self.gradients),
            ("activations", self.activations),
            ("inputs of the blocks", self.inputs),
            ("vocabulary head", self.head),
        ]
    }
}

impl std::fmt::Display for Estimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = self.parts().map(|(name, bytes)| format!("{name} {}", in_words(bytes)));
        write!(
            f,
            "{} = {} ({})",
            parts.join(" + "),
            in_words(self.total()),
            self.moment
        )
    }
}

/// `3.25 GiB`.
pub fn in_words(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1u32 << 20);
    match mib < 1024.0 {
        true => format!("{mib:.1} MiB"),
        false => format!("{:.2} GiB", mib / 1024.0),
    }
}

impl Facts {
    /// Of a model over so many ranks.
    pub fn of(config: &Config, dims: ParallelDims, world: u32) -> Self {
        let shards = u64::from(dims.shard.unwrap_or(world).clamp(1, world.max(1)));
        let padded = |units: Vec<Unit>| -> Vec<u64> {
            let values = units.iter().map(|unit| unit.numel() as u64);
            values.map(|n| n.div_ceil(shards) * shards).collect()
        };
        let model = padded(weights::units(config));
        let (trained, frozen) = match &config.lora {
            None => (model, Vec::new()),
            Some(adapter) => (padded(adapter::units(config, adapter)), model),
        };
        Self {
            config: config.clone(),
            trained,
            frozen,
            shards,
            sequence: u64::from(dims.sequence.max(1)),
            holds_base: false,
            compute: MASTER,
            head_logits: HEAD_LOGITS as u64,
        }
    }

    /// At the fullest moment of a step.
    pub fn estimate(&self, load: &Load, schedule: Schedule) -> Estimate {
        let moments = match schedule {
            Schedule::Kept => self.kept(load),
            Schedule::Streamed => self.streamed(load),
        };
        moments.into_iter().max_by_key(Estimate::total).unwrap_or_default()
    }

    /// What the kept schedule holds at its fullest moment beyond state and head, which are held in either: units whole,
    /// their gradients, and what autograd keeps of the largest micro-batch.
    pub fn kept_bytes(&self, load: &Load) -> u64 {
        let beyond = |at: &Estimate| at.gathered + at.gradients + at.activations;
        self.kept(load).iter().map(beyond).max().unwrap_or(0)
    }

    fn state(&self) -> u64 {
        let (trained, frozen): (u64, u64) = (self.trained.iter().sum(), self.frozen.iter().sum());
        let rotations = 2 * (self.config.max_position_embeddings * self.config.head_dim()) as u64;
        let copies = if self.holds_base { 4 } else { 3 };
        (copies * MASTER * trained + self.compute * frozen) / self.shards + MASTER * rotations
    }

    /// A unit, gathered. Alone, a rank computes with what it has.
    fn whole(&self, unit: usize) -> u64 {
        let values = self.trained[unit] + self.frozen.get(unit).copied().unwrap_or(0);
        if self.shards == 1 && self.compute == MASTER {
            0
        } else {
            self.compute * values
        }
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
        self.config.num_hidden_layers
    }

    /// The layer whose unit is largest, counted from 1.
    fn largest(&self) -> usize {
        (1..self.trained.len())
            .max_by_key(|unit| self.whole(*unit))
            .unwrap_or(0)
    }

    /// Values that autograd keeps of one token in a layer.
    fn saved(&self, layer: usize) -> u64 {
        let c = &self.config;
        let (h, d) = (c.hidden_size as u64, c.head_dim() as u64);
        let (heads, groups) = (c.num_attention_heads as u64, c.num_key_value_heads as u64);
        let copied = groups.max(self.sequence);
        // Input, residual, and both behind their norms; angles of queries and keys; logarithms.
        let mut values = 4 * h + 2 * d + heads;
        // Queries, keys and values as attention has them, its output, and queries and keys before their norms.
        values += (2 * heads + groups + copied) * d;
        if c.norms_heads() {
            values += (heads + groups) * d;
        }
        if self.sequence > 1 {
            // Keys as well are copies of what came, and the output goes back.
            values += heads * d + (copied - groups) * d;
        }
        if let Some(lora) = c.lora.as_ref().filter(|lora| lora.dropout > 0.0) {
            // What is left of each adapter's input.
            values += lora
                .targets()
                .iter()
                .map(|target| c.linear_shape(*target)[1] as u64)
                .sum::<u64>();
        }
        values
            + match c.experts_of(layer) {
                // Gate and up; their product is made again, but where an adapter is beside the layer that it goes
                // through.
                None => (2 + u64::from(c.lora.is_some())) * c.intermediate_size as u64,
                Some(experts) => {
                    let (k, wide) = (experts.per_token as u64, experts.intermediate_size as u64);
                    k * (2 * h + 4 * wide) + 2 * experts.count as u64
                }
            }
    }

    /// What a block's backward pass makes beside what is kept of a token: gradients of the widest part.
    fn transient(&self, layer: usize) -> u64 {
        let c = &self.config;
        let h = c.hidden_size as u64;
        2 * h
            + match c.experts_of(layer) {
                None => 3 * c.intermediate_size as u64,
                Some(experts) => experts.per_token as u64 * (2 * h + 2 * experts.intermediate_size as u64),
            }
    }

    /// Logits of a chunk, always.
    fn logits(&self) -> u64 {
        let vocabulary = self.config.vocab_size as u64;
        MASTER * (self.head_logits / vocabulary).max(1) * vocabulary
    }

    /// Hidden states of the trained tokens, before and after the norm, and their gradients; of a chunk of them over its
    /// temperatures.
    fn head(&self, load: &Load, tokens: u64) -> u64 {
        let h = self.config.hidden_size as u64;
        let chunk = (self.head_logits / self.config.vocab_size as u64).clamp(1, load.trained.max(1));
        let vocabulary = self.config.vocab_size as u64;
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
        let h = self.config.hidden_size as u64;
        let all: u64 = load.tokens.iter().sum();
        let largest = load.tokens.iter().copied().max().unwrap_or(0);
        let layers = self.layers() as u64;
        let (unit, last) = (self.largest(), self.layers().saturating_sub(1));
        let two = (if layers > 1 { 2 } else { 1 }) * self.whole(unit);
        let ends = MASTER * self.trained[0];
        let parts = self.trained[1..].iter().sum::<u64>() * MASTER / self.shards;
        let stack = |blocks: u64| self.compute * h * all * blocks;
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

    /// Says, and answers, what a step on one row of `context` tokens would take, and refuses what cannot fit into
    /// `room` bytes for each rank.
    pub fn announce(&self, context: u64, room: Option<u64>) -> Result<Estimate, TrainError> {
        let of = |tokens: u64| {
            let tokens = tokens.div_ceil(self.sequence);
            let load = Load {
                tokens: vec![tokens],
                trained: tokens,
            };
            self.estimate(&load, Schedule::Streamed)
        };
        let (least, whole) = (of(1), of(context));
        tracing::info!(
            bytes = whole.total(),
            room,
            "estimated memory of a rank at one row of {context} tokens: {whole}"
        );
        let Some(room) = room else { return Ok(whole) };
        if least.total() > room {
            return Err(TrainError::Memory {
                needed: least.total(),
                room,
                message: format!(
                    "one row of one token takes {least}; a rank has {}: {}",
                    in_words(room),
                    self.remedy()
                ),
            });
        }
        if whole.total() > room {
            tracing::warn!(
                "a rank has {}, and one row of {context} tokens may not fit: {}",
                in_words(room),
                self.remedy()
            );
        }
        Ok(whole)
    }

    fn remedy(&self) -> &'static str {
        match self.frozen.is_empty() {
            true => {
                "give the trainer more nodes (trainer.nodes), more memory (trainer.resources), shard: All, or train an adapter (model.lora)"
            }
            false => "give the trainer more nodes (trainer.nodes), more memory (trainer.resources), or shard: All",
        }
    }
}

/// Bytes that each of `ranks` ranks of this container, or machine, may have: an equal part of the smallest limit.
pub fn room(ranks: u32) -> Option<u64> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib * 1024)
    });
    let limits = [
        machine,
        number("/sys/fs/cgroup/memory.max"),
        number("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ];
    limits
        .into_iter()
        .flatten()
        .min()
        .map(|bytes| bytes / u64::from(ranks.max(1)))
}

#[cfg(test)]
mod tests;
