//! The result of a grading.

use grpo_records::{GradeRecord, GradedTask, Outcome, VerdictRecord};
use std::time::Duration;

/// An outcome with the record and the log of its grading.
#[derive(Clone, Debug)]
pub struct Graded {
    pub outcome: Outcome,
    pub record: Option<GradeRecord>,
    /// The log behind the verdict.
    pub log: Option<String>,
    pub message: Option<String>,
    pub took: Duration,
    /// What was graded, and how; unknown of a verdict of an earlier driver, which may have had another image and time
    /// limit, if that left no [`VerdictRecord`].
    pub task: Option<GradedTask>,
}

impl From<VerdictRecord> for Graded {
    fn from(kept: VerdictRecord) -> Self {
        Self {
            outcome: kept.outcome,
            record: Some(kept.grade),
            log: None,
            message: None,
            took: Duration::ZERO,
            task: Some(kept.graded),
        }
    }
}

impl Graded {
    /// A verdict that needs no grader.
    pub(super) fn without_grader(outcome: Outcome, status: &str, notes: Vec<String>, task: GradedTask) -> Self {
        Self {
            outcome,
            record: Some(GradeRecord {
                status: status.to_owned(),
                notes,
                ..GradeRecord::default()
            }),
            log: None,
            message: None,
            took: Duration::ZERO,
            task: Some(task),
        }
    }
}
