//! The history that the policy sees at a turn: all of it, or without the reasoning of earlier answers, or without turns
//! in the middle if it would leave no room for an answer.
//!
//! Input: the recorded turns, as ids. Output: the ids before the next answer, and the turns left out. The same records
//! give the same history, also in a restarted driver. Nothing is tokenised twice: a history is assembled from the ids
//! of the turns. The ids that open an answer stand between two turns, so a turn can be taken out as a whole.
//!
//! Trimming follows OpenClaw-RL's swe-rl (MIT): turns are kept from the front within one share of the room and from the
//! back within the other, and a user message says how many are missing. It differs in three ways. The newest turn
//! always stays. Turns that were left out stay out, and turns of the tail leave only when the history is full again, so
//! that an engine's prefix cache holds and turns between two cuts are one row. If the newest turn alone fills the room,
//! turns of the head leave for it.

use crate::trajectory::Trajectory;
use grpo_chat_template::{ChatTemplate, PromptShape, Role, TemplateError, Turnover};
use grpo_crds::agent::{Context, Thinking, Trim};
use grpo_engine_protocol::TextMessage;
use grpo_records::{Message, Omitted, TurnRecord, dataset};
use std::sync::Arc;

/// The part of its history that the policy sees.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistoryRule {
    pub trim: Option<Trim>,
    /// Without the reasoning of earlier answers.
    pub strip: bool,
}

/// The history before the next answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenHistory {
    /// All of its ids; `None` if the episode's only row has them already.
    pub anew: Option<Vec<u32>>,
    pub omitted: Option<Omitted>,
}

/// A turn that is not part of the trajectory yet.
#[derive(Clone, Copy, Debug)]
pub struct NewTurn<'a> {
    /// The number of ids of its own history.
    pub prompt_length: usize,
    pub sampled: &'a [u32],
    /// The number of ids of its observation.
    pub observation: usize,
    /// The turns left out of its own history.
    pub omitted: Option<Omitted>,
}

impl HistoryRule {
    pub fn of(context: &Context) -> Self {
        Self {
            trim: context.trim.clone(),
            strip: context.thinking == Thinking::Strip,
        }
    }

    /// Whether every history extends the one before.
    pub fn only_grows(&self) -> bool {
        self.trim.is_none() && !self.strip
    }

    /// Refuses a chat template that does not allow such histories.
    pub fn rehearse(&self, template: &ChatTemplate, shape: &PromptShape) -> Result<(), TemplateError> {
        if self.only_grows() {
            return Ok(());
        }
        template.turnover(shape)?;
        if self.trim.is_some() {
            template.interjection(shape, &marker(1))?;
        }
        if self.strip {
            template.after_reasoning(&[])?;
        }
        Ok(())
    }

    /// The history before the next answer. `room`: the most tokens of a history that leave room for an answer.
    pub fn seen(
        &self,
        template: &ChatTemplate,
        shape: &PromptShape,
        trajectory: &Trajectory,
        room: usize,
    ) -> Result<SeenHistory, TemplateError> {
        if self.only_grows() || trajectory.turns.is_empty() {
            return Ok(SeenHistory::default());
        }
        let parts = Parts::of(self, template, shape, trajectory)?;
        let (omitted, _) = parts.omitted(self, room, None)?;
        if omitted.is_none() && !self.strip {
            return Ok(SeenHistory::default());
        }
        Ok(SeenHistory {
            anew: Some(parts.ids(omitted)?),
            omitted,
        })
    }

    /// The messages before the next answer, for a server that speaks only text. `omitted`: as in [`SeenHistory`].
    pub fn messages(&self, turns: &[TurnRecord], omitted: Option<Omitted>) -> Option<Vec<TextMessage>> {
        let gap = omitted.map(|gap| (gap, in_place_of(gap)));
        let gap = gap.as_ref().map(|(gap, message)| (*gap, message));
        let messages = dataset::history(turns, gap, self.strip)?.into_iter();
        messages.map(|message| serde_json::from_value(message).ok()).collect()
    }

