//! A growing episode: its rows, and the folding of turn records into them.
//!
//! Live and resumed episodes take the same path: a turn exists once its record is durable, and is folded in from that
//! record. A driver holds thousands of live episodes, so a [`GrowingRow`] holds only its ids and the data of the
//! sampled ones, and the texts of earlier turns are compressed.

mod texts;

use self::texts::PackedTexts;
use grpo_records::{AgentProcess, EpisodeEnd, ExpertsSpan, TokenRow, TurnRecord, WeightsSpan};
use std::borrow::Cow;
use std::ops::Range;

/// Rows of prompt, sampled and observation ids in order, with weights versions and logprobs of the sampled ones; and
/// the turns behind them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trajectory {
    pub rows: Vec<GrowingRow>,
    /// In order, without ids. Texts of earlier ones may be missing: [`Trajectory::whole_turns`] has them.
    pub turns: Vec<TurnRecord>,
    /// The texts that `turns` does not have.
    packed: PackedTexts,
    /// All texts stay in `turns`.
    keeps_texts: bool,
    /// How the process of a command-line agent ended.
    pub process: Option<AgentProcess>,
    pub end: Option<EpisodeEnd>,
    /// The policy's patch is too long to be graded. Durable with the attempt's record: a driver that finds turns only
    /// takes the patch again.
    pub patch_too_large: bool,
    pub sample_millis: u64,
    pub exec_millis: u64,
    pub waited_millis: u64,
}

/// A row of a live episode. It holds for the sampled tokens only what a [`TokenRow`] holds for every token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GrowingRow {
    pub tokens: Vec<u32>,
    /// Ranges of the sampled tokens, in order.
    pub sampled: Vec<Range<usize>>,
    /// One for each sampled token, in order.
    pub logprobs: Vec<f32>,
    pub weights: Vec<WeightsSpan>,
    pub experts: Vec<ExpertsSpan>,
    pub turns: Vec<u32>,
}

/// Why a sequence of turn records is invalid.
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
    #[error("{episode}: unpacking the texts of its turns: {why}; the next attempt reads them from the store")]
    Texts { episode: String, why: String },
}

impl Trajectory {
    /// An episode without turns. `keeps_texts`: the texts of its turns are read again at every turn.
    pub fn new(keeps_texts: bool) -> Self {
        Self {
            keeps_texts,
            ..Self::default()
        }
    }

    /// All turns in order, without ids, with all their texts.
    pub fn whole_turns(&self) -> Result<Cow<'_, [TurnRecord]>, TrajectoryError> {
        if self.packed.is_empty() {
            return Ok(Cow::Borrowed(&self.turns[..]));
        }
        let mut turns = self.turns.clone();
        self.packed
            .put_back(&mut turns)
            .map_err(|error| TrajectoryError::Texts {
                episode: turns.first().map(|turn| turn.episode.clone()).unwrap_or_default(),
                why: error.to_string(),
            })?;
        Ok(Cow::Owned(turns))
    }

    /// The number of the next turn.
    pub fn next_turn(&self) -> u32 {
        self.turns.len() as u32
    }

    /// Appends a turn exactly as it was recorded. Never pads or cuts logprobs: refuses a record whose logprobs do not
    /// match its ids.
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
        if turn.row as usize > rows {
            return Err(TrajectoryError::Row {
                episode: episode(),
                turn: turn.turn,
                row: turn.row,
                rows,
            });
        }
        let row = self.rows.get(turn.row as usize);
        let folded = row.map_or(0, |row| row.tokens.len()) + turn.prompt.len();
        if folded != turn.prompt_length {
            return Err(TrajectoryError::PromptLength {
                episode: episode(),
                turn: turn.turn,
                recorded: turn.prompt_length,
                folded,
            });
        }
        if let Some(span) = &turn.experts {
            // Due: tokens that no earlier turn brought, except the last sampled one, which no engine has computed yet.
            let known = row.map_or(0, experts_to);
            let computed = (folded + turn.sampled.len()).saturating_sub(1);
            if (span.from, span.to) != (known, computed) {
                return Err(TrajectoryError::Experts {
                    episode: episode(),
                    turn: turn.turn,
                    from: span.from,
                    to: span.to,
                    known,
                    computed,
                });
            }
        }
        if turn.row as usize == rows {
            self.rows.push(GrowingRow::default());
        }
        self.rows[turn.row as usize].append(turn);
        make_room(&mut self.turns, 1);
        self.turns.push(turn.without_ids());
        if !self.keeps_texts {
            self.packed.pack(&mut self.turns);
        }
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

    /// How many ids came after the first prompt, in all rows: sampled, observed and given ones. A row that a built-in
    /// loop begins repeats its history, which does not count again.
    pub fn grown(&self) -> usize {
        let begins = self.rows.iter().filter_map(|row| row.turns.first());
        let begins = begins.filter_map(|turn| self.turns.get(*turn as usize));
        let repeated = begins.filter(|turn| turn.turn == 0 || turn.request.is_none());
        let repeated: usize = repeated.map(|turn| turn.prompt_length).sum();
        self.tokens() - repeated
    }

    /// How many ids were sampled.
    pub fn sampled(&self) -> usize {
        self.rows.iter().map(|row| row.logprobs.len()).sum()
    }

    /// Answers without a valid action.
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

impl GrowingRow {
    /// The row in the store's form.
    pub fn stored(&self) -> TokenRow {
        let (mut mask, mut logprobs) = (vec![0; self.tokens.len()], vec![0.0; self.tokens.len()]);
        let mut rest = &self.logprobs[..];
        for span in &self.sampled {
            mask[span.clone()].fill(1);
            let (these, others) = rest.split_at(span.len());
            logprobs[span.clone()].copy_from_slice(these);
            rest = others;
        }
        TokenRow {
            tokens: self.tokens.clone(),
            mask,
            logprobs,
            weights: self.weights.clone(),
            experts: self.experts.clone(),
            turns: self.turns.clone(),
        }
    }

    /// Adds a turn of this row.
    fn append(&mut self, turn: &TurnRecord) {
        let added = turn.prompt.len() + turn.sampled.len() + turn.observation.len();
        make_room(&mut self.tokens, added);
        make_room(&mut self.logprobs, turn.logprobs.len());
        self.tokens.extend_from_slice(&turn.prompt);
        let from = self.tokens.len();
        self.tokens.extend_from_slice(&turn.sampled);
        let to = self.tokens.len();
        self.tokens.extend_from_slice(&turn.observation);
        self.sampled.push(from..to);
        self.logprobs.extend_from_slice(&turn.logprobs);
        match self.weights.last_mut() {
            // One span while the version stays; ids between two answers are masked.
            Some(last) if last.version == turn.weights => last.to = to,
            _ => self.weights.push(WeightsSpan {
                from,
                to,
                version: turn.weights.clone(),
            }),
        }
        self.experts.extend(turn.experts.clone());
        self.turns.push(turn.turn);
    }
}

/// Reserves an eighth more than is needed, not twice as much as `Vec` would: every live episode holds this memory.
fn make_room<T>(of: &mut Vec<T>, added: usize) {
    if of.capacity() - of.len() < added {
        of.reserve_exact(added + of.len() / 8);
    }
}

/// The end of the tokens whose experts are recorded.
pub fn experts_to(row: &GrowingRow) -> usize {
    row.experts.last().map_or(0, |span| span.to)
}

#[cfg(test)]
mod tests;
