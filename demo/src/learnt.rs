//! Shows which step on the way from a prompt to a resolved task improved, not only by how much.
//!
//! For every episode of an evaluation it counts: turns with a valid action, patches that are not empty, patches that
//! apply, patches that resolve, edits, and whether the first guess was right. An *edit* is a command with `sed -i`; a
//! *passing guess* is an edit after which the task's own command printed `1 passed`. These two describe the demo's
//! agent and apply only to the demo.

use crate::statistics::Tally;
use grpo_records::folder::{EpisodeFolder, FolderError, RunFolder, counting};
use grpo_records::{EpisodeEnd, Outcome, TurnRecord};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The grade's status if the patch does not apply to a fresh tree.
const REFUSED: &str = "PatchRefused";
const EDIT: &str = "sed -i";
const PASSED: &str = "1 passed";

/// Counts over one evaluation; the shares are their quotients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learnt {
    pub episodes: u32,
    pub voids: u32,
    pub turns: u32,
    pub parseable_turns: u32,
    pub submitted: u32,
    pub non_empty: u32,
    pub applied: u32,
    pub resolved: u32,
    pub edits: u32,
    pub episodes_with_an_edit: u32,
    pub first_guess_passed: u32,
    pub sampled_tokens: u64,
}

impl Learnt {
    pub fn take(&mut self, episode: &EpisodeFolder, turns: &[TurnRecord]) {
        let meta = &episode.meta;
        if !meta.outcome.is_verdict() {
            self.voids += 1;
            return;
        }
        self.episodes += 1;
        self.sampled_tokens += meta.sampled_tokens as u64;
        self.turns += turns.len() as u32;
        self.parseable_turns += turns.iter().filter(|t| t.action.as_command().is_some()).count() as u32;
        self.submitted += u32::from(meta.end == EpisodeEnd::Submitted);
        self.non_empty += u32::from(meta.patch_bytes > 0);
        let applied = meta.patch_bytes > 0 && meta.grade.as_ref().is_some_and(|g| g.status != REFUSED);
        self.applied += u32::from(applied);
        self.resolved += u32::from(meta.outcome == Outcome::Resolved);
        let edits: Vec<&TurnRecord> = turns.iter().filter(|t| is_edit(t)).collect();
        self.edits += edits.len() as u32;
        if let Some(first) = edits.first() {
            self.episodes_with_an_edit += 1;
            self.first_guess_passed += u32::from(first.observation_text.contains(PASSED));
        }
    }

    /// Name, value and whether it is a share, in the order of their dependency.
    pub fn figures(&self) -> Vec<(&'static str, Option<f64>, bool)> {
        vec![
            ("turns with one command", share(self.parseable_turns, self.turns), true),
            ("episodes that submit", share(self.submitted, self.episodes), true),
            ("patches that are not empty", share(self.non_empty, self.episodes), true),
            (
                "of those, patches that apply",
                share(self.applied, self.non_empty),
                true,
            ),
            ("of those, resolved", share(self.resolved, self.applied), true),
            (
                "first guess passes",
                share(self.first_guess_passed, self.episodes_with_an_edit),
                true,
            ),
            ("edits an episode", share(self.edits, self.episodes), false),
            ("turns an episode", share(self.turns, self.episodes), false),
        ]
    }
}

fn share(of: u32, all: u32) -> Option<f64> {
    (all > 0).then(|| f64::from(of) / f64::from(all))
}

fn is_edit(turn: &TurnRecord) -> bool {
    turn.action.as_command().is_some_and(|c| c.contains(EDIT))
}

/// One evaluation of a set: per task, and in counts.
#[derive(Clone, Debug, Default)]
pub struct Evaluation {
    pub set: String,
    pub weights: String,
    pub tasks: BTreeMap<String, Tally>,
    pub learnt: Learnt,
}

impl Evaluation {
    /// Reads every episode that counts: of several attempts the one with a verdict, otherwise the last.
    pub fn read(folder: &RunFolder, set: &str, weights: &str) -> Result<Self, FolderError> {
        let scope = grpo_records::EpisodeScope::Evaluation {
            set: set.to_owned(),
            weights: weights.to_owned(),
        };
        let mut evaluation = Self {
            set: set.to_owned(),
            weights: weights.to_owned(),
            ..Self::default()
        };
        for episode in counting(folder.episodes(&scope)?) {
            let turns = folder.turns(&episode.path)?;
            evaluation.learnt.take(&episode, &turns);
            let tally = evaluation.tasks.entry(episode.meta.key.instance.clone()).or_default();
            tally.valid += u32::from(episode.meta.outcome.is_verdict());
            tally.resolved += u32::from(episode.meta.outcome == Outcome::Resolved);
        }
        Ok(evaluation)
    }

    /// Mean over tasks of the chance that one of k samples is resolved; `None` if tasks have fewer samples.
    pub fn pass_at(&self, k: u32) -> Option<f64> {
        let rates: Option<Vec<f64>> = self.tasks.values().map(|t| t.pass_at(k)).collect();
        let rates = rates?;
        (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
    }

    /// The number of samples that every task has.
    pub fn samples(&self) -> u32 {
        self.tasks.values().map(|t| t.valid).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
