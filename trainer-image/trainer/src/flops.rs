//! Operations of a step by the model's arithmetic, and their share of the devices' peak: model FLOPs utilisation (MFU;
//! PaLM, arXiv 2204.02311, appendix B).
//!
//! A multiplication with its addition is two operations. Only matrix products and attention's pairs count, and only
//! those that the rows need: a token computed once for several rows counts once, a query counts the keys that it sees
//! (half of a causal square), and the vocabulary head counts trained tokens. A backward pass is twice the forward pass;
//! with an adapter, the frozen weights need no gradients of their own. Recomputation to save memory does *not* count:
//! that would be the hardware's utilisation (HFU), which grows with unnecessary work.

use std::ops::AddAssign;

use grpo_memory::Gpu;
use grpo_model::Config;
use grpo_native::device;
use tch::Device;

use crate::compute::{Compute, Precision};
use crate::error::TrainError;

/// Peak operations per second of one rank's device, if the table of [`Gpu::named`] does not have it.
pub const PEAK_VARIABLE: &str = "GRPO_PEAK_FLOPS";

/// Multiplications of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forward {
    /// Per token, in the layers' matrices of the model; for a mixture, in the router and the experts of the token.
    pub token: f64,
    /// Per token, in an adapter's matrices.
    pub adapter: f64,
    /// Per pair of a query and a key that it sees: its score and its part of the output.
    pub pair: f64,
    /// Per trained token, in the vocabulary head.
    pub entry: f64,
    /// Whether the model's own matrices are frozen.
    frozen: bool,
}

impl Forward {
    pub fn of(config: &Config) -> Self {
        let (h, layers) = (config.hidden_size, config.num_hidden_layers);
        let heads = config.num_attention_heads * config.head_dim();
        let groups = config.num_key_value_heads * config.head_dim();
        let mlp = |layer: usize| match config.experts_of(layer) {
            Some(experts) => h * (experts.count + 3 * experts.per_token * experts.intermediate_size),
            None => 3 * h * config.intermediate_size,
        };
        let mlps: usize = (0..layers).map(mlp).sum();
        let adapter = config.lora.as_ref().map_or(0, |lora| {
            let ends = lora.targets().iter().flat_map(|target| config.linear_shape(*target));
            lora.rank * layers * ends.sum::<usize>()
        });
        Self {
            token: (layers * h * (2 * heads + 2 * groups) + mlps) as f64,
            adapter: adapter as f64,
            pair: (2 * layers * heads) as f64,
            entry: (h * config.vocab_size) as f64,
            frozen: config.lora.is_some(),
        }
    }

    /// Operations of a forward pass over `work`.
    pub fn looking(&self, work: &Work) -> f64 {
        2.0 * (self.own(work) + self.adapter * work.tokens + self.pair * work.pairs)
    }

    /// Operations of a forward and a backward pass over `work`.
    pub fn training(&self, work: &Work) -> f64 {
        // A frozen matrix needs only the gradient of its input.
        let own = if self.frozen { 4.0 } else { 6.0 } * self.own(work);
        own + 6.0 * (self.adapter * work.tokens + self.pair * work.pairs)
    }

    /// Multiplications in the matrices that an adapter freezes.
    fn own(&self, work: &Work) -> f64 {
        self.token * work.tokens + self.entry * work.entries
    }
}

/// Content of packs, over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    pub tokens: f64,
    pub pairs: f64,
    /// Trained tokens.
    pub entries: f64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.pairs += other.pairs;
        self.entries += other.entries;
    }
}

/// Peak operations per second of this rank's device; `None` if unknown.
pub fn peak(compute: &Compute) -> Result<Option<f64>, TrainError> {
    match (std::env::var(PEAK_VARIABLE), compute) {
        (Ok(text), _) => stated(&text).map(Some),
        (
            Err(_),
            Compute {
                device: Device::Cuda(index),
                precision: Precision::Bf16,
                ..
            },
        ) => {
            let name = device::gpu_name(*index).unwrap_or_default();
            let peak = Gpu::named(&name).map(|gpu| gpu.flops);
            if peak.is_none() {
                tracing::info!(
                    gpu = name,
                    "its peak is not known, so no share of it is told: {PEAK_VARIABLE} may say it"
                );
            }
            Ok(peak)
        }
        _ => Ok(None),
    }
}

fn stated(text: &str) -> Result<f64, TrainError> {
    let peak = text
        .trim()
        .parse::<f64>()
        .ok()
        .filter(|peak| peak.is_finite() && *peak > 0.0);
    peak.ok_or_else(|| {
        TrainError::Start(format!(
            "{PEAK_VARIABLE} is {text:?}: give one rank's peak in operations a second, such as 989e12, or leave it out"
        ))
    })
}

/// Share of the peak of `ranks` devices with `peak` operations per second each.
pub fn utilisation(flops: f64, seconds: f64, peak: f64, ranks: u32) -> Option<f64> {
    (seconds > 0.0).then(|| flops / seconds / (peak * f64::from(ranks)))
}

#[cfg(test)]
mod tests;
