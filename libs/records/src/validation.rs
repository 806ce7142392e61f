//! `validation/<set>/<instance>.json`: whether a task is fit for training, as found by mode Validate.
//!
//! The findings follow from a task's trials (its gold patch and no patch, several times each, in fresh sandboxes) and
//! from the contents of its repository. A task without a finding is fit. A trial that was lost because of the
//! infrastructure is repeated and not recorded.

use crate::episode::TestCounts;
use crate::graded::GradedTask;
use crate::record::{Record, Writer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The findings for one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskValidation {
    pub schema: u32,
    pub writer: Writer,
    pub set: String,
    pub instance: String,
    /// The inputs of its grading. Absent in stores from before this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graded: Option<GradedTask>,
    /// Empty if the task is fit.
    pub findings: Vec<Finding>,
    /// Trials with the gold patch; empty if the row has none.
    pub gold: Vec<Trial>,
    /// Trials without a patch.
    pub empty: Vec<Trial>,
    /// Unix time in seconds.
    pub at: i64,
}

impl Record for TaskValidation {}

/// One grading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    pub ended: TrialEnd,
    pub fail_to_pass: TestCounts,
    pub pass_to_pass: TestCounts,
    pub millis: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrialEnd {
    Resolved,
    Unresolved,
    /// The patch does not apply.
    PatchRefused,
    TimedOut,
    /// The log has no result, or a limit was hit.
    Ungradable,
    /// The sandbox cannot be prepared.
    SetupFailed,
}

impl TaskValidation {
    /// False for a record that says that the infrastructure lost the task, as earlier drivers wrote it: the task is
    /// validated again.
    pub fn is_about_its_task(&self) -> bool {
        let is_lost = |finding: &Finding| matches!(finding, Finding::NoSandbox { .. });
        let lost = self.gold.iter().chain(&self.empty).any(Trial::is_lost);
        !lost && !self.findings.iter().any(is_lost)
    }
}

/// The beginning of the note of a trial that no grader completed, in records of earlier drivers.
const LOST: &str = "no grader gave an answer within ";

impl Trial {
    fn is_lost(&self) -> bool {
        let note = self.note.as_deref().unwrap_or_default();
        self.ended == TrialEnd::Ungradable && note.starts_with(LOST)
    }
}

/// Why a task is not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "finding", rename_all_fields = "camelCase")]
pub enum Finding {
    /// The repository does not have the base commit.
    BaseMissing {
        message: String,
    },
    /// The repository has commits that are not ancestors of the base commit; the fix may be among them.
    LaterCommits {
        count: u64,
        newest: String,
    },
    SetupFails {
        message: String,
    },
    /// No sandbox with its image was available within the waiting time of a grading. Only in lists: it is not recorded.
    NoSandbox {
        message: String,
    },
    GoldDoesNotApply,
    /// The gold patch never makes the tests pass.
    GoldFails {
        trials: u32,
    },
    /// The tests pass without a patch.
    EmptyPasses {
        trials: u32,
    },
    /// Trials of the same patch ended differently.
    Flaky {
        patch: String,
        ends: Vec<TrialEnd>,
    },
    /// The tests take longer than `reward.gradeTimeout`.
    Hangs {
        patch: String,
    },
    /// No grader could read the results of the tests. In a list also: the infrastructure lost every grader.
    Ungradable {
        patch: String,
        message: String,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BaseMissing { message } => write!(f, "its base commit is not in the repository: {message}"),
            Self::LaterCommits { count, newest } => {
                write!(
                    f,
                    "its repository has {count} commits that are not before the base commit, such as {newest}"
                )
            }
            Self::SetupFails { message } => write!(f, "its sandbox cannot be prepared: {message}"),
            Self::NoSandbox { message } => write!(f, "it has no sandbox: {message}"),
            Self::GoldDoesNotApply => f.write_str("the gold patch does not apply"),
            Self::GoldFails { trials } => write!(f, "the gold patch fails its tests, {trials} times of {trials}"),
            Self::EmptyPasses { trials } => write!(f, "its tests pass without a patch, {trials} times of {trials}"),
            Self::Flaky { patch, ends } if ends.windows(2).all(|pair| pair[0] == pair[1]) => {
                write!(
                    f,
                    "its tests are flaky: with {patch} other tests passed in another trial"
                )
            }
            Self::Flaky { patch, ends } => write!(f, "its tests are flaky: {patch} ended {ends:?}"),
            Self::Hangs { patch } => write!(f, "its tests take longer than reward.gradeTimeout with {patch}"),
            Self::Ungradable { patch, message } => write!(f, "{patch} cannot be graded: {message}"),
        }
    }
}

/// The names of the tried patches in findings.
pub const GOLD: &str = "the gold patch";
pub const EMPTY: &str = "no patch";

/// Derives findings from a task's trials. `gold` may be empty: then no solution is known.
pub fn findings(gold: &[Trial], empty: &[Trial]) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(failed) = gold
        .iter()
        .chain(empty)
        .find(|trial| trial.ended == TrialEnd::SetupFailed)
    {
        let message = failed.note.clone().unwrap_or_default();
        return vec![Finding::SetupFails { message }];
    }
    for (trials, patch, wanted) in [(gold, GOLD, TrialEnd::Resolved), (empty, EMPTY, TrialEnd::Unresolved)] {
        let Some(first) = trials.first() else { continue };
        // Compares counts too: a flaky test that does not decide the outcome can still make later rewards random.
        let same = |trial: &Trial| {
            (trial.ended, trial.fail_to_pass, trial.pass_to_pass)
                == (first.ended, first.fail_to_pass, first.pass_to_pass)
        };
        if trials.iter().any(|trial| trial.ended == TrialEnd::TimedOut) {
            found.push(Finding::Hangs { patch: patch.into() });
        } else if !trials.iter().all(same) {
            let ends = trials.iter().map(|trial| trial.ended).collect();
            found.push(Finding::Flaky {
                patch: patch.into(),
                ends,
            });
        } else if first.ended != wanted {
            let trials = trials.len() as u32;
            found.push(match (first.ended, wanted) {
                (TrialEnd::PatchRefused, _) => Finding::GoldDoesNotApply,
                (TrialEnd::Ungradable, _) => Finding::Ungradable {
                    patch: patch.into(),
                    message: first.note.clone().unwrap_or_default(),
                },
                (_, TrialEnd::Resolved) => Finding::GoldFails { trials },
                _ => Finding::EmptyPasses { trials },
            });
        }
    }
    found
}

/// Characters of one finding in a list. Its record has the full text, which may be a page of setup output.
const SHOWN: usize = 300;

/// A list for `select.instanceIds`: the fit tasks, one per line; the others as comments with their findings.
pub fn id_list(set: &str, validated: &[TaskValidation]) -> String {
    let fit = validated.iter().filter(|one| one.findings.is_empty()).count();
    let mut list = format!("# {fit} of {} tasks of {set} are fit.\n", validated.len());
    for one in validated {
        let found: Vec<String> = one.findings.iter().map(in_a_line).collect();
        match found.is_empty() {
            true => list.push_str(&format!("{}\n", one.instance)),
            false => list.push_str(&format!("# {}: {}\n", one.instance, found.join("; "))),
        }
    }
    list
}

fn in_a_line(finding: &Finding) -> String {
    let words = finding.to_string().replace(['\n', '\r'], " ");
    match words.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    }
}

#[cfg(test)]
mod tests;
