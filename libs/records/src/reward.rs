//! The reward of an episode: one rule that the driver applies and the verifier applies again.
//!
//! Plain: one number if the task is resolved, another if not. Shaped: the share of passing tests is added, and costs of
//! turns, calls and patch lines are subtracted, as in the shaped reward of SWE-PDB. A reward service of the user can
//! have the last word. A void has no reward.

use crate::episode::GradeRecord;
use crate::outcome::Outcome;
use crate::record::{Record, Writer};
use crate::turn::TurnRecord;
use serde::{Deserialize, Serialize};

/// Recorded in the run's journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RewardRule {
    pub resolved: f64,
    pub unresolved: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaping: Option<Shaping>,
    /// A reward service receives the rule's result, and its answer is the reward.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asks: bool,
}

/// `…/reward.json`: the reward service's answer for an episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RewardAnswer {
    pub schema: u32,
    pub writer: Writer,
    pub episode: String,
    /// The verdict in the question. It is stored here for an attempt whose record is not written yet.
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grade: Option<GradeRecord>,
    /// The result of the rule, shaped or not.
    pub by_rule: f32,
    pub reward: f32,
    /// The service's own text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Why the service rejects the question. The policy decides its content, so the episode then gets the reward of an
    /// unresolved one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Unix time in seconds.
    pub at: i64,
}

impl Record for RewardAnswer {}

/// Additions to the verdict's reward, and costs subtracted from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shaping {
    /// Weight of the share of passing tests.
    pub pass_ratio: f64,
    pub turns: Cost,
    /// For each tool, by name, the cost of its calls.
    pub calls: Vec<(String, Cost)>,
    /// Cost of lines that the patch adds or removes.
    pub patch_lines: Cost,
    pub low: Option<f64>,
    pub high: Option<f64>,
}

/// A cost per item, with a maximum for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub each: f64,
    pub most: f64,
}

impl Cost {
    fn of(self, count: usize) -> Charge {
        Charge {
            count,
            cost: (self.each * count as f64).min(self.most),
        }
    }
}

/// The parts of a reward, for display. Their sum is [`RewardParts::by_rule`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RewardParts {
    /// The reward of the verdict alone.
    pub verdict: f64,
    /// Absent if the rule has no shaping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaped: Option<ShapedParts>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShapedParts {
    /// Added for passing tests.
    pub tests: f64,
    /// Subtracted, by tool name.
    pub calls: Vec<(String, Charge)>,
    pub turns: Charge,
    pub patch_lines: Charge,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

/// A count and its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Charge {
    pub count: usize,
    pub cost: f64,
}

impl RewardParts {
    /// The result of the rule, before a service or a judge is asked.
    pub fn by_rule(&self) -> f64 {
        let Some(shaped) = &self.shaped else {
            return self.verdict;
        };
        let calls = shaped.calls.iter().map(|(_, charge)| charge.cost).sum::<f64>();
        let charged = calls + shaped.turns.cost + shaped.patch_lines.cost;
        let reward = self.verdict + shaped.tests - charged;
        let reward = shaped.high.map_or(reward, |high| reward.min(high));
        shaped.low.map_or(reward, |low| reward.max(low))
    }
}

/// An episode as it ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    pub outcome: &'a Outcome,
    pub grade: Option<&'a GradeRecord>,
    pub turns: &'a [TurnRecord],
    pub patch: &'a [u8],
}

impl RewardRule {
    /// `None` for a void.
    pub fn reward(&self, ended: Ended<'_>) -> Option<f32> {
        self.parts(ended).map(|parts| parts.by_rule() as f32)
    }

    /// The parts of that reward. `None` for a void.
    pub fn parts(&self, ended: Ended<'_>) -> Option<RewardParts> {
        let verdict = match ended.outcome {
            Outcome::Resolved => self.resolved,
            Outcome::Unresolved => self.unresolved,
            Outcome::Void { .. } => return None,
        };
        Some(RewardParts {
            verdict,
            shaped: self.shaping.as_ref().map(|shaping| shaping.parts(ended)),
        })
    }

    /// The reward by an answer, for an episode whose rule gives `by_rule`. `None` if the answer is to another question.
    pub fn answered(&self, answer: &RewardAnswer, by_rule: f32) -> Option<f32> {
        let refused = answer.refused.is_some() && answer.reward != self.unresolved as f32;
        (answer.by_rule == by_rule && !refused).then_some(answer.reward)
    }
}

impl Shaping {
    fn parts(&self, ended: Ended<'_>) -> ShapedParts {
        let calls = |name: &str| {
            let of = |turn: &TurnRecord| turn.action.as_calls().unwrap_or_default();
            let all = ended.turns.iter().flat_map(of);
            all.filter(|call| call.name == name).count()
        };
        ShapedParts {
            tests: self.pass_ratio * pass_ratio(ended.grade),
            calls: self
                .calls
                .iter()
                .map(|(name, cost)| (name.clone(), cost.of(calls(name))))
                .collect(),
            turns: self.turns.of(ended.turns.len()),
            patch_lines: self.patch_lines.of(changed_lines(ended.patch)),
            low: self.low,
            high: self.high,
        }
    }
}

/// Share of the graded tests that passed; 0 if none ran, as for a patch that is empty or does not apply.
pub fn pass_ratio(grade: Option<&GradeRecord>) -> f64 {
    let Some(grade) = grade else { return 0.0 };
    let (fixed, kept) = (grade.fail_to_pass, grade.pass_to_pass);
    let passed = fixed.passed + kept.passed;
    match passed + fixed.failed + kept.failed {
        0 => 0.0,
        all => f64::from(passed) / f64::from(all),
    }
}

/// Lines that a patch adds or removes.
pub fn changed_lines(patch: &[u8]) -> usize {
    let header = |line: &[u8]| line.starts_with(b"+++ ") || line.starts_with(b"--- ");
    let changes = |line: &&[u8]| matches!(line.first(), Some(b'+' | b'-')) && !header(line);
    patch.split(|byte| *byte == b'\n').filter(changes).count()
}

#[cfg(test)]
mod tests;
