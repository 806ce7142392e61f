//! Estimates the time of a step on a GPU: each part's operations divided by the achieved peak of products, or its bytes
//! divided by the achieved memory bandwidth (a roofline, Williams, Waterman and Patterson 2009).
//!
//! Operations and bytes of a block are those of the trainer's code: a test of `grpo-bench-trainer` counts both from the
//! code for every published geometry and compares them with [`Facts::block_work`]. The achieved shares of the peaks are
//! chosen so that the estimate is near measured steps on one H100 and one H200 (the tests' table, docs/src/gpu.md). Not
//! counted: communication between ranks, and the host's work between steps.

use crate::facts::{Facts, Schedule};
use crate::geometry::{AdapterGeometry, Mlp};
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
/// Bytes that a trained value's passes move in each step: gathering in bf16; its gradient flattened, cast, summed,
/// squared and clipped; and AdamW's three values read and written.
const TRAINED: f64 = 66.0;

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

/// Work of one pass through a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassWork {
    /// Floating-point operations of linear layers, experts and adapters.
    pub linear: f64,
    /// Floating-point operations of attention.
    pub attention: f64,
    /// Bytes that operations read and write which are limited by memory bandwidth: norms, rotation, gates, sums, and an
    /// adapter's narrow products.
    pub moved: f64,
}

impl Facts {
    /// Work of a block: of the pass forward, and of the one back.
    pub fn block_work(&self, layer: usize, work: &StepWork) -> [PassWork; 2] {
        let g = self.geometry();
        let (h, queries, keys) = (
            g.hidden as f64,
            (g.heads * g.head_dim) as f64,
            (g.groups * g.head_dim) as f64,
        );
        let mlp = &g.mlps[layer];
        let adapter = g.adapter.as_ref();
        let of = |value: fn(&AdapterGeometry) -> u64| adapter.map_or(0.0, |adapter| value(adapter) as f64);
        let (inputs, outputs) = (of(|adapter| adapter.inputs), of(|adapter| adapter.outputs));
        let (dropped, narrow) = (
            of(AdapterGeometry::dropped),
            adapter.map_or(0, |adapter| adapter.units[layer + 1]),
        );

        // Two operations for each multiplication. Backward takes twice as many; a frozen weight has no own gradient.
        let own = h * (2.0 * queries + 2.0 * keys) + multiplications(mlp, h);
        let backs = if adapter.is_some() { 1.0 } else { 2.0 };
        let linear = |own_passes: f64, passes: f64| 2.0 * work.tokens * (own * own_passes + narrow as f64 * passes);
        let attention = 4.0 * queries * work.pairs;

        // Values of a token. Forward, norms read and write, and the residual's sum reads two and writes one. Backward,
        // the gradients of a layer's inputs are summed five times. A long row is padded for its attention.
        let normed = if g.norms_heads { queries + keys } else { 0.0 };
        let (width, copies, routes) = (widths(mlp), copies(mlp, h), routes(mlp));
        // Of the MLP's gates: read and written backward, and computed again for the gradient of the weight behind them.
        let gates = if adapter.is_some() { 5.0 } else { 8.0 };
        let forward = 10.0 * h
            + 2.0 * (queries + keys)
            + 2.0 * normed
            + 2.0 * (queries + 2.0 * keys)
            + 3.0 * width
            + if copies > 0.0 { 2.0 * copies + 2.0 * h } else { 0.0 }
            + 5.0 * routes
            + inputs
            + 2.0 * outputs
            + 2.0 * dropped;
        let back = 21.0 * h
            + 2.0 * (queries + keys)
            + 3.0 * normed
            + 2.0 * (3.0 * queries + 2.0 * keys)
            + gates * width
            + if copies > 0.0 { 7.0 * copies + 2.0 * h } else { 0.0 }
            + 10.0 * routes
            + 3.0 * inputs
            + 2.0 * outputs
            + 5.0 * dropped;
        let pass = |linear: f64, attention: f64, values: f64| PassWork {
            linear,
            attention,
            moved: BF16 * work.tokens * values,
        };
        [
            pass(linear(1.0, 1.0), attention, forward),
            pass(linear(backs, 2.0), ATTENTION_BACK_WORK * attention, back),
        ]
    }

    /// The time of this work on a rank's GPU. If blocks are computed twice, attention's outputs are kept in `attended`
    /// layers and not computed again ([`Facts::attended_layers`]).
    pub fn step_time(&self, work: &StepWork, schedule: Schedule, attended: u64, gpu: &Gpu) -> StepTime {
        let g = self.geometry();
        let (flops, bytes) = (gpu.flops * PRODUCTS, gpu.bandwidth * MEMORY);
        let slower = if self.deterministic { DETERMINISTIC } else { 1.0 };
        let mut time = StepTime::default();
        for layer in 0..g.mlps.len() {
            let [forward, back] = self.block_work(layer, work);
            let again = match schedule {
                Schedule::Kept => 0.0,
                Schedule::Streamed => 1.0,
            };
            // From the last layer down.
            let kept = layer as u64 + attended >= g.mlps.len() as u64;
            let attends = 1.0 + if kept { 0.0 } else { again };
            time.linear += (forward.linear * (1.0 + again) + back.linear) / flops;
            time.attention +=
                slower * (forward.attention * attends / ATTENTION + back.attention / ATTENTION_BACK) / gpu.flops;
            time.passes += (forward.moved * (1.0 + again) + back.moved) / bytes;
        }
        let logits = work.trained * g.vocabulary as f64;
        let products = if self.trains_an_adapter() { 2.0 } else { 3.0 };
        time.head = 2.0 * g.hidden as f64 * logits * products / flops + LOGIT * logits / bytes;
        time.optimizer = TRAINED * self.trained_values() as f64 / bytes;
        time
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

/// Values of a token's copies for its experts.
fn copies(mlp: &Mlp, h: f64) -> f64 {
    match *mlp {
        Mlp::Dense { .. } => 0.0,
        Mlp::Experts { per_token, .. } => per_token as f64 * h,
    }
}

/// Experts that a router chooses from.
fn routes(mlp: &Mlp) -> f64 {
    match *mlp {
        Mlp::Dense { .. } => 0.0,
        Mlp::Experts { count, .. } => count as f64,
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
