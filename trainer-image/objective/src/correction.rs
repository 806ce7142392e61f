//! What a token's policy loss is multiplied with, because engine and trainer do not compute the same probabilities.
//!
//! With r = p(trainer) / p(engine), the trainer's under the weights that the batch's first step starts from: truncated
//! importance sampling weighs by r held in a band (TIS, as in verl, slime, TRL); IcePop leaves out what lies outside
//! the band and weighs the rest by r (arXiv 2510.18855); at level Sequence r is the product over the sequence. A
//! geometric mask leaves out sequences whose mean r lies outside a band (verl's `seq_mean_k1`); the sequence mask
//! leaves out those with a negative advantage that the policy has moved away from (off-policy sequence masking,
//! DeepSeek-V3.2, arXiv 2512.02556).
//!
//! Weights are constants to the gradient, and no denominator knows of them.

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

/// Sums over a sequence's trained tokens: all that one token needs to know of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    pub tokens: f64,
    /// Of `new` less the logprob that new ones are compared with.
    pub moved: f64,
    /// Of `old` - `rollout`.
    pub mismatch: f64,
    /// Of `rollout` - `new`.
    pub drift: f64,
}

impl Sums {
    /// `old`: what the token's new logprob is compared with.
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

/// The weight that a log-ratio gives: a token's own, or at level Sequence the sum over its sequence.
pub fn importance(correction: &Correction, log_ratio: f64) -> f64 {
    let ratio = bounded(log_ratio).value;
    match (&correction.truncated_importance, &correction.ice_pop) {
        (Some(band), _) => ratio.clamp(band.low, band.high),
        (None, Some(band)) if ratio < band.low || ratio > band.high => 0.0,
        (None, Some(_)) => ratio,
        (None, None) => 1.0,
    }
}

/// The weight of one token, of a sequence with these sums.
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
mod tests {
    use super::*;
    use grpo_crds::algorithm::Band;

    fn tokens(ratios: &[f64]) -> Vec<TokenLogprobs> {
        let token = |ratio: &f64| TokenLogprobs {
            rollout: -1.0,
            old: -1.0 + ratio.ln(),
            new: -1.0 + ratio.ln(),
        };
        ratios.iter().map(token).collect()
    }

    fn weights(correction: &Correction, tokens: &[TokenLogprobs], advantage: f64) -> Vec<f64> {
        let mut sums = Sums::default();
        for token in tokens {
            sums.add(token, token.rollout);
        }
        let weight = |token| weight(correction, &sums, advantage, token);
        tokens.iter().map(weight).collect()
    }

    fn near(found: &[f64], wanted: &[f64]) {
        assert_eq!(found.len(), wanted.len());
        assert!(
            found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-12),
            "{found:?} {wanted:?}"
        );
    }

    const BAND: Band = Band { low: 0.5, high: 2.0 };

    #[test]
    fn truncation_holds_a_ratio_in_its_band_and_ice_pop_leaves_out_what_is_outside() {
        let seen = tokens(&[0.25, 1.5, 4.0]);
        let tis = Correction {
            truncated_importance: Some(BAND),
            ..Default::default()
        };
        near(&weights(&tis, &seen, 1.0), &[0.5, 1.5, 2.0]);
        let pop = Correction {
            ice_pop: Some(BAND),
            ..Default::default()
        };
        near(&weights(&pop, &seen, 1.0), &[0.0, 1.5, 0.0]);
    }

    #[test]
    fn at_the_level_of_sequences_the_product_decides_for_all() {
        let pop = Correction {
            level: Ratio::Sequence,
            ice_pop: Some(BAND),
            ..Default::default()
        };
        near(&weights(&pop, &tokens(&[0.25, 4.0]), 1.0), &[1.0, 1.0]);
        near(&weights(&pop, &tokens(&[1.5, 1.5]), 1.0), &[0.0, 0.0]);
    }

    #[test]
    fn a_geometric_mask_looks_at_the_mean_and_a_sequence_mask_only_at_bad_sequences() {
        let geometric_mask = Correction {
            geometric_mask: Some(BAND),
            ..Default::default()
        };
        near(&weights(&geometric_mask, &tokens(&[8.0, 0.25]), 1.0), &[1.0, 1.0]);
        near(&weights(&geometric_mask, &tokens(&[8.0, 8.0]), 1.0), &[0.0, 0.0]);
        let mask = Correction {
            sequence_mask: Some(0.5),
            ..Default::default()
        };
        let drifted = tokens(&[0.1, 0.1]);
        near(&weights(&mask, &drifted, 1.0), &[1.0, 1.0]);
        near(&weights(&mask, &drifted, -1.0), &[0.0, 0.0]);
        // The policy likes the bad sequence better than the engine did: it stays, to be unlearnt.
        near(&weights(&mask, &tokens(&[10.0, 10.0]), -1.0), &[1.0, 1.0]);
    }

    #[test]
    fn a_band_from_zero_has_no_lower_end() {
        let mask = Correction {
            geometric_mask: Some(Band { low: 0.0, high: 2.0 }),
            ..Default::default()
        };
        near(&weights(&mask, &tokens(&[1e-9]), 1.0), &[1.0]);
    }
}
