//! What an episode is worth, and what judges its turns.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rollout::Sampling;
use crate::common::{ObjectRef, Period};

/// What an episode is worth. A fault of the infrastructure is never a reward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reward {
    /// The patch makes the tests pass that should, and breaks none.
    #[serde(default = "default_resolved")]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub resolved: f64,
    /// Anything else the policy brought about.
    #[serde(default)]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub unresolved: f64,
    /// Time of one grading.
    #[serde(default = "default_grade_timeout")]
    pub grade_timeout: Period,
    /// A judge of single turns, whose scores are added to the episode's reward. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessReward>,
}

impl Default for Reward {
    fn default() -> Self {
        Self {
            resolved: default_resolved(),
            unresolved: 0.0,
            grade_timeout: default_grade_timeout(),
            process: None,
        }
    }
}

fn default_resolved() -> f64 {
    1.0
}

fn default_grade_timeout() -> Period {
    Period::from_minutes(15)
}

/// A process reward model: it sees the issue, the turns so far and one turn, and says +1 or -1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessReward {
    /// The InferencePool (`grpo.dev`) of the same namespace that serves the judge. No run may claim it.
    pub pool_ref: ObjectRef,
    /// Votes for each turn; its score is the mean of those that can be read.
    #[serde(default = "default_votes")]
    #[schemars(range(min = 1, max = 64))]
    pub votes: u32,
    /// Weight of the scores beside the verdict.
    #[serde(default = "default_coefficient")]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub coefficient: f64,
    /// The turn that submits is not judged.
    #[serde(default = "yes")]
    pub skip_submit: bool,
    /// How the judge's tokens are drawn.
    #[serde(default)]
    pub sampling: Sampling,
}

fn default_votes() -> u32 {
    3
}

fn default_coefficient() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}
