//! vLLM's logprobs of a version's canary.
//!
//! Of full weights: `prompt_logprobs` of one request. By reports (#16668, #29955) these may be wrong beside
//! `--enable-lora`, or end the engine. So an adapter is asked as a run asks it, for sampled tokens. A canary's token is
//! seldom the likeliest one: a bias lifts its logit, the greedy choice is this token, and its logprob is computed back.
//! That needs logprobs after the bias, for which the operator starts vLLM (`--logprobs-mode processed_logprobs`). vLLM
//! refuses a bias beside speculative decoding; then nothing is compared.
//!
//! `logprob_token_ids` (0.32) would need no bias. But vLLM then reports these ids for other rows of the batch too.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use grpo_records::weights::Canary;
use serde::Deserialize;
use serde_json::json;

use super::{Completion, Vllm};
use crate::engine::canary::ADAPTER_DEADLINE;
use crate::engine::wire::{CHECK_DEADLINE, ask};
use crate::engine::{EngineFault, SERVED_NAME};

/// One in so many tokens of the canary is asked for.
const STRIDE: usize = 4;
/// What the bias makes of a token's log-odds if the engine computes what the trainer does: 98 % of the probability.
const LIFTED: f64 = 4.0;

/// A completion with the logprobs of its prompt.
#[derive(Deserialize)]
struct Scored {
    choices: Vec<ScoredRow>,
}

/// For each token of the prompt, some ids with their logprobs: the token's own and the likeliest.
#[derive(Deserialize)]
struct ScoredRow {
    #[serde(default)]
    prompt_logprobs: Option<Vec<Option<BTreeMap<String, Logprob>>>>,
}

#[derive(Deserialize)]
struct Logprob {
    logprob: f32,
}

impl Vllm {
    /// Logprobs of the canary's tokens from the second one on, under full weights.
    pub(super) async fn logprobs(&self, canary: &Canary) -> Result<Vec<f32>, EngineFault> {
        let tokens = canary.tokens.as_slice();
        let url = self.server.at("/v1/completions");
        let asked = json!({"model": SERVED_NAME, "prompt": tokens, "n": 1, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1});
        let call = self.server.client.post(url.clone()).timeout(CHECK_DEADLINE);
        let answer: Scored = ask(call.json(&asked), &url).await?;
        let said = answer.choices.into_iter().next().and_then(|row| row.prompt_logprobs);
        let of_token = |(said, token): (Option<BTreeMap<String, Logprob>>, &u32)| {
            said.and_then(|of_ids| of_ids.get(&token.to_string()).map(|found| found.logprob))
        };
        // Nothing predicts the first token.
        let found = said.unwrap_or_default().into_iter().zip(tokens).skip(1).map(of_token);
        found
            .collect::<Option<Vec<f32>>>()
            .filter(|found| found.len() + 1 >= tokens.len())
            .ok_or_else(|| EngineFault::Misunderstood {
                url: url.to_string(),
                cause: "a token of a prompt has no logprob, although prompt_logprobs was asked for".to_owned(),
            })
    }

    /// The trainer's logprobs of some of the canary's tokens, and those of the adapter `version`: of those tokens for
    /// which vLLM answered in time. Rows of an adapter wait while vLLM has rows of as many others as it has room for.
    pub(super) async fn logprobs_of_adapter(
        &self,
        version: &str,
        canary: &Canary,
    ) -> (Vec<f32>, Result<Vec<f32>, EngineFault>) {
        // The later ones, which depend on more of the prompt.
        let all = canary.logprobs.iter().zip(1..canary.tokens.len());
        let some: Vec<(&f32, usize)> = all.rev().step_by(STRIDE).collect();
        let salt = salt();
        let asked = some.iter().map(|(expected, at)| {
            let (before, rest) = canary.tokens.split_at(*at);
            self.logprob_of_next(version, before, rest[0], **expected, &salt)
        });
        let (mut answered, mut found, mut missing) = (Vec::new(), Vec::new(), None);
        for ((expected, _), said) in some.iter().zip(join_all(asked).await) {
            match said {
                Ok(logprob) => {
                    answered.push(**expected);
                    found.push(logprob);
                }
                Err(fault) => missing = Some(fault),
            }
        }
        match missing {
            Some(fault) if found.is_empty() => (answered, Err(fault)),
            _ => (answered, Ok(found)),
        }
    }