    /// How many tokens the history will have after one more turn.
    pub fn length_after(
        &self,
        template: &ChatTemplate,
        shape: &PromptShape,
        trajectory: &Trajectory,
        turn: NewTurn<'_>,
        room: usize,
    ) -> Result<usize, TemplateError> {
        let parts = Parts::of(self, template, shape, trajectory)?;
        Ok(parts.omitted(self, room, Some(turn))?.1)
    }
}

/// The parts of an episode's history.
struct Parts<'a> {
    template: &'a ChatTemplate,
    shape: &'a PromptShape,
    turnover: Arc<Turnover>,
    trajectory: &'a Trajectory,
    strip: bool,
}

impl<'a> Parts<'a> {
    fn of(
        rule: &HistoryRule,
        template: &'a ChatTemplate,
        shape: &'a PromptShape,
        trajectory: &'a Trajectory,
    ) -> Result<Self, TemplateError> {
        Ok(Self {
            template,
            shape,
            turnover: template.turnover(shape)?,
            trajectory,
            strip: rule.strip,
        })
    }

    /// The ids before the first answer.
    fn opening(&self) -> &'a [u32] {
        match (self.trajectory.turns.first(), self.trajectory.rows.first()) {
            (Some(first), Some(row)) => &row.tokens[..first.prompt_length.min(row.tokens.len())],
            _ => &[],
        }
    }

    /// Answer and observation of a turn.
    fn turn(&self, turn: &TurnRecord) -> (&'a [u32], &'a [u32]) {
        let tokens = self.trajectory.rows.get(turn.row as usize);
        let rest = tokens.and_then(|row| row.tokens.get(turn.prompt_length..));
        let rest = rest.unwrap_or_default();
        let (sampled, rest) = rest.split_at(turn.sampled_length.min(rest.len()));
        (sampled, &rest[..turn.observation_length.min(rest.len())])
    }

    /// The part of an answer that later turns see.
    fn shown(&self, sampled: &'a [u32]) -> Result<&'a [u32], TemplateError> {
        match self.strip {
            true => self.template.after_reasoning(sampled),
            false => Ok(sampled),
        }
    }

    /// The ids before an answer, as later turns see it.
    fn header(&self) -> &[u32] {
        match self.strip {
            true => &self.turnover.header,
            false => &self.turnover.opens,
        }
    }

    /// The number of tokens of a turn in a history.
    fn cost(&self, sampled: &'a [u32], observation: usize) -> Result<usize, TemplateError> {
        // The ids before the answer end by opening it, and the header replaces that.
        let whole = self.shown(sampled)?.len() + observation + self.header().len();
        Ok(whole.saturating_sub(self.turnover.opens.len()))
    }

    /// The turns that are left out, and the length of the history without them.
    fn omitted(
        &self,
        rule: &HistoryRule,
        room: usize,
        new: Option<NewTurn<'a>>,
    ) -> Result<(Option<Omitted>, usize), TemplateError> {
        let turns = &self.trajectory.turns;
        let costs = turns.iter().map(|turn| {
            let (sampled, observation) = self.turn(turn);
            self.cost(sampled, observation.len())
        });
        let mut costs = costs.collect::<Result<Vec<usize>, TemplateError>>()?;
        let mut fixed = self.opening().len();
        let mut before = turns.last().and_then(|turn| turn.omitted);
        if let Some(new) = new {
            if turns.is_empty() {
                fixed = new.prompt_length;
            }
            costs.push(self.cost(new.sampled, new.observation)?);
            before = new.omitted;
        }
        let whole = fixed + costs.iter().sum::<usize>();
        let Some(trim) = rule.trim.as_ref().filter(|_| before.is_some() || whole > room) else {
            return Ok((None, whole));
        };
        // No marker of the episode is longer.
        let marker = self
            .marker(costs.len())?
            .len()
            .saturating_sub(self.turnover.opens.len());
        let omitted = omit(&costs, fixed, marker, room, trim, before);
        Ok((omitted, length(&costs, fixed, marker, omitted)))
    }

    /// The ids of a user message in place of this many turns; they end by opening an answer.
    fn marker(&self, turns: usize) -> Result<Vec<u32>, TemplateError> {
        self.template.interjection(self.shape, &marker(turns))
    }

    /// All ids of the history.
    fn ids(&self, omitted: Option<Omitted>) -> Result<Vec<u32>, TemplateError> {
        let (opens, header) = (&self.turnover.opens[..], self.header());
        let mut ids = self.opening().to_vec();
        let without_opening = |ids: &mut Vec<u32>| match ids.ends_with(opens) {
            true => {
                ids.truncate(ids.len() - opens.len());
                Ok(())
            }
            false => Err(TemplateError::Shape(
                "does not open an answer by the same tokens behind every message".into(),
            )),
        };
        let gap = omitted.unwrap_or(Omitted { from: 0, to: 0 });
        for (number, turn) in (0..).zip(&self.trajectory.turns) {
            if number == gap.from && gap.to > gap.from {
                without_opening(&mut ids)?;
                ids.extend(self.marker((gap.to - gap.from) as usize)?);
            }
            if (gap.from..gap.to).contains(&number) {
                continue;
            }
            let (sampled, observation) = self.turn(turn);
            let shown = self.shown(sampled)?;
            if header != opens {
                without_opening(&mut ids)?;
                ids.extend(header);
            }
            ids.extend(shown);
            ids.extend(observation);
        }
        Ok(ids)
    }
}

