//! From logprobs to a loss, its gradient and a step's metrics: applies the objective's formula
//! ([`grpo_objective::objective::term`]) to every trained token of a micro-batch.

use grpo_crds::algorithm::{Algorithm, KlPlacement};
use grpo_objective::Token;
use grpo_objective::correction::Sums;
use grpo_objective::objective::{looks_at_sequences, sums, term};
use grpo_records::trainer::StepMetrics;

use crate::error::TrainError;
use crate::loss_fn::LossGrad;
use crate::micro_batch::MicroBatch;
use crate::sharded::Sharded;
use crate::token_stats::{SeenToken, TokenStats};
use crate::train_row::TrainRow;

/// A gap between the engine's and the trainer's logprob that rounding does not explain.
pub const LOGPROB_GAP: f64 = 1e-3;

/// Sums over trained tokens, over all of a batch's optimizer steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    tokens: f64,
    policy: f64,
    kl: f64,
    entropy_bonus: f64,
    divergence: f64,
    clipped_low: f64,
    clipped_high: f64,
    left_out: f64,
    deviation: f64,
    entropy: f64,
    gap_over: f64,
    gap_max: f64,
    /// Also for each token, if that is wanted.
    pub tokens_seen: Option<TokenStats>,
}

impl Tally {
    /// Sums of nothing yet. `tokens`: statistics of each token, if they are wanted too.
    pub fn seeing(tokens: Option<TokenStats>) -> Self {
        Self {
            tokens_seen: tokens,
            ..Self::default()
        }
    }

    /// Sums over ranks. Every rank must call it.
    pub fn over_ranks(self, model: &Sharded) -> Result<Self, TrainError> {
        let (world, rank) = (model.group.world() as usize, model.group.rank() as usize);
        let mut numbers = vec![
            self.tokens,
            self.policy,
            self.kl,
            self.entropy_bonus,
            self.divergence,
            self.clipped_low,
            self.clipped_high,
            self.left_out,
            self.deviation,
            self.entropy,
            self.gap_over,
        ];
        // A maximum by means of a sum: each rank writes its own place.
        numbers.extend((0..world).map(|place| if place == rank { self.gap_max } else { 0.0 }));
        let numbers = model.sum(&numbers)?;
        let mut next = numbers.iter().copied();
        let mut next = || next.next().unwrap_or(f64::NAN);
        Ok(Self {
            tokens: next(),
            policy: next(),
            kl: next(),
            entropy_bonus: next(),
            divergence: next(),
            clipped_low: next(),
            clipped_high: next(),
            left_out: next(),
            deviation: next(),
            entropy: next(),
            gap_over: next(),
            gap_max: (0..world).map(|_| next()).fold(0.0, f64::max),
            tokens_seen: self.tokens_seen,
        })
    }

    /// Writes the metrics. `updates`: number of optimizer steps in the sums. `not_computed`: trained tokens whose loss
    /// is always 0; none of them is clipped.
    pub fn tell(&self, metrics: &mut StepMetrics, algorithm: &Algorithm, updates: u32, not_computed: u64) {
        let (tokens, updates) = (self.tokens.max(1.0), f64::from(updates.max(1)));
        let all = (self.tokens + not_computed as f64).max(1.0);
        metrics.policy_loss = self.policy / updates;
        metrics.kl_loss = self.kl / updates;
        metrics.entropy_loss = self.entropy_bonus / updates;
        metrics.loss = metrics.policy_loss + metrics.kl_loss + metrics.entropy_loss;
        metrics.clip_fraction = (self.clipped_low + self.clipped_high) / all;
        metrics.clip_fraction_high = self.clipped_high / all;
        metrics.left_out_fraction = self.left_out / tokens;
        metrics.ratio_deviation = self.deviation / tokens;
        metrics.entropy = self.entropy / tokens;
        metrics.logprob_gap_over = self.gap_over as u64;
        metrics.logprob_gap_max = self.gap_max;
        if algorithm
            .kl
            .as_ref()
            .is_some_and(|kl| kl.placement == KlPlacement::Loss)
        {
            metrics.kl = self.divergence / tokens;
        }
    }
}

/// The loss of the rows of one optimizer step.
pub struct Losses<'a> {
    pub algorithm: &'a Algorithm,
    pub rows: &'a [TrainRow],
    /// Sums of every sequence of `rows`, if known beforehand; otherwise they are summed over the tokens of a call,
    /// which then holds whole sequences.
    pub sums: Option<Vec<Sums>>,
    /// Whether the weights are those from which the batch's first optimizer step starts.
    pub first: bool,
    /// Whether these tokens are trained on for the first time: their gaps count once.
    pub new: bool,
}

