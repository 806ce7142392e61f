//! A judge's votes on single turns, and the rewards of episodes and turns that follow from them.
//!
//! A vote is the judge's own text, so the verifier can parse its number again. A vote that was lost, or has no number,
//! is missing: it is never a 0. With too few votes a turn has no score.

use crate::chat::{THINK, THOUGHT};
use crate::record::{Record, Writer};
use serde::{Deserialize, Serialize};

/// `…/judge/<t>.json`: the votes on one turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JudgedTurn {
    pub schema: u32,
    pub writer: Writer,
    pub episode: String,
    pub turn: u32,
    /// SHA-256 of the judge's prompt: system text and user text, with a zero byte between them.
    pub prompt_sha256: String,
    pub votes: Vec<Vote>,
    /// Absent if there are too few votes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f32>,
    /// Unix time in seconds.
    pub at: i64,
}

impl Record for JudgedTurn {}

/// One answer of the judge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Vote {
    pub seed: u64,
    /// The whole text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// +1 or -1. Absent if the text has no verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vote: Option<i8>,
    /// The text was cut off, at the limit of tokens or by a filter. So it has no verdict, also if it has a box.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Why there is no answer: the judge's servers were unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// Why there is no answer: the judge's servers refused this question; it may be too long for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    pub millis: u64,
}

/// The result of a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VoteEnd {
    /// It counts in the score.
    Counted,
    /// The judge's text has no verdict, or was cut off before it.
    Unreadable,
    /// The judge's servers gave no answer in time.
    Lost,
    /// The judge's servers refused the question.
    Refused,
}

impl VoteEnd {
    pub const ALL: [Self; 4] = [Self::Counted, Self::Unreadable, Self::Lost, Self::Refused];
}

impl Vote {
    pub fn end(&self) -> VoteEnd {
        match (&self.lost, &self.refused, self.vote) {
            (Some(_), ..) => VoteEnd::Lost,
            (_, Some(_), _) => VoteEnd::Refused,
            (.., Some(_)) => VoteEnd::Counted,
            (.., None) => VoteEnd::Unreadable,
        }
    }
}

/// The verdict in a judge's text: the last `\boxed{}` behind its reasoning, whose content must be +1 or -1.
///
/// OpenClaw-RL reads the first box, and so misreads a judge that quotes its instructions before it answers.
pub fn vote_of(text: &str) -> Option<i8> {
    // Of a server that does not separate the reasoning; some chat templates write its first tag into the prompt.
    let answer = match text.rsplit_once(THOUGHT) {
        Some((_, answer)) => answer,
        None if text.trim_start().starts_with(THINK) => return None,
        None => text,
    };
    let inside = last_box(answer)?.trim();
    let digits = inside.strip_prefix(['+', '-']).unwrap_or(inside);
    let mut parts = digits.splitn(2, '.');
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !parts.all(all_digits) {
        return None;
    }
    match inside.parse::<f64>().ok()? {
        1.0 => Some(1),
        -1.0 => Some(-1),
        _ => None,
    }
}

/// The content of the last closed `\boxed{…}`; braces may be nested once.
fn last_box(text: &str) -> Option<&str> {
    text.rmatch_indices("\\boxed{").find_map(|(at, open)| {
        let rest = &text[at + open.len()..];
        let mut depth = 0;
        for (end, byte) in rest.bytes().enumerate() {
            match byte {
                b'{' if depth == 1 => return None,
                b'{' => depth += 1,
                b'}' if depth == 0 => return rest.get(..end),
                b'}' => depth -= 1,
                _ => {}
            }
        }
        None
    })
}

/// Mean of the votes that have a number, if there are at least `min` of them.
pub fn score_of(votes: &[Vote], min: u32) -> Option<f32> {
    let read: Vec<f32> = votes.iter().filter_map(|vote| vote.vote).map(f32::from).collect();
    (!read.is_empty() && read.len() >= min as usize).then(|| read.iter().sum::<f32>() / read.len() as f32)
}

/// How a run's rewards follow from scores. Recorded in the run's journal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRule {
    /// Weight of the scores relative to the verdict.
    pub coefficient: f32,
    /// Minimum votes with a number for a score.
    pub min_votes: u32,
    /// Each turn has its own reward.
    pub step_wise: bool,
}

/// The scores of an episode, in `meta.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessScores {
    /// The reward of the verdict alone.
    pub outcome: f32,
    /// The turns that were judged, in order.
    pub turns: Vec<TurnScore>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnScore {
    pub turn: u32,
    /// Absent if there are too few votes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f32>,
}

impl ProcessScores {
    /// Reward of the episode: outcome + coefficient x mean of its turns' scores, as in OpenClaw-RL. Without a score it
    /// is the outcome's reward.
    pub fn reward(&self, coefficient: f32) -> f32 {
        let scores: Vec<f32> = self.turns.iter().filter_map(|turn| turn.score).collect();
        match scores.len() {
            0 => self.outcome,
            count => self.outcome + coefficient * scores.iter().sum::<f32>() / count as f32,
        }
    }

    /// Reward of one turn: outcome + coefficient x its score; OpenClaw-RL has no coefficient here. A turn that the
    /// judge is not asked about has the outcome's reward. `None` for a judged turn without a score: it cannot be
    /// compared with scored turns.
    pub fn of_turn(&self, turn: u32, coefficient: f32) -> Option<f32> {
        match self.turns.iter().find(|one| one.turn == turn) {
            None => Some(self.outcome),
            Some(judged) => judged.score.map(|score| self.outcome + coefficient * score),
        }
    }
}

#[cfg(test)]
mod tests;