    /// Logprob of `token` after these under the adapter `version`; an upper bound of it if the engine prefers another
    /// token in spite of the bias.
    async fn logprob_of_next(
        &self,
        version: &str,
        before: &[u32],
        token: u32,
        expected: f32,
        salt: &str,
    ) -> Result<f32, EngineFault> {
        let url = self.server.at("/v1/completions");
        let bias = bias_for(f64::from(expected));
        let asked = json!({
            "model": version, "prompt": before, "n": 1, "max_tokens": 1, "temperature": 0.0, "ignore_eos": true,
            "logprobs": 0, "return_token_ids": true, "logit_bias": {token.to_string(): bias}, "cache_salt": salt,
        });
        let call = self.server.client.post(url.clone()).timeout(ADAPTER_DEADLINE);
        let answer: Completion = ask(call.json(&asked), &url).await?;
        let row = answer.choices.into_iter().next().unwrap_or_default();
        let id = row.token_ids.and_then(|ids| ids.first().copied());
        let said = row
            .logprobs
            .and_then(|said| said.token_logprobs.first().copied().flatten());
        let (Some(id), Some(said)) = (id, said) else {
            return Err(EngineFault::Misunderstood {
                url: url.to_string(),
                cause: "a sampled token has no id or no logprob, although both were asked for".to_owned(),
            });
        };
        Ok(without_bias(f64::from(said), id == token, bias) as f32)
    }
}

/// A name of one comparison. vLLM's prefix cache knows an adapter by its name and folder, so after a load that failed
/// it has prefixes of the same prompt which were computed with other weights.
fn salt() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("canary-{}", now.as_nanos())
}

/// Odds are probability / (1 - probability). Of a token they grow by the factor e^bias.
fn log_odds(logprob: f64) -> f64 {
    logprob - (-logprob.exp_m1()).ln()
}

/// The bias that gives a token of this logprob the log-odds [`LIFTED`] at least; vLLM takes biases up to 100.
fn bias_for(logprob: f64) -> f64 {
    (LIFTED - log_odds(logprob.min(-1e-6))).clamp(0.0, 100.0)
}

/// The logprob of the token with this bias, from the logprob with which the greedy choice was `said`. If that is
/// another token, ours has at most the rest of the probability, and at most as much.
fn without_bias(said: f64, chosen: bool, bias: f64) -> f64 {
    let lifted = match chosen {
        true => log_odds(said),
        false => -log_odds(said).abs(),
    };
    let odds = lifted - bias;
    // ln(1 / (1 + e^-odds)), which does not overflow.
    odds.min(0.0) - (-odds.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::canary::MOST;

    /// What the agent finds if a token has this logprob, and another one all of the rest or a share of it.
    fn found(expected: f64, engine: f64, share: f64) -> f64 {
        let bias = bias_for(expected);
        let (own, rest) = (engine.exp() * bias.exp(), -engine.exp_m1());
        let chosen = own >= rest * share;
        let said = match chosen {
            true => own / (own + rest),
            false => rest * share / (own + rest),
        };
        // What the wire has is rounded to 32 bits.
        without_bias(f64::from(said.ln() as f32), chosen, bias)
    }

    #[test]
    fn a_logprob_near_the_trainers_is_computed_back() {
        for expected in [-18.0, -11.3, -2.0, -0.3, -0.001, 0.0] {
            for engine in [expected - 0.4, expected - 0.01, (expected + 0.4_f64).min(-0.002)] {
                let found = found(expected, engine, 0.3);
                assert!((found - engine).abs() < 1e-3, "{found}, not {engine}");
            }
        }
    }

    #[test]
    fn a_logprob_far_from_the_trainers_is_found_to_be_far_whichever_token_is_chosen() {
        for (expected, engine) in [
            (-11.0, -16.0),
            (-11.0, -30.0),
            (-0.001, -3.0),
            (-0.5, -6.0),
            (-11.0, -2.0),
            (-9.0, -0.1),
        ] {
            for share in [1.0, 0.3, 0.01] {
                let found = found(expected, engine, share);
                assert!(
                    (found - expected).abs() > f64::from(MOST),
                    "{expected} and {engine}: {found}"
                );
                // A bound is above the true logprob, never below it.
                assert!(found > engine - 1e-3, "{expected} and {engine}: {found}");
            }
        }
    }

    #[test]
    fn certain_and_impossible_tokens_have_logprobs_too() {
        for said in [0.0, -1e-9, f64::NEG_INFINITY] {
            for chosen in [true, false] {
                assert!(!without_bias(said, chosen, bias_for(-9.0)).is_nan(), "{said} {chosen}");
            }
        }
    }
}
