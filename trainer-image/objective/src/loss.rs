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

/// The loss that the algorithm names. `ratio`: the token's, or its sequence's. A sequence's slope is by this token's
/// logprob alone; each other token of the sequence has its own (GSPO-token, arXiv 2507.18071, eq. 14): where all tokens
/// of a sequence weigh the same, their sum is the derivative of the sequence's loss.
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

/// The weight of each trained token in the batch's loss, by sequence. `tokens`: trained tokens of every sequence; a
/// sequence without any is in no denominator. `length`: the divisor of `SequenceSum`, else 1 (Dr. GRPO, arXiv
/// 2503.20783). The loss is the sum over the batch of weight x loss, however the batch is cut into micro-batches and
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
mod tests;
