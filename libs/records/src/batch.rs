//! What one training step consumes: raw rewards and exact tokens. Advantages are the trainer's to compute.

use crate::outcome::Outcome;
use crate::record::{Record, SCHEMA, Writer};
use serde::{Deserialize, Serialize};

/// `batches/step-<k>.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Batch {
    pub schema: u32,
    pub writer: Writer,
    /// The run's uid.
    pub run: String,
    pub iteration: u32,
    pub step: u32,
    /// Groups that stayed, in order; a group with fewer than two valid episodes is not here.
    pub groups: Vec<GroupRecord>,
    pub rows: Vec<Row>,
}

impl Batch {
    pub fn new(writer: Writer, run: impl Into<String>, iteration: u32, step: u32) -> Self {
        Self {
            schema: SCHEMA,
            writer,
            run: run.into(),
            iteration,
            step,
            groups: Vec::new(),
            rows: Vec::new(),
        }
    }
}

impl Record for Batch {}

/// One prompt and what became of its samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupRecord {
    pub group: u32,
    pub instance: String,
    /// Raw reward of every valid episode, in the order of its samples.
    pub rewards: Vec<f32>,
    /// Episodes that left the group because they stayed void within their budget.
    pub voids: u32,
}

/// One training sequence. `mask[i] = 1` exactly where `tokens[i]` was sampled; `logprobs[i]` is then the engine's, and
/// 0 elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub group: u32,
    /// Names the episode within its iteration: `<instance>__g<group>__i<sample>`.
    pub episode: String,
    /// Position of the task in its dataset.
    pub task: u32,
    pub instance: String,
    /// For agents whose history is rewritten: which turn this row is. Absent where a row is a whole episode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    pub tokens: Vec<u32>,
    pub mask: Vec<u8>,
    pub logprobs: Vec<f32>,
    pub weights: Vec<WeightsSpan>,
    /// Which experts of a mixture computed the tokens, as far as an engine has said it. In order, without overlaps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub experts: Vec<ExpertsSpan>,
    pub temperature: f32,
    pub reward: f32,
    pub outcome: Outcome,
    /// The episode was ended by a limit, not by the policy.
    pub truncated: bool,
}

/// Tokens `from..to` were sampled by `version`. Spans are in order and cover every sampled token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightsSpan {
    pub from: usize,
    pub to: usize,
    pub version: String,
}

/// Tokens `from..to` went through the experts that `file` lists, a path below the store:
/// `[to - from, layers with experts, experts per token]` numbers of experts, one byte each where a layer has at most
/// 256 of them, else two, the lower one first. A trainer sends the tokens through the same ones (router replay, arXiv
/// 2510.11370); tokens in no span, such as the last one sampled, go where its own router sends them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpertsSpan {
    pub from: usize,
    pub to: usize,
    pub file: String,
    /// Of the whole file.
    pub sha256: String,
}

impl ExpertsSpan {
    /// Bytes of one number in a file, where a layer has so many experts.
    pub fn number_bytes(experts: usize) -> usize {
        if experts <= 256 { 1 } else { 2 }
    }
}

/// What is wrong with a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowFault {
    #[error(
        "row of {episode}: {tokens} tokens, {mask} mask entries and {logprobs} logprobs; the three must be of one length"
    )]
    Lengths {
        episode: String,
        tokens: usize,
        mask: usize,
        logprobs: usize,
    },
    #[error("row of {episode}: mask at {at} is neither 0 nor 1")]
    Mask { episode: String, at: usize },
    #[error("row of {episode}: logprob at {at} is {what}")]
    Logprob {
        episode: String,
        at: usize,
        what: &'static str,
    },
    #[error("row of {episode}: the sampled token at {at} is in no weights span, or in two")]
    Span { episode: String, at: usize },
    #[error(
        "row of {episode}: the experts of tokens {from}..{to} are out of order, empty or beyond its {tokens} tokens"
    )]
    Experts {
        episode: String,
        from: usize,
        to: usize,
        tokens: usize,
    },
    #[error("row of {episode}: no token was sampled, so there is nothing to learn from")]
    NothingSampled { episode: String },
    #[error("row of {episode}: a void episode has no rows in a batch")]
    Void { episode: String },
}

impl Row {
    /// Refuses a row that would train on something that no policy sampled.
    pub fn check(&self) -> Result<(), RowFault> {
        let episode = || self.episode.clone();
        if self.tokens.len() != self.mask.len() || self.tokens.len() != self.logprobs.len() {
            return Err(RowFault::Lengths {
                episode: episode(),
                tokens: self.tokens.len(),
                mask: self.mask.len(),
                logprobs: self.logprobs.len(),
            });
        }
        if !self.outcome.is_verdict() {
            return Err(RowFault::Void { episode: episode() });
        }
        for (at, (mask, logprob)) in self.mask.iter().zip(&self.logprobs).enumerate() {
            let wrong = match mask {
                0 if *logprob != 0.0 => Some("not 0 where nothing was sampled"),
                1 if !logprob.is_finite() => Some("not finite"),
                1 if *logprob > 0.0 => Some("above 0"),
                0 | 1 => None,
                _ => return Err(RowFault::Mask { episode: episode(), at }),
            };
            if let Some(what) = wrong {
                return Err(RowFault::Logprob {
                    episode: episode(),
                    at,
                    what,
                });
            }
            if *mask == 1 && self.weights.iter().filter(|s| (s.from..s.to).contains(&at)).count() != 1 {
                return Err(RowFault::Span { episode: episode(), at });
            }
        }
        let mut done = 0;
        for span in &self.experts {
            if span.from < done || span.to <= span.from || span.to > self.tokens.len() {
                return Err(RowFault::Experts {
                    episode: episode(),
                    from: span.from,
                    to: span.to,
                    tokens: self.tokens.len(),
                });
            }
            done = span.to;
        }
        if self.mask.contains(&1) {
            Ok(())
        } else {
            Err(RowFault::NothingSampled { episode: episode() })
        }
    }

    /// How many of the tokens were sampled.
    pub fn sampled(&self) -> usize {
        self.mask.iter().filter(|m| **m == 1).count()
    }
}

#[cfg(test)]
mod tests;
