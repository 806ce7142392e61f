//! Ratios of new to old probability: of a token, and of a sequence.
//!
//! Everything is computed from log-ratios held within [`MAX_LOG_RATIO`], so that one broken logprob makes neither loss nor gradient infinite.

/// The log-ratio is held within this (as verl does for tokens).
pub const MAX_LOG_RATIO: f64 = 20.0;

/// A ratio, and how it answers to its own token's logprob.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounded {
    pub value: f64,
    /// d value / d logp: the value, or 0 where [`MAX_LOG_RATIO`] holds it.
    pub slope: f64,
}

/// exp of a log-ratio that is held within [`MAX_LOG_RATIO`].
pub fn bounded(log_ratio: f64) -> Bounded {
    let value = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp();
    let slope = if log_ratio.abs() > MAX_LOG_RATIO { 0.0 } else { value };
    Bounded { value, slope }
}

/// Mean log-ratio of a sequence, the log of GSPO's s_i (arXiv 2507.18071, eq. 7). 0 for a sequence without tokens.
pub fn mean(differences: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = differences.len().max(1) as f64;
    differences.sum::<f64>() / n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_logprob_gives_a_finite_ratio_without_slope() {
        assert_eq!(
            bounded(-1e30),
            Bounded {
                value: (-20.0f64).exp(),
                slope: 0.0
            }
        );
        assert_eq!(
            bounded(1e30),
            Bounded {
                value: 20.0f64.exp(),
                slope: 0.0
            }
        );
        assert_eq!(bounded(0.0), Bounded { value: 1.0, slope: 1.0 });
    }

    #[test]
    fn a_sequence_without_tokens_has_ratio_one() {
        assert_eq!(
            bounded(mean(std::iter::empty::<f64>().collect::<Vec<_>>().into_iter())).value,
            1.0
        );
        assert_eq!(mean([1.0, -3.0].into_iter()), -1.0);
    }
}
