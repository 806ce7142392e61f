//! Factors on a token's policy loss, because engine and trainer do not compute the same probabilities.
//!
//! With r = p(trainer) / p(engine), the trainer's under the weights from which the batch's first step starts: truncated
//! importance sampling weighs by r held in a band (TIS, as in verl, slime, TRL); IcePop leaves out tokens outside the
//! band and weighs the others by r (arXiv 2510.18855); at level Sequence r is the product over the sequence. A
//! geometric mask leaves out sequences whose mean r lies outside a band (verl's `seq_mean_k1`); the sequence mask
//! leaves out those with a negative advantage that the policy has moved away from (off-policy sequence masking,
//! DeepSeek-V3.2, arXiv 2512.02556).
//!
//! Weights are constants to the gradient and are in no denominator.

use grpo_crds::algorithm::{Correction, Ratio};

use crate::ratio::bounded;

/// The logprobs of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprobs {
    pub rollout: f64,
    /// The trainer's, before the batch's first step.
    pub old: f64,
    /// The trainer's now.
    pub new: f64,
}

/// Sums over a sequence's trained tokens: the only facts that one token needs about the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    pub tokens: f64,
    /// Sum of `new` minus the logprob to which it is compared.
    pub moved: f64,
    /// Sum of `old` - `rollout`.
    pub mismatch: f64,
    /// Sum of `rollout` - `new`.
    pub drift: f64,
}

impl Sums {
    /// `old`: the logprob to which the token's new one is compared.
    pub fn add(&mut self, token: &TokenLogprobs, old: f64) {
        self.tokens += 1.0;
        self.moved += token.new - old;
        self.mismatch += token.old - token.rollout;
        self.drift += token.rollout - token.new;
    }
}

/// Whether masks keep the sequence.
pub fn keeps(correction: &Correction, sums: &Sums, advantage: f64) -> bool {
    let n = sums.tokens.max(1.0);
    let drifted = correction
        .sequence_mask
        .is_some_and(|most| advantage < 0.0 && sums.drift / n > most);
    let outside = correction.geometric_mask.as_ref().is_some_and(|band| {
        let log = sums.mismatch / n;
        log < band.low.ln() || log > band.high.ln()
    });
    !drifted && !outside
}

/// The weight from a log-ratio: a token's own, or at level Sequence the sum over its sequence.
pub fn importance(correction: &Correction, log_ratio: f64) -> f64 {
    let ratio = bounded(log_ratio).value;
    match (&correction.truncated_importance, &correction.ice_pop) {
        (Some(band), _) => ratio.clamp(band.low, band.high),
        (None, Some(band)) if ratio < band.low || ratio > band.high => 0.0,
        (None, Some(_)) => ratio,
        (None, None) => 1.0,
    }
}

/// The weight of one token in a sequence with these sums.
pub fn weight(correction: &Correction, sums: &Sums, advantage: f64, token: &TokenLogprobs) -> f64 {
    if !keeps(correction, sums, advantage) {
        return 0.0;
    }
    match correction.level {
        Ratio::Token => importance(correction, token.old - token.rollout),
        Ratio::Sequence => importance(correction, sums.mismatch),
    }
}

#[cfg(test)]
mod tests;