/// The text in place of turns, in the words of OpenClaw-RL's swe-rl.
pub fn marker(turns: usize) -> String {
    format!("[... {turns} turn(s) of interaction history omitted due to context window limit ...]")
}

/// The message in place of these turns, as it is recorded.
pub fn in_place_of(gap: Omitted) -> Message {
    Message {
        role: Role::User.word().to_owned(),
        content: marker((gap.to - gap.from) as usize),
        tokens: 0,
        note: None,
    }
}

/// The number of tokens of a history: `fixed` before the first turn, those of each turn, and the marker's if turns are
/// left out.
fn length(costs: &[usize], fixed: usize, marker: usize, omitted: Option<Omitted>) -> usize {
    let all = fixed + costs.iter().sum::<usize>();
    match omitted {
        Some(gap) => all + marker - costs[gap.from as usize..gap.to as usize].iter().sum::<usize>(),
        None => all,
    }
}

/// The turns that are left out of a history of at most `room` tokens. `before`: those left out already.
pub fn omit(
    costs: &[usize],
    fixed: usize,
    marker: usize,
    room: usize,
    trim: &Trim,
    before: Option<Omitted>,
) -> Option<Omitted> {
    let fits = |omitted| length(costs, fixed, marker, omitted) <= room;
    if fits(before) {
        return before;
    }
    let newest = costs.len().saturating_sub(1);
    let available = room.saturating_sub(fixed + marker) as f64;
    let head = (available * trim.head) as usize;
    let tail = (available * (trim.head + trim.tail)) as usize - head;
    let within = |share: usize, costs: &mut dyn Iterator<Item = &usize>| {
        let mut left = share;
        costs
            .take_while(|cost| {
                let taken = left.checked_sub(**cost);
                left = taken.unwrap_or(0);
                taken.is_some()
            })
            .count()
    };
    let mut from = match before {
        Some(gap) => gap.from as usize,
        None => within(head, &mut costs.iter()).min(newest),
    };
    let kept = within(tail, &mut costs[from..].iter().rev());
    let to = (costs.len() - kept)
        .min(newest)
        .max(before.map_or(0, |gap| gap.to as usize))
        .max(from);
    let gap = |from: usize| {
        (from < to).then_some(Omitted {
            from: from as u32,
            to: to as u32,
        })
    };
    while from > 0 && !fits(gap(from)) {
        from -= 1;
    }
    gap(from)
}

#[cfg(test)]
mod tests;
