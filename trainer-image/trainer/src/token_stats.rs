//! Collects what a step computes for each sampled token of its batch ([`grpo_records::token_stats`]), for the viewer:
//! where engine and trainer differ, what was clipped, where the policy is uncertain.
//!
//! Each rank notes the tokens that it computes; the columns are then summed over the ranks.

use grpo_objective::objective::Term;
use grpo_records::Batch;
use grpo_records::token_stats::{self, CLIPPED, COMPUTED, Columns, LEFT_OUT, RowSpan};

use crate::error::TrainError;
use crate::sharded::Sharded;
use crate::train_row::TrainRow;

/// The statistics of a batch, as far as this rank has computed them. All values are 0 elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenStats {
    rows: Vec<RowSpan>,
    /// For each row, the places of its sampled tokens, in order.
    sampled: Vec<Vec<u32>>,
    columns: Columns,
}

/// A trained token of a row of the batch.
#[derive(Clone, Copy, Debug)]
pub struct SeenToken {
    /// Number of the row in its batch.
    pub row: usize,
    /// Index in the row.
    pub at: usize,
    /// Under the weights that the step began with, if it was computed under them.
    pub logprob: f64,
    /// Nats.
    pub entropy: f64,
    /// Whether it is trained on for the first time: logprob and entropy are of that time.
    pub new: bool,
}

impl TokenStats {
    /// Statistics without any value. The batch has its ids.
    pub fn of(batch: &Batch) -> Self {
        let mut this = Self::default();
        let mut total = 0;
        for row in &batch.rows {
            let marked = (0..).zip(&row.mask).filter(|(_, mask)| **mask == 1);
            let sampled: Vec<u32> = marked.map(|(at, _)| at).collect();
            this.rows.push(RowSpan {
                episode: row.stored.rows.episode().unwrap_or_default().to_owned(),
                row: row.stored.row,
                turn: row.turn,
                advantage: None,
                from: total,
                to: total + sampled.len(),
            });
            total += sampled.len();
            this.sampled.push(sampled);
        }
        this.columns = Columns {
            logprobs: vec![0.0; total],
            entropies: vec![0.0; total],
            ratios: vec![0.0; total],
            marks: vec![0; total],
        };
        this
    }

    /// The rows that are trained on, with their advantages.
    pub fn train_on(&mut self, rows: &[TrainRow]) {
        for row in rows {
            if let Some(span) = self.rows.get_mut(row.number) {
                span.advantage = Some(row.advantage);
            }
        }
    }

    /// Notes a token. A later optimizer step replaces ratio and marks.
    pub fn see(&mut self, token: SeenToken, term: &Term) {
        let (Some(span), Some(sampled)) = (self.rows.get(token.row), self.sampled.get(token.row)) else {
            return;
        };
        let Ok(place) = sampled.binary_search(&(token.at as u32)) else {
            return;
        };
        let (place, columns) = (span.from + place, &mut self.columns);
        if token.new {
            columns.logprobs[place] = token.logprob as f32;
            columns.entropies[place] = token.entropy as f32;
        }
        columns.ratios[place] = term.ratio as f32;
        let mark = |is: bool, mark: u8| if is { mark } else { 0 };
        columns.marks[place] = COMPUTED | mark(term.clipped, CLIPPED) | mark(term.left_out, LEFT_OUT);
    }

    /// The statistics of all ranks. Every rank must call it. Each token was computed by one rank.
    pub fn over_ranks(self, model: &Sharded) -> Result<Self, TrainError> {
        if self.columns.marks.is_empty() {
            return Ok(self);
        }
        let whole = |values: Vec<f64>| model.sum(&values);
        let words = |values: Vec<f32>| -> Result<Vec<f32>, TrainError> {
            let values = whole(values.into_iter().map(f64::from).collect())?;
            Ok(values.into_iter().map(|value| value as f32).collect())
        };
        let Columns {
            logprobs,
            entropies,
            ratios,
            marks,
        } = self.columns;
        let (logprobs, entropies, ratios) = (words(logprobs)?, words(entropies)?, words(ratios)?);
        let marks = whole(marks.into_iter().map(f64::from).collect())?;
        let mut columns = Columns {
            logprobs,
            entropies,
            ratios,
            marks: marks.into_iter().map(|mark| mark as u8).collect(),
        };
        for (place, mark) in columns.marks.iter().enumerate() {
            if mark & COMPUTED == 0 {
                columns.logprobs[place] = f32::NAN;
                columns.entropies[place] = f32::NAN;
                columns.ratios[place] = f32::NAN;
            }
        }
        Ok(Self { columns, ..self })
    }

    /// The step's file.
    pub fn file(self) -> Result<Vec<u8>, TrainError> {
        token_stats::encode(self.rows, &self.columns)
            .map_err(|error| TrainError::Start(format!("writing a step's token statistics: {error}")))
    }
}

#[cfg(test)]
mod tests;
