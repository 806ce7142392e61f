//! An episode as it grows: its rows, and the folding of turn records into them.
//!
//! Live and resumed episodes take the same path: a turn exists once its record is durable, and a record is folded in
//! here.

use grpo_records::{AgentProcess, EpisodeEnd, ExpertsSpan, TokenRow, TurnRecord, WeightsSpan};

/// Prompt, sampled and observation ids in order, and which of them were sampled, by what, with which probability; row
/// by row, and the turns they are from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trajectory {
    pub rows: Vec<TokenRow>,
    /// In order, without ids.
    pub turns: Vec<TurnRecord>,
    /// How the process of a command-line agent ended.
    pub process: Option<AgentProcess>,
    pub end: Option<EpisodeEnd>,
    pub sample_millis: u64,
    pub exec_millis: u64,
    pub waited_millis: u64,
}

/// What is wrong with a sequence of turn records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrajectoryError {
    #[error("{episode}: turn {found} where turn {wanted} should be")]
    Order { episode: String, found: u32, wanted: u32 },
    #[error("{episode} turn {turn}: {ids} sampled ids but {logprobs} logprobs")]
    Logprobs {
        episode: String,
        turn: u32,
        ids: usize,
        logprobs: usize,
    },
    #[error("{episode} turn {turn}: it is of row {row}, and the episode has {rows} rows")]
    Row {
        episode: String,
        turn: u32,
        row: u32,
        rows: usize,
    },
    #[error("{episode} turn {turn}: the engine was given {recorded} ids, the turns before it add up to {folded}")]
    PromptLength {
        episode: String,
        turn: u32,
        recorded: usize,
        folded: usize,
    },
    #[error("{episode} turn {turn}: experts of tokens {from} to {to}, those of {known} to {computed} were due")]
    Experts {
        episode: String,
        turn: u32,
        from: usize,
        to: usize,
        known: usize,
        computed: usize,
    },
}

impl Trajectory {
    /// The number that the next turn has.
    pub fn next_turn(&self) -> u32 {
        self.turns.len() as u32
    }

    /// Appends a turn exactly as it was recorded. Logprobs are never padded or cut to fit: a record in which they do
    /// not match the ids is refused.
    pub fn push(&mut self, turn: &TurnRecord) -> Result<(), TrajectoryError> {
        let episode = || turn.episode.clone();
        if turn.turn != self.next_turn() {
            return Err(TrajectoryError::Order {
                episode: episode(),
                found: turn.turn,
                wanted: self.next_turn(),
            });
        }
        if turn.sampled.len() != turn.logprobs.len() {
            return Err(TrajectoryError::Logprobs {
                episode: episode(),
                turn: turn.turn,
                ids: turn.sampled.len(),
                logprobs: turn.logprobs.len(),
            });
        }
        let rows = self.rows.len();
        let mut row = match turn.row as usize {
            known if known < rows => self.rows[known].clone(),
            next if next == rows => TokenRow::default(),
            _ => {
                return Err(TrajectoryError::Row {
                    episode: episode(),
                    turn: turn.turn,
                    row: turn.row,
                    rows,
                });
            }
        };
        append(&mut row, &turn.prompt, 0);
        if row.tokens.len() != turn.prompt_length {
            return Err(TrajectoryError::PromptLength {
                episode: episode(),
                turn: turn.turn,
                recorded: turn.prompt_length,
                folded: row.tokens.len(),
            });
        }
        append_sampled(&mut row, turn);
        if let Some(span) = &turn.experts {
            append_experts(&mut row, turn, span)?;
        }
        append(&mut row, &turn.observation, 0);
        row.turns.push(turn.turn);
        match self.rows.get_mut(turn.row as usize) {
            Some(place) => *place = row,
            None => self.rows.push(row),
        }
        self.turns.push(turn.without_ids());
        self.end = turn.end;
        self.sample_millis += turn.sample_millis;
        self.exec_millis += turn.exec_millis;
        self.waited_millis += turn.waited_millis;
        Ok(())
    }

    /// How many ids its rows have.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.tokens.len()).sum()
    }

    /// How many ids came after the first prompt, in all rows: what turns sampled, observed and were given.
    pub fn grown(&self) -> usize {
        let first = self.turns.first().map_or(0, |turn| turn.prompt_length);
        self.tokens() - first
    }

    /// How many ids were sampled.
    pub fn sampled(&self) -> usize {
        self.rows.iter().map(TokenRow::sampled).sum()
    }

    /// Answers without an action that could be carried out.
    pub fn format_errors(&self) -> u32 {
        self.turns.iter().filter(|turn| !turn.action.is_action()).count() as u32
    }

    /// Every version that sampled a token, in order of appearance.
    pub fn versions(&self) -> Vec<String> {
        let mut versions: Vec<String> = Vec::new();
        for turn in &self.turns {
            if !versions.contains(&turn.weights) {
                versions.push(turn.weights.clone());
            }
        }
        versions
    }
}

/// Up to where it is recorded which experts a row's tokens went through.
pub fn experts_to(row: &TokenRow) -> usize {
    row.experts.last().map_or(0, |span| span.to)
}

fn append_sampled(row: &mut TokenRow, turn: &TurnRecord) {
    let from = row.tokens.len();
    append(row, &turn.sampled, 1);
    row.logprobs[from..].copy_from_slice(&turn.logprobs);
    let to = row.tokens.len();
    match row.weights.last_mut() {
        // One span for as long as the version stays; what lies between two answers is masked.
        Some(last) if last.version == turn.weights => last.to = to,
        _ => row.weights.push(WeightsSpan {
            from,
            to,
            version: turn.weights.clone(),
        }),
    }
}

/// The experts of what no earlier turn brought, but for the token that was sampled last: no engine has computed it
/// yet.
fn append_experts(row: &mut TokenRow, turn: &TurnRecord, span: &ExpertsSpan) -> Result<(), TrajectoryError> {
    let (known, computed) = (experts_to(row), row.tokens.len().saturating_sub(1));
    if (span.from, span.to) != (known, computed) {
        return Err(TrajectoryError::Experts {
            episode: turn.episode.clone(),
            turn: turn.turn,
            from: span.from,
            to: span.to,
            known,
            computed,
        });
    }
    row.experts.push(span.clone());
    Ok(())
}

fn append(row: &mut TokenRow, ids: &[u32], mask: u8) {
    row.tokens.extend_from_slice(ids);
    row.mask.resize(row.tokens.len(), mask);
    row.logprobs.resize(row.tokens.len(), 0.0);
}

#[cfg(test)]
mod tests;
