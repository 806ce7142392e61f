//! What an episode is worth, and what judges its turns.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rollout::Sampling;
use crate::cel;
use crate::common::{ObjectRef, Period, SecretKeyRef};

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
    /// Added to that, and charged for the way to it. Left out: the verdict alone counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaping: Option<Shaping>,
    /// A service of your own that says what an episode is worth, in place of all of that. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpReward>,
    /// A judge of single turns, whose scores are added to the episode's reward. Left out: none. Refused: with
    /// `agent.cli`; leave it out: what came of a command-line agent's calls is not known turn by turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessReward>,
}

impl Default for Reward {
    fn default() -> Self {
        Self {
            resolved: default_resolved(),
            unresolved: 0.0,
            grade_timeout: default_grade_timeout(),
            shaping: None,
            http: None,
            process: None,
        }
    }
}

/// A shaped reward: resolved or unresolved + passRatio x the share of the task's tests that pass - what turns, calls
/// and lines of the patch cost, within low and high. Groups of equal verdicts then have rewards that differ: the policy
/// learns to cost less also where it cannot solve a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::rule("!has(self.low) || !has(self.high) || self.low < self.high", "reward.shaping from low {self.low} to high {self.high} is empty: low is less than high"))]
pub struct Shaping {
    /// Weight of the share of the task's tests that pass, of those that should after the fix and those that should
    /// before and after. Without a patch that a grader can run, the share is 0.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub pass_ratio: f64,
    /// Cost of the episode's turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<Cost>,
    /// Cost of calls of tools (`agent.tools`), by tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub calls: Option<Vec<CallCost>>,
    /// Cost of lines that the patch adds or removes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch_lines: Option<Cost>,
    /// Smallest reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub low: Option<f64>,
    /// Largest reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub high: Option<f64>,
}

/// A service that every episode with a verdict is posted to, and that answers `{"reward": number}`. Its failures are
/// waited for and then make the episode void: they are never a reward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpReward {
    /// Where to, for example `http://rewards.team.svc/reward`.
    #[schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s]+$"))]
    pub url: String,
    /// Token that is sent along as `Authorization: Bearer`. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyRef>,
    /// Time of one question.
    #[serde(default = "default_http_timeout")]
    pub timeout: Period,
    /// Questions at the same time.
    #[serde(default = "default_http_concurrency")]
    #[schemars(range(min = 1, max = 1024))]
    pub concurrency: u32,
}

fn default_http_timeout() -> Period {
    Period::from_minutes(1)
}

fn default_http_concurrency() -> u32 {
    16
}

/// Taken from the reward.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// For each.
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub each: f64,
    /// For all together at most.
    #[serde(default = "default_most")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub most: f64,
}

/// Cost of calls of one tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallCost {
    /// Its name, as the policy calls it.
    #[schemars(length(min = 1, max = 64))]
    pub tool: String,
    /// Of its calls.
    pub cost: Cost,
}

fn default_most() -> f64 {
    1000.0
}

fn default_resolved() -> f64 {
    1.0
}

fn default_grade_timeout() -> Period {
    Period::from_minutes(15)
}

/// A process reward model, asked of each turn that ran something, while the episode continues: it sees the issue, the
/// turns so far and the one turn, and says +1 or -1. Only training episodes are judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::rule("self.minVotes <= self.votes", "process.minVotes is {self.minVotes}, more than the {self.votes} of process.votes: no turn would have a score"))]
pub struct ProcessReward {
    /// The InferencePool (`grpo.dev`) of the same namespace that serves the judge. No run may claim it.
    pub pool_ref: ObjectRef,
    /// Votes for each turn; its score is the mean of those that can be read. A lost vote is a missing one, never a 0.
    #[serde(default = "default_votes")]
    #[schemars(range(min = 1, max = 64))]
    pub votes: u32,
    /// Votes that can be read which a score needs. A turn with fewer has no score: it adds nothing to the episode's
    /// reward, and with `estimator: StepWise` it is left out of the batch.
    #[serde(default = "default_min_votes")]
    #[schemars(range(min = 1, max = 64))]
    pub min_votes: u32,
    /// Weight of the scores beside the verdict: an episode's reward is the verdict's + coefficient x the mean of its
    /// turns' scores; with `estimator: StepWise` a turn's is the verdict's + coefficient x its score.
    #[serde(default = "default_coefficient")]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub coefficient: f64,
    /// The turn that submits is not judged.
    #[serde(default = "yes")]
    pub skip_submit: bool,
    /// How the judge's tokens are drawn.
    #[serde(default)]
    pub sampling: Sampling,
    /// Template of the judge's system text (minijinja), without variables. Default: the text of OpenClaw-RL's swe-rl.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub system: Option<String>,
    /// Template of what the judge is asked (minijinja). Variables: `problemStatement`, `historySteps`, `history`,
    /// `step` (from 1), `response`, `returnCode`, `output`. Default: the text of OpenClaw-RL's swe-rl.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub prompt: Option<String>,
    /// Earlier turns that the judge sees.
    #[serde(default = "default_history_steps")]
    #[schemars(range(min = 0, max = 1000))]
    pub history_steps: u32,
    /// Characters that the judge sees at most.
    #[serde(default)]
    pub lengths: JudgeLengths,
    /// Requests at the judge at the same time.
    #[serde(default = "default_judge_concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub concurrency: u32,
}

/// Longest texts in what a judge is asked, in characters. What is longer is cut, and says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JudgeLengths {
    /// Of the problem statement.
    #[serde(default = "default_problem_length")]
    #[schemars(range(min = 1, max = 1000000))]
    pub problem: u32,
    /// Of the answer of the turn that is judged.
    #[serde(default = "default_response_length")]
    #[schemars(range(min = 1, max = 1000000))]
    pub response: u32,
    /// Of what came of it.
    #[serde(default = "default_output_length")]
    #[schemars(range(min = 1, max = 1000000))]
    pub output: u32,
    /// Of what came of each earlier turn.
    #[serde(default = "default_history_output_length")]
    #[schemars(range(min = 1, max = 1000000))]
    pub history_output: u32,
}

impl Default for JudgeLengths {
    fn default() -> Self {
        Self {
            problem: default_problem_length(),
            response: default_response_length(),
            output: default_output_length(),
            history_output: default_history_output_length(),
        }
    }
}

fn default_problem_length() -> u32 {
    8000
}

fn default_response_length() -> u32 {
    32768
}

fn default_output_length() -> u32 {
    4000
}

fn default_history_output_length() -> u32 {
    1000
}

fn default_min_votes() -> u32 {
    1
}

fn default_history_steps() -> u32 {
    8
}

fn default_judge_concurrency() -> u32 {
    32
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
