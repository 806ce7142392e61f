//! An ended episode: its record and its rows together.
//!
//! `traj.json` has every turn without ids, `rows.safetensors` every id once. This module returns the ids to the turns
//! and shows the episode as messages.

use crate::episode::EpisodeRecord;
use crate::rows::{self, RowsError, TokenRow};
use crate::store::sha256_hex;
use crate::turn::{Message, TurnAction, TurnRecord};

/// The record of an episode with the rows that it names.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedEpisode {
    pub record: EpisodeRecord,
    pub rows: Vec<TokenRow>,
}

/// Why record and rows do not belong to one episode.
#[derive(Debug, thiserror::Error)]
pub enum EndedError {
    #[error("its rows: {0}")]
    Rows(#[from] RowsError),
    #[error("the sha256 of its rows is {found}, its record says {wanted}")]
    Changed { found: String, wanted: String },
    #[error("turn {turn} takes tokens up to {to} of row {row}, which has {tokens}")]
    Turn {
        turn: u32,
        row: u32,
        to: usize,
        tokens: usize,
    },
}

impl EndedEpisode {
    /// `rows`: the bytes of the file that the record names; empty if it names none.
    pub fn of(record: EpisodeRecord, rows: &[u8]) -> Result<Self, EndedError> {
        let rows = match &record.rows {
            None => Vec::new(),
            Some(file) => {
                let found = sha256_hex(rows);
                if found != file.sha256 {
                    let wanted = file.sha256.clone();
                    return Err(EndedError::Changed { found, wanted });
                }
                rows::decode(rows)?
            }
        };
        Ok(Self { record, rows })
    }

    /// The turns with their ids, as recorded during the episode.
    pub fn turns(&self) -> Result<Vec<TurnRecord>, EndedError> {
        // For each row, the number of ids that earlier turns cover.
        let mut known = vec![0; self.rows.len()];
        let turns = self.record.turns.iter().map(|turn| {
            let at = turn.row as usize;
            let whole = with_ids(turn, self.rows.get(at), known.get(at).copied().unwrap_or_default())?;
            if let Some(known) = known.get_mut(at) {
                *known = turn.prompt_length + turn.sampled_length + turn.observation_length;
            }
            Ok(whole)
        });
        turns.collect()
    }
}

fn with_ids(turn: &TurnRecord, row: Option<&TokenRow>, known: usize) -> Result<TurnRecord, EndedError> {
    let sampled = turn.prompt_length..turn.prompt_length + turn.sampled_length;
    let observed = sampled.end..sampled.end + turn.observation_length;
    let tokens = row.map_or(0, |row| row.tokens.len().min(row.logprobs.len()));
    let row = row.filter(|_| observed.end <= tokens).ok_or(EndedError::Turn {
        turn: turn.turn,
        row: turn.row,
        to: observed.end,
        tokens,
    })?;
    // Only a forged record has a prompt shorter than the known ids.
    let prompt = known.min(turn.prompt_length)..turn.prompt_length;
    Ok(TurnRecord {
        prompt: row.tokens[prompt].to_vec(),
        sampled: row.tokens[sampled.clone()].to_vec(),
        logprobs: row.logprobs[sampled].to_vec(),
        observation: row.tokens[observed].to_vec(),
        ..turn.clone()
    })
}

/// The episode as messages, for display.
pub fn messages(turns: &[TurnRecord]) -> Vec<Message> {
    let mut messages = Vec::new();
    for turn in turns {
        messages.extend(turn.opening.iter().cloned());
        messages.push(Message {
            role: "assistant".into(),
            content: turn.text.clone(),
            tokens: turn.sampled_length,
            note: Some(note_of(turn)),
        });
        if turn.observation_length > 0 {
            messages.push(Message {
                role: "user".into(),
                content: turn.observation_text.clone(),
                tokens: turn.observation_length,
                note: None,
            });
        }
    }
    messages
}

fn note_of(turn: &TurnRecord) -> String {
    let what = match (&turn.exec, turn.action.kind.as_str()) {
        (Some(exec), _) => match (exec.exit_code, exec.timed_out, &exec.killed) {
            (_, true, _) => format!("timed out after {} ms", exec.duration_millis),
            (_, _, Some(killed)) => format!("killed: {killed}, after {} ms", exec.duration_millis),
            (Some(code), ..) => format!("exit {code} in {} ms", exec.duration_millis),
            (None, ..) => format!("signal {:?} after {} ms", exec.signal, exec.duration_millis),
        },
        (None, TurnAction::FORMAT_ERROR) => {
            format!("{} bash blocks, nothing run", turn.action.blocks().unwrap_or_default())
        }
        (None, TurnAction::TRUNCATED) => "cut off, nothing run".to_owned(),
        (None, TurnAction::CALLS) => {
            let calls = turn.action.as_calls().unwrap_or_default();
            let names: Vec<String> = calls.into_iter().map(|call| call.name).collect();
            format!("called {}", names.join(", "))
        }
        (None, TurnAction::MALFORMED_CALL) => "a call that cannot be read, nothing run".to_owned(),
        (None, TurnAction::ANSWER) => "no call".to_owned(),
        (None, _) => "not run".to_owned(),
    };
    match turn.end {
        Some(end) => format!("{what}; {end:?}"),
        None => what,
    }
}

#[cfg(test)]
mod tests;
