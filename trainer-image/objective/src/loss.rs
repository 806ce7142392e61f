//! The policy loss of one token, and its weight in the batch.
//!
//! With ratio r = p(new) / p(old), Clipped: -min(r A, clip(r, 1 - low, 1 + high) A) (PPO, arXiv 1707.06347; asymmetric
//! bounds as DAPO, arXiv 2503.14476). Dual clip (arXiv 1912.09729): for A < 0 the loss is at most -dual A. Cispo:
//! -sg(clip(r)) A logp, sg being a constant to the gradient (arXiv 2506.13585).

use grpo_crds::algorithm::{Aggregation, Clip, Loss};

pub use crate::ratio::MAX_LOG_RATIO;
use crate::ratio::{Bounded, bounded};

/// Loss of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLoss {
    pub loss: f64,
    /// d loss / d logp.
    pub gradient: f64,
    pub ratio: f64,
    /// Whether a bound was active.
    pub clipped: bool,
}

/// Clipped loss of a token with logprob `new`, sampled with logprob `old`.
pub fn token_loss(new: f64, old: f64, advantage: f64, clip: &Clip) -> TokenLoss {
    clipped(bounded(new - old), advantage, clip)
}

/// The loss that the algorithm names. `ratio`: the token's, or its sequence's; a sequence's slope is taken as if the
/// token alone moved it, and the sequence's other tokens answer for themselves (GSPO-token, arXiv 2507.18071, eq. 14):
/// where all tokens of a sequence weigh the same, their sum is the derivative of the sequence's loss.
pub fn policy_loss(loss: Loss, ratio: Bounded, new: f64, advantage: f64, clip: &Clip) -> TokenLoss {
    match loss {
        Loss::Clipped => clipped(ratio, advantage, clip),
        Loss::Cispo => cispo(ratio, new, advantage, clip),
    }
}

fn clipped(ratio: Bounded, advantage: f64, clip: &Clip) -> TokenLoss {
    let Bounded { value: ratio, slope } = ratio;
    let held = ratio.clamp(1.0 - clip.low, 1.0 + clip.high);
    let (free, held) = (-ratio * advantage, -held * advantage);
    let (mut loss, mut clipped) = if held > free { (held, true) } else { (free, false) };
    if let Some(dual) = clip.dual.filter(|_| advantage < 0.0) {
        let most = -dual * advantage;
        if loss > most {
            (loss, clipped) = (most, true);
        }
    }
    TokenLoss {
        loss,
        gradient: if clipped { 0.0 } else { -slope * advantage },
        ratio,
        clipped,
    }
}

fn cispo(ratio: Bounded, new: f64, advantage: f64, clip: &Clip) -> TokenLoss {
    let held = ratio.value.clamp(1.0 - clip.low, 1.0 + clip.high);
    TokenLoss {
        loss: -held * advantage * new,
        gradient: -held * advantage,
        ratio: ratio.value,
        clipped: held != ratio.value,
    }
}

/// [`batch_weights`] without a divisor of token sums.
pub fn token_weights(tokens: &[u64], aggregation: Aggregation) -> Vec<f64> {
    batch_weights(tokens, aggregation, None)
}

