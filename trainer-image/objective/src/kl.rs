//! Distance from a reference policy, per token: five estimators, and three ways to differentiate them.
//!
//! With x = log p(policy) - log p(reference) of a token that the policy sampled (Schulman, "Approximating KL
//! divergence", 2020): k1 = x, k2 = x^2 / 2, k3 = e^-x - 1 + x; beside them |x| (verl's `abs`) and (e^-x - 1)^2 / 2.
//!
//! E[k1] and E[k3] are the divergence, but their derivatives are not its gradient: E[dk1] = 0, and E[dk3] is the
//! gradient of the *forward* KL. E[dk2] is the gradient of the divergence itself, if the policy itself sampled.
//! [`KlGradient`] therefore chooses one.

use grpo_crds::algorithm::{Kl, KlEstimator, KlGradient};

use crate::ratio::{Bounded, MAX_LOG_RATIO};

/// A value and its derivative by the token's logprob.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Penalty {
    pub value: f64,
    pub gradient: f64,
}

/// The estimator as written, at x. If it contains e^-x, x is clamped to [`MAX_LOG_RATIO`].
pub fn estimate(estimator: KlEstimator, x: f64) -> Penalty {
    let held = x.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO);
    let inside = if held == x { 1.0 } else { 0.0 };
    let e = (-held).exp();
    let (value, gradient) = match estimator {
        KlEstimator::K1 => (x, 1.0),
        KlEstimator::K2 => (x * x / 2.0, x),
        KlEstimator::K3 => (e - 1.0 + held, inside * (1.0 - e)),
        // The kink has no slope.
        KlEstimator::Abs => (x.abs(), if x == 0.0 { 0.0 } else { x.signum() }),
        KlEstimator::SquaredRatio => ((e - 1.0).powi(2) / 2.0, -inside * (e - 1.0) * e),
    };
    Penalty { value, gradient }
}

/// A token's penalty in the loss, before coefficient and weight. `ratio`: the token's own, of new to old probability.
pub fn penalty(kl: &Kl, x: f64, ratio: Bounded) -> Penalty {
    let plain = estimate(kl.estimator, x);
    match kl.gradient {
        KlGradient::Estimator => plain,
        KlGradient::StraightThrough => Penalty {
            gradient: estimate(KlEstimator::K2, x).gradient,
            ..plain
        },
        KlGradient::ImportanceWeighted => Penalty {
            value: ratio.value * plain.value,
            gradient: ratio.slope * plain.value + ratio.value * plain.gradient,
        },
    }
}

/// A reward minus the penalty, before advantages are computed. `differences`: x of every trained token of the episode,
/// under the policy that sampled.
pub fn shaped_reward(reward: f64, kl: &Kl, differences: impl Iterator<Item = f64>) -> f64 {
    reward - kl.coefficient * differences.map(|x| estimate(kl.estimator, x).value).sum::<f64>()
}

#[cfg(test)]
mod tests;
