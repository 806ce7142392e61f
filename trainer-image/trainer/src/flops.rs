//! Operations that a model's arithmetic asks of a step, and the share of the devices' peak that they are: model FLOPs
//! utilisation (MFU; PaLM, arXiv 2204.02311, appendix B).
//!
//! A multiplication with its addition is two operations. Counted are matrix products and attention's pairs; of those,
//! only what the rows need: tokens that are computed once for several rows count once, a query counts the keys that it
//! sees (half of a causal square), and the vocabulary head counts trained tokens. A backward pass is twice the forward
//! one; beside an adapter the frozen weights' own gradients fall away. What is computed a second time to save memory is
//! *not* counted: that would be the hardware's utilisation (HFU), which grows by doing more than is needed.

use std::ops::AddAssign;

use grpo_memory::Gpu;
use grpo_model::Config;
use grpo_native::device;
use tch::Device;

use crate::compute::{Compute, Precision};
use crate::error::TrainError;

/// Operations a second of one rank's device, where the table of [`Gpu::named`] does not have it.
pub const PEAK_VARIABLE: &str = "GRPO_PEAK_FLOPS";

/// Multiplications of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forward {
    /// Of a token, in the layers' matrices that belong to the model: of a mixture, the router and the experts that the
    /// token goes to.
    pub token: f64,
    /// Of a token, in an adapter's.
    pub adapter: f64,
    /// Of a query with a key that it sees: its score and its part of the output.
    pub pair: f64,
    /// Of a trained token, in the vocabulary head.
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

    /// Operations of a forward pass over that work.
    pub fn looking(&self, work: &Work) -> f64 {
        2.0 * (self.own(work) + self.adapter * work.tokens + self.pair * work.pairs)
    }

    /// Operations of a forward and a backward pass over it.
    pub fn training(&self, work: &Work) -> f64 {
        // Of a frozen matrix only what flows on to its input.
        let own = if self.frozen { 4.0 } else { 6.0 } * self.own(work);
        own + 6.0 * (self.adapter * work.tokens + self.pair * work.pairs)
    }

    /// In the matrices that are frozen beside an adapter.
    fn own(&self, work: &Work) -> f64 {
        self.token * work.tokens + self.entry * work.entries
    }
}

/// What packs hold, over all ranks.
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

/// Peak operations a second of this rank's device; `None` where the peak is not known.
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

/// Share of the peak of `ranks` devices, each of `peak` operations a second.
pub fn utilisation(flops: f64, seconds: f64, peak: f64, ranks: u32) -> Option<f64> {
    (seconds > 0.0).then(|| flops / seconds / (peak * f64::from(ranks)))
}

#[cfg(test)]
mod tests;
