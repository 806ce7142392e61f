//! Batches of mode Finetune: conversations, whose answers are trained on.
//!
//! A conversation has the form of an episode's row: the prompt, each answer with its end token, and the messages
//! between. So supervised training learns exactly the form that the agent of a later run samples. `mask[i] = 1` marks
//! trained tokens. Their probabilities are unknown, so logprobs are 0.

use crate::batch::{Row, StoredRow, StoredRows};
use crate::outcome::Outcome;
use crate::rows::{TokenRow, WeightsSpan};

/// Takes the place of the version that sampled a token.
pub const AUTHOR: &str = "dataset";

impl TokenRow {
    /// `learnt`: the ranges of trained tokens, in order.
    pub fn of_conversation(tokens: Vec<u32>, learnt: &[(usize, usize)]) -> Self {
        let mut mask = vec![0; tokens.len()];
        for (from, to) in learnt {
            mask[*from..*to].fill(1);
        }
        // One span for all tokens: the mask selects the trained ones.
        let span = WeightsSpan {
            from: 0,
            to: tokens.len(),
            version: AUTHOR.to_owned(),
        };
        Self {
            logprobs: vec![0.0; tokens.len()],
            tokens,
            mask,
            weights: vec![span],
            experts: Vec::new(),
            turns: Vec::new(),
        }
    }
}

impl Row {
    /// Row `row` of a file of conversations. `position`: in the dataset, from 0. Its ids are in the file.
    pub fn of_conversation(rows: &StoredRows, row: u32, position: u32, truncated: bool) -> Self {
        let name = format!("row-{position}");
        Self {
            group: row,
            episode: name.clone(),
            task: position,
            instance: name,
            turn: None,
            stored: StoredRow {
                rows: rows.clone(),
                row,
                answer: None,
            },
            tokens: Vec::new(),
            mask: Vec::new(),
            logprobs: Vec::new(),
            weights: Vec::new(),
            experts: Vec::new(),
            temperature: 1.0,
            reward: 0.0,
            outcome: Outcome::Resolved,
            truncated,
        }
    }
}
