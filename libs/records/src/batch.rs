//! The input of one training step: raw rewards and exact tokens. The trainer computes the advantages.
//!
//! The stored batch names the rows of episodes and does not repeat their ids; [`Batch::fill`] reads them.

use crate::ended::EndedEpisode;
use crate::episode::EpisodeMeta;
use crate::event::RunAgent;
use crate::judged::ProcessRule;
use crate::outcome::Outcome;
use crate::paths;
use crate::record::{Record, SCHEMA, Writer};
use crate::rows::{self, ExpertsSpan, RowsError, TokenRow, WeightsSpan};
use crate::store::sha256_hex;
use crate::turn::TurnRecord;
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
    /// The groups that the batch keeps, in order. A group with fewer than two valid episodes is not here.
    pub groups: Vec<GroupRecord>,
    pub rows: Vec<Row>,
    /// Set in mode Finetune: the rows are conversations, and their masks mark the tokens to learn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervised: Option<Supervised>,
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
            supervised: None,
        }
    }
}

impl Record for Batch {}

/// The settings of a batch of mode Finetune, besides its rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Supervised {
    /// Steps of the whole run, for the learning rate schedule. They follow from the dataset, which the trainer does not
    /// read.
    pub steps: u32,
    /// Held-out rows: the loss is measured on them after the step, and they are not trained on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_out: Vec<Row>,
}

/// Why the rows that a batch names cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FillError<E: std::error::Error + 'static> {
    #[error("reading {file}: {source}")]
    Read { file: String, source: E },
    #[error("{file} is no file of rows")]
    Path { file: String },
    #[error("{file}: its sha256 is {found}, the batch says {wanted}")]
    Changed {
        file: String,
        found: String,
        wanted: String,
    },
    #[error("{file}: {source}")]
    Rows { file: String, source: RowsError },
    #[error("{file} has {rows} rows, the batch names row {row}")]
    Row { file: String, rows: usize, row: u32 },
    #[error("row {row} of {file} has {tokens} tokens, the batch names an answer at {from}..{to}")]
    Answer {
        file: String,
        row: u32,
        tokens: usize,
        from: usize,
        to: usize,
    },
}

impl Batch {
    /// Reads the ids of every row. `read` returns a file of the store by its path.
    pub fn fill<E, B>(&mut self, mut read: impl FnMut(&str) -> Result<B, E>) -> Result<(), FillError<E>>
    where
        E: std::error::Error + 'static,
        B: AsRef<[u8]>,
    {
        // Rows of one episode follow each other.
        let mut last: Option<(StoredRows, Vec<TokenRow>)> = None;
        let held_out = self
            .supervised
            .iter_mut()
            .flat_map(|supervised| &mut supervised.held_out);
        for row in self.rows.iter_mut().chain(held_out) {
            let stored = &row.stored;
            let known = last.take().filter(|(known, _)| *known == stored.rows);
            let (_, of_file) = last.insert(match known {
                Some(known) => known,
                None => (stored.rows.clone(), stored.rows.read(&mut read)?),
            });
            let ids = of_file.get(stored.row as usize).ok_or_else(|| FillError::Row {
                file: stored.rows.file.clone(),
                rows: of_file.len(),
                row: stored.row,
            })?;
            if let Some(AnswerSpan { from, to }) = stored.answer
                && (from > to || to > ids.tokens.len())
            {
                return Err(FillError::Answer {
                    file: stored.rows.file.clone(),
                    row: stored.row,
                    tokens: ids.tokens.len(),
                    from,
                    to,
                });
            }
            row.take(ids.clone());
        }
        Ok(())
    }
}

/// One prompt and the results of its samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupRecord {
    pub group: u32,
    pub instance: String,
    /// Raw reward of every valid episode, in the order of its samples.
    pub rewards: Vec<f32>,
    /// Episodes that left the group: they stayed void until their attempts were used up.
    pub voids: u32,
}

/// One training row. `mask[i] = 1` exactly if `tokens[i]` was sampled; `logprobs[i]` is then the engine's, and 0
/// otherwise. Its ids are stored with its episode; a batch that was just read has no ids until [`Batch::fill`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub group: u32,
    /// Names the episode within its iteration: `<instance>__g<group>__i<sample>`.
    pub episode: String,
    /// Position of the task in its dataset.
    pub task: u32,
    pub instance: String,
    /// The turn of this row, in a run whose turns are separate rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// The location of its ids.
    pub stored: StoredRow,
    #[serde(skip)]
    pub tokens: Vec<u32>,
    #[serde(skip)]
    pub mask: Vec<u8>,
    #[serde(skip)]
    pub logprobs: Vec<f32>,
    #[serde(skip)]
    pub weights: Vec<WeightsSpan>,
    /// The experts of a mixture that computed the tokens, as far as an engine reported them. In order, without
    /// overlaps.
    #[serde(skip)]
    pub experts: Vec<ExpertsSpan>,
    pub temperature: f32,
    pub reward: f32,
    pub outcome: Outcome,
    /// A limit ended the episode, not the policy.
    pub truncated: bool,
}

/// Names a row of an episode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredRow {
    #[serde(flatten)]
    pub rows: StoredRows,
    /// The row's number in that file.
    pub row: u32,
    /// The answer that is trained on, if a turn is a separate row: the row ends with it, and the tokens before it are
    /// its history. Absent: the whole row is trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerSpan>,
}

/// Tokens `from..to` of a row, all sampled in one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerSpan {
    pub from: usize,
    pub to: usize,
}

/// How the rows of a batch follow from an episode.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowRule {
    pub agent: RunAgent,
    /// Each turn is a separate row with the history that the policy saw. The ids are still stored once: a row of the
    /// batch names a part of an episode's row.
    pub per_turn: bool,
    /// How rewards follow from the judge's scores.
    pub process: Option<ProcessRule>,
}

