//! What one training step consumes: raw rewards and exact tokens. Advantages are the trainer's to compute.
//!
//! The stored batch names the rows of episodes and does not repeat their ids: [`Batch::fill`] reads them.

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
    /// Groups that stayed, in order; a group with fewer than two valid episodes is not here.
    pub groups: Vec<GroupRecord>,
    pub rows: Vec<Row>,
    /// In mode Finetune: the rows are conversations, and what is learnt of them is what the mask marks.
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

/// What a batch of mode Finetune has besides its rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Supervised {
    /// Steps of the whole run, for the schedule of the learning rate: they follow from the dataset, which the trainer
    /// does not read.
    pub steps: u32,
    /// Rows that the loss is measured on after the step, and that nothing is learnt from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_out: Vec<Row>,
}

/// Why the rows that a batch names are not read.
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
    /// Reads the ids of every row. `read` answers a file of the store by its path.
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
/// 0 elsewhere. Its ids are stored with its episode; a batch that was just read has none until [`Batch::fill`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub group: u32,
    /// Names the episode within its iteration: `<instance>__g<group>__i<sample>`.
    pub episode: String,
    /// Position of the task in its dataset.
    pub task: u32,
    pub instance: String,
    /// Which turn this row is, in a run whose turns are rows of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// Where its ids are.
    pub stored: StoredRow,
    #[serde(skip)]
    pub tokens: Vec<u32>,
    #[serde(skip)]
    pub mask: Vec<u8>,
    #[serde(skip)]
    pub logprobs: Vec<f32>,
    #[serde(skip)]
    pub weights: Vec<WeightsSpan>,
    /// Which experts of a mixture computed the tokens, as far as an engine has said it. In order, without overlaps.
    #[serde(skip)]
    pub experts: Vec<ExpertsSpan>,
    pub temperature: f32,
    pub reward: f32,
    pub outcome: Outcome,
    /// The episode was ended by a limit, not by the policy.
    pub truncated: bool,
}

/// A row of an episode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredRow {
    #[serde(flatten)]
    pub rows: StoredRows,
    /// Which of them.
    pub row: u32,
    /// The answer that is trained on, where a turn is a row of its own: the row ends with it, and what stands before it
    /// is its history. Absent: all of the row.
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
    /// Each turn is a row of its own, with the history that it saw. Their ids are stored once all the same: a row of
    /// the batch names a part of an episode's row.
    pub per_turn: bool,
    /// How rewards follow from the scores of a judge.
    pub process: Option<ProcessRule>,
}

impl RowRule {
    /// The rule of a run that rewards turns one by one.
    pub fn step_wise(&self) -> Option<&ProcessRule> {
        self.process.as_ref().filter(|rule| rule.step_wise)
    }
}

/// A file of an episode's rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredRows {
    /// Below the store's root.
    pub file: String,
    /// Of the whole file.
    pub sha256: String,
}

impl StoredRows {
    fn read<E, B>(&self, read: &mut impl FnMut(&str) -> Result<B, E>) -> Result<Vec<TokenRow>, FillError<E>>
    where
        E: std::error::Error + 'static,
        B: AsRef<[u8]>,
    {
        let file = || self.file.clone();
        let episode = self.file.rsplit_once('/').map(|(episode, _)| episode);
        let of_episode = episode.is_some_and(|at| paths::parse_episode(at).is_some() && paths::rows(at) == self.file);
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
    /// Those of an episode that a batch of its run has: a row without an answer teaches nothing, the agent may leave
    /// some out, and where turns are rewarded one by one a turn without a reward has nothing to be compared by.
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

    /// One row for each turn of this one, which ends with the turn's answer.
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

    /// The rows of an episode that has its verdict, in order.
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

    /// Leaves what belongs to the answer that the row ends with, where it has one.
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
        // A turn's span ends before its last token, so none reaches over the end of its answer.
        self.experts.retain(|span| span.to <= to);
    }

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
