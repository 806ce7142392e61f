//! The clipped policy loss of one token and its weight in the batch.
//!
//! With ratio r = exp(logp - old): loss = -min(r A, clip(r, 1 - low, 1 + high) A) (PPO, arXiv 1707.06347; asymmetric bounds as DAPO,
//! arXiv 2503.14476). Dual clip (arXiv 1912.09729): for A < 0 the loss is at most -dual A.

use grpo_crds::algorithm::{Aggregation, Clip};

/// The log-ratio is held within this, so that one broken logprob cannot make the loss infinite (as verl does).
pub const MAX_LOG_RATIO: f64 = 20.0;

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

/// Loss of a token with logprob `new`, sampled with logprob `old`.
pub fn token_loss(new: f64, old: f64, advantage: f64, clip: &Clip) -> TokenLoss {
    let ratio = (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp();
    let bounded = ratio.clamp(1.0 - clip.low, 1.0 + clip.high);
    let (free, held) = (-ratio * advantage, -bounded * advantage);
    let (mut loss, mut clipped) = if held > free { (held, true) } else { (free, false) };
    if let Some(dual) = clip.dual.filter(|_| advantage < 0.0) {
        let most = -dual * advantage;
        if loss > most {
            (loss, clipped) = (most, true);
        }
    }
    let gradient = if clipped { 0.0 } else { -ratio * advantage };
    TokenLoss {
        loss,
        gradient,
        ratio,
        clipped,
    }
}

/// What each trained token of an episode weighs in the batch's loss, by episode. `tokens`: trained tokens of every episode that is
/// trained on. The sum over the batch of weight x loss is the loss, however the batch is cut into micro-batches and ranks.
pub fn token_weights(tokens: &[u64], aggregation: Aggregation) -> Vec<f64> {
    let total: u64 = tokens.iter().sum();
    let episodes = tokens.iter().filter(|n| **n > 0).count() as f64;
    tokens
        .iter()
        .map(|n| match (*n, aggregation) {
            (0, _) => 0.0,
            (_, Aggregation::TokenMean) => 1.0 / total as f64,
            (n, Aggregation::SequenceMean) => 1.0 / (episodes * n as f64),
            (_, Aggregation::SequenceSum) => 1.0 / episodes,
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
    fn weights_sum_to_one_mean_per_aggregation() {
        let tokens = [3u64, 0, 1];
        assert_eq!(token_weights(&tokens, Aggregation::TokenMean), [0.25, 0.0, 0.25]);
        assert_eq!(token_weights(&tokens, Aggregation::SequenceMean), [1.0 / 6.0, 0.0, 0.5]);
        assert_eq!(token_weights(&tokens, Aggregation::SequenceSum), [0.5, 0.0, 0.5]);
    }

    proptest! {
        #[test]
        fn the_gradient_is_the_derivative_of_the_loss(new in -3.0f64..0.0, old in -3.0f64..0.0, advantage in -2.0f64..2.0) {
            let step = 1e-6;
            let at = |x| token_loss(x, old, advantage, &CLIP);
            // At a kink the derivative is not defined.
            prop_assume!(at(new - step).clipped == at(new + step).clipped);
            let numeric = (at(new + step).loss - at(new - step).loss) / (2.0 * step);
            prop_assert!((numeric - at(new).gradient).abs() < 1e-4 * (1.0 + numeric.abs()));
        }
    }
}