impl RowRule {
    /// The rule, if the run rewards each turn separately.
    pub fn step_wise(&self) -> Option<&ProcessRule> {
        self.process.as_ref().filter(|rule| rule.step_wise)
    }
}

/// The file with an episode's rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredRows {
    /// Below the store's root.
    pub file: String,
    /// SHA-256 of the whole file.
    pub sha256: String,
}

impl StoredRows {
    /// The folder of the episode.
    pub fn episode(&self) -> Option<&str> {
        self.file.rsplit_once('/').map(|(episode, _)| episode)
    }

    fn read<E, B>(&self, read: &mut impl FnMut(&str) -> Result<B, E>) -> Result<Vec<TokenRow>, FillError<E>>
    where
        E: std::error::Error + 'static,
        B: AsRef<[u8]>,
    {
        let file = || self.file.clone();
        let of_episode = self
            .episode()
            .is_some_and(|at| paths::parse_episode(at).is_some() && paths::rows(at) == self.file);
        if !of_episode && !paths::is_conversations(&self.file) {
            return Err(FillError::Path { file: file() });
        }
        let bytes = read(&self.file).map_err(|source| FillError::Read { file: file(), source })?;
        let found = sha256_hex(bytes.as_ref());
        if found != self.sha256 {
            return Err(FillError::Changed {
                file: file(),
                found,
                wanted: self.sha256.clone(),
            });
        }
        rows::decode(bytes.as_ref()).map_err(|source| FillError::Rows { file: file(), source })
    }
}

/// A defect of a row.
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
    /// The rows of an episode that the batch includes. Left out: rows without a sampled token, rows that the agent
    /// skips and, if turns are rewarded separately, turns without a reward, which cannot be compared.
    pub fn trained_on(episode: &EndedEpisode, verdict: &EpisodeMeta, rule: &RowRule) -> Vec<Self> {
        let turns = &episode.record.turns;
        let skipped = rule.agent.skipped_rows(turns);
        let mut rows = Self::of(episode, &verdict.outcome, verdict.reward.unwrap_or(f32::NAN));
        rows.retain(|row| !skipped.contains(&row.stored.row));
        if rule.per_turn {
            rows = rows.iter().flat_map(|row| row.of_turns(turns)).collect();
        }
        rows.retain(|row| row.sampled() > 0);
        if let (Some(rule), Some(scores)) = (rule.step_wise(), &verdict.process) {
            rows.retain_mut(|row| {
                let own = row.turn.and_then(|turn| scores.of_turn(turn, rule.coefficient));
                own.is_some_and(|reward| {
                    row.reward = reward;
                    true
                })
            });
        }
        rows
    }

    /// One row for each turn of this row. Each ends with its turn's answer.
    fn of_turns(&self, turns: &[TurnRecord]) -> Vec<Self> {
        let own = turns.iter().filter(|turn| turn.row == self.stored.row);
        let rows = own.filter_map(|turn| {
            let (from, to) = (turn.prompt_length, turn.prompt_length + turn.sampled_length);
            (to <= self.tokens.len()).then(|| {
                let mut row = self.clone();
                row.turn = Some(turn.turn);
                row.stored.answer = Some(AnswerSpan { from, to });
                row.cut();
                row
            })
        });
        rows.collect()
    }

    /// The rows of an episode that has a verdict, in order.
    pub fn of(episode: &EndedEpisode, outcome: &Outcome, reward: f32) -> Vec<Self> {
        let EndedEpisode { record, rows } = episode;
        let Some(file) = &record.rows else {
            return Vec::new();
        };
        let all = (0..).zip(rows).map(|(row, ids)| {
            let mut made = Self {
                group: record.key.group,
                episode: record.key.name(),
                task: record.task,
                instance: record.key.instance.clone(),
                turn: None,
                stored: StoredRow {
                    rows: StoredRows {
                        file: paths::rows(&record.key.dir(record.attempt)),
                        sha256: file.sha256.clone(),
                    },
                    row,
                    answer: None,
                },
                tokens: Vec::new(),
                mask: Vec::new(),
                logprobs: Vec::new(),
                weights: Vec::new(),
                experts: Vec::new(),
                temperature: record.temperature,
                reward,
                outcome: outcome.clone(),
                truncated: record.truncated,
            };
            made.take(ids.clone());
            made
        });
        all.collect()
    }

    fn take(&mut self, ids: TokenRow) {
        let TokenRow {
            tokens,
            mask,
            logprobs,
            weights,
            experts,
            turns: _,
        } = ids;
        (self.tokens, self.mask, self.logprobs) = (tokens, mask, logprobs);
        (self.weights, self.experts) = (weights, experts);
        self.cut();
    }

    /// Cuts the row to the answer that it ends with, if it has one.
    fn cut(&mut self) {
        let Some(AnswerSpan { from, to }) = self.stored.answer else {
            return;
        };
        self.tokens.truncate(to);
        self.mask.truncate(to);
        self.logprobs.truncate(to);
        let history = from.min(self.mask.len());
        self.mask[..history].fill(0);
        let history = from.min(self.logprobs.len());
        self.logprobs[..history].fill(0.0);
        self.weights.retain(|span| span.from < to && span.to > from);
        for span in &mut self.weights {
            (span.from, span.to) = (span.from.max(from), span.to.min(to));
        }
        // A turn's span ends before its last token, so no span crosses the end of the answer.
        self.experts.retain(|span| span.to <= to);
    }

    /// Refuses a row that would train on tokens that the policy did not sample.
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

    /// The number of sampled tokens.
    pub fn sampled(&self) -> usize {
        self.mask.iter().filter(|m| **m == 1).count()
    }
}

#[cfg(test)]
mod tests;