impl Losses<'_> {
    /// A trained token whose logprob is now `new`.
    fn token(&self, (row, at): (usize, usize), new: f64, entropy: f64) -> Token {
        let row = &self.rows[row];
        Token {
            new,
            old: row.old_logprobs.get(at).copied().unwrap_or(new),
            rollout: row.rollout_logprobs.get(at).map_or(0.0, |logprob| f64::from(*logprob)),
            reference: row.reference.get(at).copied().unwrap_or(0.0),
            entropy,
        }
    }

    /// Sums over the sequences, from the logprobs of every token of every row: `now[row][token]`.
    pub fn sums_of(rows: &[TrainRow], now: &[Vec<f64>], algorithm: &Algorithm) -> Vec<Sums> {
        let this = Losses {
            algorithm,
            rows,
            sums: None,
            first: false,
            new: false,
        };
        let all = rows.iter().zip(now).enumerate();
        let tokens = all.flat_map(|(number, (row, now))| row.trained().map(move |at| ((number, at), now[at])));
        this.by_sequence(tokens.map(|(place, new)| (place.0, this.token(place, new, 0.0))))
    }

    fn by_sequence(&self, tokens: impl Iterator<Item = (usize, Token)>) -> Vec<Sums> {
        let count = self.rows.iter().map(|row| row.sequence + 1).max().unwrap_or(0);
        let mut lists: Vec<Vec<Token>> = vec![Vec::new(); count];
        for (row, token) in tokens {
            lists[self.rows[row].sequence].push(token);
        }
        lists
            .iter()
            .map(|tokens| sums(tokens, self.algorithm.old_logprobs))
            .collect()
    }

    /// Loss and gradient of a call's tokens; their metrics are added to `tally`.
    pub fn gradient(&self, batch: &MicroBatch, logprobs: &[f64], entropies: &[f64], tally: &mut Tally) -> LossGrad {
        let tokens: Vec<Token> = batch
            .trained
            .iter()
            .zip(logprobs.iter().zip(entropies))
            .map(|(place, (new, entropy))| self.token(*place, *new, *entropy))
            .collect();
        let own = match &self.sums {
            None if looks_at_sequences(self.algorithm) => {
                let rows = batch.trained.iter().map(|(row, _)| *row);
                self.by_sequence(rows.zip(tokens.iter().copied()))
            }
            _ => Vec::new(),
        };
        let all = self.sums.as_ref().unwrap_or(&own);
        let mut gradient = LossGrad::default();
        for ((row, at), token) in batch.trained.iter().zip(&tokens) {
            let row = &self.rows[*row];
            let sums = all.get(row.sequence).copied().unwrap_or_default();
            let term = term(self.algorithm, f64::from(row.weights[*at]), row.advantage, &sums, token);
            gradient.loss += term.loss();
            gradient.logprobs.push(term.gradient.logprob);
            if self.algorithm.entropy_coefficient != 0.0 {
                gradient.entropies.push(term.gradient.entropy);
            }
            if let Some(stats) = &mut tally.tokens_seen {
                let seen = SeenToken {
                    row: row.number,
                    at: *at,
                    logprob: token.old,
                    entropy: token.entropy,
                    new: self.new,
                };
                stats.see(seen, &term);
            }
            tally.tokens += 1.0;
            tally.policy += term.policy;
            tally.kl += term.kl;
            tally.entropy_bonus += term.entropy;
            tally.divergence += term.divergence;
            tally.clipped_low += f64::from(u8::from(term.clipped && term.ratio < 1.0));
            tally.clipped_high += f64::from(u8::from(term.clipped && term.ratio >= 1.0));
            tally.left_out += f64::from(u8::from(term.left_out));
            tally.deviation += (term.ratio - 1.0).abs();
            tally.entropy += token.entropy;
            // Later optimizer steps have the old logprobs only if they were computed beforehand.
            if self.new && (self.first || !row.old_logprobs.is_empty()) {
                let gap = (token.old - token.rollout).abs();
                tally.gap_over += f64::from(u8::from(gap > LOGPROB_GAP));
                tally.gap_max = tally.gap_max.max(gap);
            }
        }
        gradient
    }
}

#[cfg(test)]
mod tests;
