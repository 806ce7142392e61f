//! The verdict on an episode, before the episode's record has it.

use crate::episode::GradeRecord;
use crate::graded::GradedTask;
use crate::outcome::Outcome;
use crate::record::{Record, Writer};
use serde::{Deserialize, Serialize};

/// `…/verdict.json`: exists until `meta.json` has the verdict, and stays beside that of a void. It is durable before
/// anything follows from the verdict: another episode with the same patch takes it over, a reward service is asked. A
/// second grading after a crash could differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerdictRecord {
    pub schema: u32,
    pub writer: Writer,
    pub outcome: Outcome,
    pub grade: GradeRecord,
    /// What was graded, and how.
    pub graded: GradedTask,
    /// Unix time in seconds.
    pub at: i64,
}

impl Record for VerdictRecord {}