/// What each trained token of a sequence weighs in the batch's loss, by sequence. `tokens`: trained tokens of every
/// sequence; one without any is in no denominator. `length`: the divisor of `SequenceSum`, else 1 (Dr. GRPO, arXiv
/// 2503.20783). The sum over the batch of weight x loss is the loss, however the batch is cut into micro-batches and
/// ranks.
pub fn batch_weights(tokens: &[u64], aggregation: Aggregation, length: Option<u32>) -> Vec<f64> {
    let total: u64 = tokens.iter().sum();
    let sequences = tokens.iter().filter(|n| **n > 0).count() as f64;
    let length = f64::from(length.unwrap_or(1).max(1));
    tokens
        .iter()
        .map(|n| match (*n, aggregation) {
            (0, _) => 0.0,
            (_, Aggregation::TokenMean) => 1.0 / total as f64,
            (n, Aggregation::SequenceMean) => 1.0 / (sequences * n as f64),
            (_, Aggregation::SequenceSum) => 1.0 / (sequences * length),
            (_, Aggregation::TokenSum) => 1.0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLIP: Clip = Clip {
        low: 0.2,
        high: 0.28,
        dual: None,
    };

    #[test]
    fn the_bound_that_holds_depends_on_the_sign_of_the_advantage() {
        let up = 1.5f64.ln();
        let down = 0.5f64.ln();
        // ratio, advantage, loss, clipped
        for (log_ratio, advantage, loss, clipped) in [
            (0.0, 1.0, -1.0, false),
            (up, 1.0, -1.28, true),
            (up, -1.0, 1.5, false),
            (down, 1.0, -0.5, false),
            (down, -1.0, 0.8, true),
        ] {
            let token = token_loss(log_ratio, 0.0, advantage, &CLIP);
            assert!(
                (token.loss - loss).abs() < 1e-12 && token.clipped == clipped,
                "{log_ratio} {advantage}: {token:?}"
            );
        }
    }

    #[test]
    fn dual_clip_bounds_the_loss_of_a_bad_token_that_became_likely() {
        let clip = Clip {
            dual: Some(3.0),
            ..CLIP
        };
        let token = token_loss(5.0f64.ln(), 0.0, -1.0, &clip);
        assert_eq!((token.loss, token.gradient, token.clipped), (3.0, 0.0, true));
    }

    #[test]
    fn cispo_bounds_the_ratio_but_keeps_the_gradient() {
        let token = policy_loss(Loss::Cispo, bounded(2.0f64.ln()), -0.5, 3.0, &CLIP);
        assert!((token.loss - 1.28 * 3.0 * 0.5).abs() < 1e-12, "{token:?}");
        assert!(
            (token.gradient + 1.28 * 3.0).abs() < 1e-12 && token.clipped,
            "{token:?}"
        );
    }

    #[test]
    fn weights_sum_to_one_mean_per_aggregation() {
        let tokens = [3u64, 0, 1];
        let weights = |aggregation| token_weights(&tokens, aggregation);
        assert_eq!(weights(Aggregation::TokenMean), [0.25, 0.0, 0.25]);
        assert_eq!(weights(Aggregation::SequenceMean), [1.0 / 6.0, 0.0, 0.5]);
        assert_eq!(weights(Aggregation::SequenceSum), [0.5, 0.0, 0.5]);
        assert_eq!(weights(Aggregation::TokenSum), [1.0, 0.0, 1.0]);
        assert_eq!(
            batch_weights(&tokens, Aggregation::SequenceSum, Some(10)),
            [0.05, 0.0, 0.05]
        );
    }

    proptest! {
        #[test]
        fn the_gradient_is_the_derivative_of_the_loss(
            new in -3.0f64..0.0,
            old in -3.0f64..0.0,
            advantage in -2.0f64..2.0,
            dual in prop::option::of(1.5f64..4.0),
        ) {
            let step = 1e-6;
            let clip = Clip { dual, ..CLIP };
            let at = |x| token_loss(x, old, advantage, &clip);
            // At a kink the derivative is not defined.
            prop_assume!(at(new - step).clipped == at(new + step).clipped);
            let numeric = (at(new + step).loss - at(new - step).loss) / (2.0 * step);
            prop_assert!((numeric - at(new).gradient).abs() < 1e-4 * (1.0 + numeric.abs()));
        }

        #[test]
        fn the_gradient_of_cispo_is_the_derivative_with_the_ratio_held(new in -3.0f64..0.0, old in -3.0f64..0.0, advantage in -2.0f64..2.0) {
            let (step, ratio) = (1e-6, bounded(new - old));
            let at = |x| policy_loss(Loss::Cispo, ratio, x, advantage, &CLIP);
            let numeric = (at(new + step).loss - at(new - step).loss) / (2.0 * step);
            prop_assert!((numeric - at(new).gradient).abs() < 1e-6 * (1.0 + numeric.abs()));
        }
    }
}
