//! Ratios of new to old probability: of a token, and of a sequence.
//!
//! All ratios come from log-ratios clamped to [`MAX_LOG_RATIO`], so that one broken logprob makes neither loss nor
//! gradient infinite.

/// Bound on the log-ratio's absolute value (as in verl for tokens).
pub const MAX_LOG_RATIO: f64 = 20.0;

/// A ratio, and its derivative by its own token's logprob.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounded {
    pub value: f64,
    /// d value / d logp: the value, or 0 if [`MAX_LOG_RATIO`] clamps it.
    pub slope: f64,
}

/// exp of a log-ratio, clamped to [`MAX_LOG_RATIO`].
pub fn bounded(log_ratio: f64) -> Bounded {
    let value = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp();
    let slope = if log_ratio.abs() > MAX_LOG_RATIO { 0.0 } else { value };
    Bounded { value, slope }
}

#[cfg(test)]
mod tests;
