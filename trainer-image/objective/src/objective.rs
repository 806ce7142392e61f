//! The whole objective of a batch, which the trainer minimises: from logprobs to one number and its gradient.
//!
//! loss = sum over trained tokens of weight x (correction x policy loss + coefficient x KL penalty - coefficient x
//! entropy)
//!
//! Weights come from the aggregation ([`crate::loss::batch_weights`]), corrections are constants
//! ([`crate::correction`]). The gradient is by each token's logprob and entropy, the only inputs of a model's backward
//! pass: the trainer calls [`term`] for every token it has computed, and no formula has a second copy on tensors.

use grpo_crds::algorithm::{Algorithm, KlPlacement, OldLogprobs, Ratio};

use crate::correction::{self, Sums, TokenLogprobs};
use crate::kl;
use crate::loss::{batch_weights, policy_loss};
use crate::ratio::bounded;

/// A trained token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Token {
    /// Logprob under the trained policy, now.
    pub new: f64,
    /// The trainer's logprob under the weights from which the batch's first step starts.
    pub old: f64,
    /// The engine's logprob, recorded when the token was sampled.
    pub rollout: f64,
    /// Logprob under the reference policy; read only with `kl` in the loss.
    pub reference: f64,
    /// Entropy of the policy where the token was sampled, nats.
    pub entropy: f64,
}

impl Token {
    /// The logprob to which the new one is compared.
    pub fn ratio_base(&self, which: OldLogprobs) -> f64 {
        match which {
            OldLogprobs::Engine => self.rollout,
            OldLogprobs::Recompute => self.old,
        }
    }

    /// Its logprobs, for corrections.
    fn logprobs(&self) -> TokenLogprobs {
        TokenLogprobs {
            rollout: self.rollout,
            old: self.old,
            new: self.new,
        }
    }
}

/// An episode's rows together, or one row: `denominator` decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    pub advantage: f64,
    /// Trained tokens in order. Empty: the sequence is in no denominator.
    pub tokens: Vec<Token>,
}

/// Derivatives of the loss by one token's logprob and entropy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gradient {
    pub logprob: f64,
    pub entropy: f64,
}

/// The loss of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objective {
    /// Sum of the three parts below.
    pub loss: f64,
    pub policy: f64,
    /// With its coefficient.
    pub kl: f64,
    /// With its coefficient; at most 0.
    pub entropy: f64,
    /// By sequence and token.
    pub gradient: Vec<Vec<Gradient>>,
    /// Tokens whose ratio was clipped.
    pub clipped: u64,
    /// Tokens that a correction left out.
    pub left_out: u64,
}

/// One token's part of the batch's loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Term {
    pub policy: f64,
    /// With its coefficient.
    pub kl: f64,
    /// With its coefficient.
    pub entropy: f64,
    pub gradient: Gradient,
    /// The KL estimator's value, without weight and coefficient.
    pub divergence: f64,
    /// New to old probability: the token's own, or its sequence's.
    pub ratio: f64,
    /// Whether the ratio was clipped.
    pub clipped: bool,
    /// Whether a correction left the token out.
    pub left_out: bool,
}

impl Term {
    pub fn loss(&self) -> f64 {
        self.policy + self.kl + self.entropy
    }
}

/// Whether a token's loss depends on the other tokens of its sequence.
pub fn looks_at_sequences(algorithm: &Algorithm) -> bool {
    let correction = algorithm.correction.as_ref();
    looks_at_moving_sequences(algorithm)
        || correction
            .is_some_and(|correction| correction.level == Ratio::Sequence || correction.geometric_mask.is_some())
}

/// Whether a token's loss depends on the *current* logprobs of the other tokens of its sequence: these change with
/// every optimizer step.
pub fn looks_at_moving_sequences(algorithm: &Algorithm) -> bool {
    let correction = algorithm.correction.as_ref();
    algorithm.ratio == Ratio::Sequence || correction.is_some_and(|correction| correction.sequence_mask.is_some())
}

/// Sums over a sequence: all that [`term`] needs to know of the sequence's other tokens.
pub fn sums(tokens: &[Token], old: OldLogprobs) -> Sums {
    let mut sums = Sums::default();
    for token in tokens {
        sums.add(&token.logprobs(), token.ratio_base(old));
    }
    sums
}

/// One token's part of the loss. `weight`: from [`batch_weights`]. `sequence`: sums over the token's sequence, read
/// only if the algorithm [`looks_at_sequences`]. Reads all fields of `algorithm` between advantages and optimizer.
pub fn term(algorithm: &Algorithm, weight: f64, advantage: f64, sequence: &Sums, token: &Token) -> Term {
    let own = bounded(token.new - token.ratio_base(algorithm.old_logprobs));
    let ratio = match algorithm.ratio {
        Ratio::Token => own,
        Ratio::Sequence => bounded(sequence.moved / sequence.tokens.max(1.0)),
    };
    let corrected = match &algorithm.correction {
        None => 1.0,
        Some(correction) => correction::weight(correction, sequence, advantage, &token.logprobs()),
    };
    let policy = policy_loss(algorithm.loss, ratio, token.new, advantage, &algorithm.clip);
    let mut term = Term {
        policy: weight * corrected * policy.loss,
        entropy: -weight * algorithm.entropy_coefficient * token.entropy,
        gradient: Gradient {
            logprob: weight * corrected * policy.gradient,
            entropy: -weight * algorithm.entropy_coefficient,
        },
        ratio: ratio.value,
        clipped: policy.clipped,
        left_out: corrected == 0.0,
        ..Default::default()
    };
    if let Some(kl) = algorithm.kl.as_ref().filter(|kl| kl.placement == KlPlacement::Loss) {
        let penalty = kl::penalty(kl, token.new - token.reference, own);
        term.divergence = penalty.value;
        term.kl = weight * kl.coefficient * penalty.value;
        term.gradient.logprob += weight * kl.coefficient * penalty.gradient;
    }
    term
}

/// Loss and gradient of a whole batch.
pub fn objective(sequences: &[Sequence], algorithm: &Algorithm) -> Objective {
    let tokens: Vec<u64> = sequences.iter().map(|sequence| sequence.tokens.len() as u64).collect();
    let weights = batch_weights(&tokens, algorithm.aggregation, algorithm.aggregation_length);
    let mut result = Objective::default();
    for (Sequence { advantage, tokens }, weight) in sequences.iter().zip(weights) {
        let whole = sums(tokens, algorithm.old_logprobs);
        let mut gradients = Vec::with_capacity(tokens.len());
        for token in tokens {
            let term = term(algorithm, weight, *advantage, &whole, token);
            result.policy += term.policy;
            result.kl += term.kl;
            result.entropy += term.entropy;
            result.clipped += u64::from(term.clipped);
            result.left_out += u64::from(term.left_out);
            gradients.push(term.gradient);
        }
        result.gradient.push(gradients);
    }
    result.loss = result.policy + result.kl + result.entropy;
    result
}

#[cfg(test)]
mod tests;
