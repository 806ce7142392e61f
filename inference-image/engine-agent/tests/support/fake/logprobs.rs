//! The logprobs that a simulated engine computes for a canary.

use super::Told;

/// The logprob of every token of a prompt but the first.
pub const PROMPT_LOGPROB: f32 = -2.0;

impl Told {
    pub(super) fn of_prompts(&self) -> f32 {
        if self.computes_with_others {
            -9.0
        } else {
            PROMPT_LOGPROB
        }
    }

    /// The choice between a token with this bias and one other token, and its logprob.
    pub(super) fn greedy(&self, token: u32, bias: f64) -> (u32, f64) {
        let logprob = f64::from(self.of_prompts());
        let odds = (logprob + bias).exp() / (1.0 - logprob.exp());
        match odds > 1.0 {
            true => (token, (odds / (1.0 + odds)).ln()),
            false => (token + 1, (1.0 / (1.0 + odds)).ln()),
        }
    }
}
