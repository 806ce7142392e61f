//! An episode as it grows: the token list, and the folding of turn records into it.
//!
//! Live and resumed episodes take the same path: a turn exists once its record is durable, and a record is folded in
//! here.

use grpo_records::{EpisodeEnd, ExpertsSpan, Message, TurnAction, TurnRecord, WeightsSpan};

/// Prompt, sampled and observation ids in order, and which of them were sampled, by what, with which probability.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trajectory {
    pub prompt_length: usize,
    pub tokens: Vec<u32>,
    pub mask: Vec<u8>,
    pub logprobs: Vec<f32>,
    pub weights: Vec<WeightsSpan>,
    /// Which experts its tokens went through, where that was recorded.
    pub experts: Vec<ExpertsSpan>,
    pub messages: Vec<Message>,
    pub turns: u32,
    pub format_errors: u32,
    pub end: Option<EpisodeEnd>,
    pub sample_millis: u64,
    pub exec_millis: u64,
    pub waited_millis: u64,
    pub started_at: Option<i64>,
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
    /// Appends a turn exactly as it was recorded. Logprobs are never padded or cut to fit: a record in which they do
    /// not match the ids is refused.
    pub fn push(&mut self, turn: &TurnRecord) -> Result<(), TrajectoryError> {
        if turn.turn != self.turns {
            return Err(TrajectoryError::Order {
                episode: turn.episode.clone(),
                found: turn.turn,
                wanted: self.turns,
            });
        }
        if turn.sampled.len() != turn.logprobs.len() {
            return Err(TrajectoryError::Logprobs {
                episode: turn.episode.clone(),
                turn: turn.turn,
                ids: turn.sampled.len(),
                logprobs: turn.logprobs.len(),
            });
        }
        if self.turns == 0 {
            self.append(&turn.prompt, 0);
            self.prompt_length = turn.prompt.len();
            self.started_at = Some(turn.at);
            self.messages.extend(turn.opening.iter().cloned());
        }
        if self.tokens.len() != turn.prompt_length {
            return Err(TrajectoryError::PromptLength {
                episode: turn.episode.clone(),
                turn: turn.turn,
                recorded: turn.prompt_length,
                folded: self.tokens.len(),
            });
        }
        self.append_sampled(turn);
        if let Some(span) = &turn.experts {
            self.append_experts(turn, span)?;
        }
        self.append(&turn.observation, 0);
        self.messages.push(Message {
            role: "assistant".into(),
            content: turn.text.clone(),
            tokens: turn.sampled.len(),
            note: Some(note_of(turn)),
        });
        if !turn.observation.is_empty() {
            self.messages.push(Message {
                role: "user".into(),
                content: turn.observation_text.clone(),
                tokens: turn.observation.len(),
                note: None,
            });
        }
        self.turns += 1;
        self.format_errors += u32::from(!turn.action.is_action());
        self.end = turn.end;
        self.sample_millis += turn.sample_millis;
        self.exec_millis += turn.exec_millis;
        self.waited_millis += turn.waited_millis;
        Ok(())
    }

    /// How many ids were sampled.
    pub fn sampled(&self) -> usize {
        self.mask.iter().filter(|m| **m == 1).count()
    }

    /// Every version that sampled a token, in order of appearance.
    pub fn versions(&self) -> Vec<String> {
        let mut versions: Vec<String> = Vec::new();
        for span in &self.weights {
            if !versions.contains(&span.version) {
                versions.push(span.version.clone());
            }
        }
        versions
    }

    fn append_sampled(&mut self, turn: &TurnRecord) {
        let from = self.tokens.len();
        self.append(&turn.sampled, 1);
        self.logprobs[from..].copy_from_slice(&turn.logprobs);
        match self.weights.last_mut() {
            // One span for as long as the version stays; what lies between two answers belongs to nobody and is masked.
            Some(last) if last.version == turn.weights => last.to = self.tokens.len(),
            _ => self.weights.push(WeightsSpan {
                from,
                to: self.tokens.len(),
                version: turn.weights.clone(),
            }),
        }
    }

    /// Up to where it is recorded which experts tokens went through.
    pub fn experts_to(&self) -> usize {
        self.experts.last().map_or(0, |span| span.to)
    }

    /// The experts of what no earlier turn brought, but for the token that was sampled last: no engine has computed it
    /// yet.
    fn append_experts(&mut self, turn: &TurnRecord, span: &ExpertsSpan) -> Result<(), TrajectoryError> {
        let (known, computed) = (self.experts_to(), self.tokens.len().saturating_sub(1));
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
        self.experts.push(span.clone());
        Ok(())
    }

    fn append(&mut self, ids: &[u32], mask: u8) {
        self.tokens.extend_from_slice(ids);
        self.mask.resize(self.tokens.len(), mask);
        self.logprobs.resize(self.tokens.len(), 0.0);
    }
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
        (None, _) => "not run".to_owned(),
    };
    match turn.end {
        Some(end) => format!("{what}; {end:?}"),
        None => what,
    }
}

#[cfg(test)]
mod tests;
