//! YaRN (Peng et al., arXiv 2309.00071): extends a rotary embedding to more positions than a model was trained on.

/// YaRN, as in Qwen's configs: pairs that rotate often keep their speed; pairs that do not finish a rotation within the
/// pretraining positions are slowed down by `factor`; pairs between are interpolated.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    /// Number of positions in pretraining.
    pub original: usize,
    /// Multiplies cosines and sines, hence attention scores by its square.
    pub attention_factor: f64,
    /// Minimum rotations within `original` for a pair to keep its speed.
    pub beta_fast: f64,
    /// Maximum rotations for a pair to be slowed down fully.
    pub beta_slow: f64,
    /// Whether the bounds between these are rounded to whole pairs.
    pub truncate: bool,
}

impl Yarn {
    /// Number of positions after the extension.
    pub fn positions(&self) -> usize {
        (self.original as f64 * self.factor) as usize
    }

    /// The share of each pair's own speed that is kept, `[head_dim / 2]` in 0..=1.
    pub(crate) fn kept(&self, head_dim: usize, theta: f64) -> Vec<f64> {
        let dim = head_dim as f64;
        // The (fractional) pair that rotates `turns` times: original * theta^(-2 i / dim) = 2 pi * turns, solved for i.
        let pair = |turns: f64| {
            let ratio = self.original as f64 / (turns * std::f64::consts::TAU);
            dim * ratio.ln() / (2.0 * theta.ln())
        };
        let (low, high) = (pair(self.beta_fast), pair(self.beta_slow));
        let (low, high) = match self.truncate {
            true => (low.floor(), high.ceil()),
            false => (low, high),
        };
        let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        let slowed = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        (0..head_dim / 2).map(|i| 1.0 - slowed(i)).collect()
    }
}

#[cfg(test)]
mod tests;
