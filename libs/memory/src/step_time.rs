//! Estimates the time of a step on a GPU: each part's operations divided by the achieved peak of products, or its bytes
//! divided by the achieved memory bandwidth (a roofline, Williams, Waterman and Patterson 2009).
//!
//! The achieved shares of the peaks are chosen so that the estimate is near measured steps on one H100 and one H200
//! (the tests' table, docs/src/gpu.md). Not counted: communication between ranks, and the host's work between steps.

use crate::facts::{Facts, Schedule};
use crate::geometry::Mlp;
use crate::gpu::Gpu;

/// Achieved shares of the peak of products: linear layers and head; attention forward; attention backward.
const PRODUCTS: f64 = 0.62;
const ATTENTION: f64 = 0.58;
const ATTENTION_BACK: f64 = 0.50;
/// Attention's backward pass recomputes scores: five products, compared with two in the forward pass.
const ATTENTION_BACK_WORK: f64 = 2.5;
/// Slow-down of attention if it is deterministic.
const DETERMINISTIC: f64 = 2.65;
/// Achieved share of the memory bandwidth.
const MEMORY: f64 = 0.60;

/// Bytes of a value in bf16.
const BF16: f64 = 2.0;
/// Bytes that a logit's passes move: the logit is written and read twice in fp32, its gradient in bf16 written and read
/// twice.
const LOGIT: f64 = 18.0;
/// Bytes that a trained value's passes move in each step: gathering in bf16; its gradient cast, summed, flattened,
/// squared and clipped; and AdamW's three values read and written.
const TRAINED: f64 = 70.0;

/// A rank's work in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepWork {
    /// Unique tokens.
    pub tokens: f64,
    /// Pairs of a query and a key that it attends to.
    pub pairs: f64,
    /// Trained tokens.
    pub trained: f64,
}

impl StepWork {
    /// One row of `tokens` tokens, all of them trained.
    pub fn row(tokens: u64) -> Self {
        let tokens = tokens as f64;
        Self {
            tokens,
            pairs: tokens * (tokens + 1.0) / 2.0,
            trained: tokens,
        }
    }
}

/// Seconds of each part of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTime {
    pub linear: f64,
    pub attention: f64,
    pub head: f64,
    /// Norms, rotation, gates and sums: operations limited by memory bandwidth.
    pub passes: f64,
    pub optimizer: f64,
}

impl StepTime {
    pub fn total(&self) -> f64 {
        self.linear + self.attention + self.head + self.passes + self.optimizer
    }
}

impl Facts {
    /// The time of this work on a rank's GPU.
    pub fn step_time(&self, work: &StepWork, schedule: Schedule, gpu: &Gpu) -> StepTime {
        let g = self.geometry();
        let again = match schedule {
            Schedule::Kept => 0.0,
            Schedule::Streamed => 1.0,
        };
        let frozen = self.trains_an_adapter();
        let (h, queries, keys) = (
            g.hidden as f64,
            (g.heads * g.head_dim) as f64,
            (g.groups * g.head_dim) as f64,
        );
        let layers = g.mlps.len() as f64;
        let (flops, bytes) = (gpu.flops * PRODUCTS, gpu.bandwidth * MEMORY);

        // Two operations for each multiplication. Backward takes twice as many; a frozen weight has no own gradient.
        let passes = if frozen { 2.0 } else { 3.0 } + again;
        let mlps: f64 = g.mlps.iter().map(|mlp| multiplications(mlp, h)).sum();
        let own = layers * h * (2.0 * queries + 2.0 * keys) + mlps;
        let adapter: u64 = g.adapter.as_ref().map_or(0, |adapter| adapter.units.iter().sum());
        let linear = 2.0 * work.tokens * (own * passes + adapter as f64 * (3.0 + again)) / flops;

        let pairs = 4.0 * queries * work.pairs * layers / gpu.flops;
        let attention = pairs * ((1.0 + again) / ATTENTION + ATTENTION_BACK_WORK / ATTENTION_BACK);
        let attention = if self.deterministic {
            DETERMINISTIC * attention
        } else {
            attention
        };

        let logits = work.trained * g.vocabulary as f64;
        let products = if frozen { 2.0 } else { 3.0 };
        let head = 2.0 * h * logits * products / flops + LOGIT * logits / bytes;

        let widths: f64 = g.mlps.iter().map(widths).sum();
        let copies: f64 = g.mlps.iter().map(|mlp| copies(mlp, h)).sum();
        let normed = if g.norms_heads { queries + keys } else { 0.0 };
        let forward = layers * (8.0 * h + 2.0 * (queries + keys) + 2.0 * normed) + 3.0 * widths + 10.0 * copies;
        let backward = layers * (21.0 * h + 2.0 * (queries + keys) + 3.0 * normed) + 8.0 * widths + 14.0 * copies;
        let moved = BF16 * work.tokens * (forward * (1.0 + again) + backward);

        StepTime {
            linear,
            attention,
            head,
            passes: moved / bytes,
            optimizer: TRAINED * self.trained_values() as f64 / bytes,
        }
    }
}

/// Multiplications of a token in a block's MLP.
fn multiplications(mlp: &Mlp, h: f64) -> f64 {
    match *mlp {
        Mlp::Dense { width } => 3.0 * h * width as f64,
        Mlp::Experts {
            count,
            per_token,
            width,
        } => h * (count + 3 * per_token * width) as f64,
    }
}

/// Values of a token's copies for its experts, there and back.
fn copies(mlp: &Mlp, h: f64) -> f64 {
    match *mlp {
        Mlp::Dense { .. } => 0.0,
        Mlp::Experts { per_token, .. } => per_token as f64 * h,
    }
}

/// Values of a token between the MLP's matrices.
fn widths(mlp: &Mlp) -> f64 {
    match *mlp {
        Mlp::Dense { width } => width as f64,
        Mlp::Experts { per_token, width, .. } => (per_token * width) as f64,
    }
}

#[cfg(test)]
mod tests;
