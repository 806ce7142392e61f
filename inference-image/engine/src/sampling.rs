//! From logits to one token and its logprob.
//!
//! The processed distribution: logits with penalties, divided by the temperature; `min_p` drops some, `top_k` keeps the
//! k likeliest of the rest, `top_p` the smallest set of these that reaches its mass; renormalised. This is vLLM's
//! order. It is computed in f64 and its logprob is reported, so a trainer that recomputes `log_softmax(logits /
//! temperature)` finds the same number if nothing was cut off or penalised.
//!
//! Randomness is a function, not a stream: [`uniform`] of (seed, row, position). So other rows and their order do not
//! change a row's draws. A prompt that is extended by its own sampled tokens continues exactly as the longer row did.

use grpo_engine_protocol::Penalties;
use std::collections::{BTreeMap, BTreeSet};

/// How to choose a token. Bounds are checked when a request arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    pub top_p: f64,
    /// 0 keeps all.
    pub top_k: usize,
    pub penalties: Penalties,
    pub seed: u64,
}

/// A row before its next sampled token.
#[derive(Clone, Copy, Debug)]
pub struct SoFar<'a> {
    /// Its number in the request.
    pub row: u32,
    /// Prompt and answer.
    pub tokens: &'a [u32],
    /// Length of the prompt.
    pub prompt: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    pub token: u32,
    pub logprob: f32,
}

/// The logits contain NaN or +∞, or all are -∞.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the logits are not finite")]
pub struct NonFinite;

impl Sampling {
    /// Samples the next token of a row.
    pub fn sample(&self, logits: &[f32], so_far: SoFar<'_>) -> Result<Sampled, NonFinite> {
        let temperature = if self.temperature > 0.0 { self.temperature } else { 1.0 };
        let mut scaled: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
        self.penalise(&mut scaled, so_far);
        scaled.iter_mut().for_each(|logit| *logit /= temperature);
        let (likeliest, highest) = highest(&scaled).ok_or(NonFinite)?;
        let mut weights: Vec<f64> = scaled.iter().map(|value| (value - highest).exp()).collect();
        if self.temperature > 0.0 {
            self.cut(&mut weights);
        }
        let total: f64 = weights.iter().sum();
        let token = match self.temperature > 0.0 {
            true => {
                let position = so_far.tokens.len() as u32;
                draw(&weights, uniform(self.seed, so_far.row, position) * total)
            }
            false => likeliest,
        };
        Ok(Sampled {
            token: token as u32,
            logprob: (scaled[token] - highest - total.ln()) as f32,
        })
    }

    /// Penalises the logits of tokens that the row contains. Ids outside the vocabulary have no logit.
    fn penalise(&self, logits: &mut [f64], so_far: SoFar<'_>) {
        let Penalties {
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            ..
        } = self.penalties;
        if repetition_penalty != 1.0 {
            for id in so_far.tokens.iter().collect::<BTreeSet<_>>() {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit *= if *logit > 0.0 {
                        repetition_penalty.recip()
                    } else {
                        repetition_penalty
                    };
                }
            }
        }
        if presence_penalty != 0.0 || frequency_penalty != 0.0 {
            let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
            for id in &so_far.tokens[so_far.prompt..] {
                *counts.entry(*id).or_default() += 1;
            }
            for (id, count) in counts {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit -= presence_penalty + frequency_penalty * f64::from(count);
                }
            }
        }
    }

    /// Sets the weights that `min_p`, `top_k` and `top_p` exclude to zero. Of equal weights the lower id is kept. The
    /// largest weight is 1.
    fn cut(&self, weights: &mut [f64]) {
        let least = self.penalties.min_p;
        if least > 0.0 {
            weights
                .iter_mut()
                .filter(|weight| **weight < least)
                .for_each(|weight| *weight = 0.0);
        }
        let all = self.top_k == 0 || self.top_k >= weights.len();
        if all && self.top_p >= 1.0 {
            return;
        }
        let mut largest = Largest::of(weights);
        let most = if all { weights.len() } else { self.top_k };
        let kept = match self.top_p < 1.0 {
            false => most,
            true => {
                let sum: f64 = match all {
                    true => weights.iter().sum(),
                    false => largest.first(most).iter().map(|(_, weight)| weight).sum(),
                };
                largest.reaching(self.top_p * sum, most)
            }
        };
        let kept = largest.first(kept).to_vec();
        weights.fill(0.0);
        for (id, weight) in kept {
            weights[id] = weight;
        }
    }
}

/// Ids with their weights, sorted only as far as needed, because a vocabulary is large and few of its tokens matter.
/// The largest weights come first; among equal weights, the lower id.
struct Largest {
    all: Vec<(usize, f64)>,
    ordered: usize,
}

/// Number sorted at first.
const AT_FIRST: usize = 64;

impl Largest {
    fn of(weights: &[f64]) -> Self {
        Self {
            all: weights.iter().copied().enumerate().collect(),
            ordered: 0,
        }
    }

    /// The `count` largest, in order.
    fn first(&mut self, count: usize) -> &[(usize, f64)] {
        let before = |a: &(usize, f64), b: &(usize, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if count > self.ordered {
            let rest = &mut self.all[self.ordered..];
            let more = count - self.ordered;
            if more < rest.len() {
                rest.select_nth_unstable_by(more, before);
            }
            rest[..more].sort_unstable_by(before);
            self.ordered = count;
        }
        &self.all[..count]
    }

    /// How many of the `most` largest reach `enough` weight in total: at least one.
    fn reaching(&mut self, enough: f64, most: usize) -> usize {
        let (mut reached, mut count, mut looked) = (0.0, 0, AT_FIRST.min(most));
        loop {
            for (_, weight) in &self.first(looked)[count..] {
                if reached >= enough {
                    return count.max(1);
                }
                reached += weight;
                count += 1;
            }
            if looked == most || reached >= enough {
                return count.max(1);
            }
            looked = (4 * looked).min(most);
        }
    }
}

/// The first index of the highest value; `None` if a value is NaN or +∞, or all are -∞.
fn highest(values: &[f64]) -> Option<(usize, f64)> {
    let mut best: Option<(usize, f64)> = None;
    for (index, value) in values.iter().enumerate() {
        if value.is_nan() || *value == f64::INFINITY {
            return None;
        }
        if best.is_none_or(|(_, highest)| *value > highest) {
            best = Some((index, *value));
        }
    }
    best.filter(|(_, highest)| highest.is_finite())
}

/// The index at which the running sum of weights passes `mark`.
fn draw(weights: &[f64], mark: f64) -> usize {
    let mut reached = 0.0;
    let mut last = 0;
    for (index, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
        last = index;
        reached += weight;
        if reached > mark {
            break;
        }
    }
    last
}

/// A number in [0, 1) with 53 random bits: Philox4x32-10 with the seed as key and (position, row) as counter.
pub fn uniform(seed: u64, row: u32, position: u32) -> f64 {
    let [low, high, ..] = philox([position, row, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let first = u64::from(counter[0]) * 0xD251_1F53;
        let second = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests;
