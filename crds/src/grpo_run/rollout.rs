//! How many episodes a run has, how they are sampled, and which groups are trained on.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cel;

/// How many episodes, and how they are sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = cel::rule("self.onSync != 'Continue' || self.maxStaleness > 0", "rollout.onSync is Continue, but maxStaleness 0: an episode that continues under new weights is one step stale; set maxStaleness: 1 or onSync: Drain"),
    validation = cel::immutable(&["prompts", "samples", "maxStaleness", "dynamic?", "onSync"], "of rollout, prompts, samples, maxStaleness, dynamic and onSync are immutable: make another run")
)]
pub struct Rollout {
    /// Iterations of the run: rollout, step, sync.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000000))]
    pub iterations: u32,
    /// Tasks of one iteration.
    #[serde(default = "default_prompts")]
    #[schemars(range(min = 1, max = 4096))]
    pub prompts: u32,
    /// Episodes per task: one group, whose mean reward is the baseline.
    #[serde(default = "default_samples")]
    #[schemars(range(min = 2, max = 256))]
    pub samples: u32,
    /// Episodes at the same time. Default: as many as the sandbox pool has room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub concurrency: Option<u32>,
    /// Steps that the sampling weights may lag behind the trained ones. 0: strictly on-policy. 1: the next rollout
    /// overlaps the step. More: so many batches may wait for the trainer.
    #[serde(default)]
    #[schemars(range(min = 0, max = 8))]
    pub max_staleness: u32,
    /// Episodes still running when new weights come. Drain: they end before the engines are given the weights.
    /// Continue: their next turns are sampled by the new weights, and every token is recorded with the version that
    /// sampled it. Abort: they are given up and sampled again, from their beginning, by the new weights. An evaluation
    /// always ends under the weights that it measures.
    #[serde(default)]
    pub on_sync: OnSync,
    /// Which groups are worth a step. Left out: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<Dynamic>,
    /// How tokens are drawn.
    #[serde(default)]
    pub sampling: Sampling,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            iterations: one(),
            prompts: default_prompts(),
            samples: default_samples(),
            concurrency: None,
            max_staleness: 0,
            on_sync: OnSync::default(),
            dynamic: None,
            sampling: Sampling::default(),
        }
    }
}

fn default_prompts() -> u32 {
    8
}

fn default_samples() -> u32 {
    8
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum OnSync {
    #[default]
    Drain,
    Continue,
    Abort,
}

/// Dynamic sampling (DAPO): groups that teach nothing are dropped, and the next tasks are rolled out in their place,
/// until a batch has `prompts` groups that teach something. It has the first such groups in the order of the tasks,
/// however long their episodes took: a batch of those that ended first would be one of short episodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::rule("self.limit >= self.overSample", "rollout.dynamic.limit is {self.limit}, less than the {self.overSample} of overSample: the limit counts the groups of overSample too; raise limit"))]
pub struct Dynamic {
    /// NonZeroVariance: groups whose rewards are all equal are dropped; with `estimator: StepWise`, groups in which the
    /// turns of one number have equal rewards, whichever the number.
    #[serde(default)]
    pub filter: GroupFilter,
    /// Groups that are rolled out at the same time, as a multiple of `prompts`. Over 1, groups that may turn out to be
    /// needed begin early; those that are not needed are stopped, and their tasks come again in the next iteration.
    #[serde(default = "default_over_sample")]
    #[schemars(range(min = 1.0, max = 16.0))]
    pub over_sample: f64,
    /// Groups that are rolled out for one batch at most, as a multiple of `prompts`. When these are done, the step is
    /// made of the groups that teach something; if none does, of the first `prompts` others, whose advantages are 0.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1.0, max = 64.0))]
    pub limit: f64,
    /// Only tasks whose share of resolved episodes lay in this band, ends included, when they were last rolled out;
    /// tasks that never were count as inside. Where no task is inside, all are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_rate_band: Option<PassRateBand>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum GroupFilter {
    #[default]
    NonZeroVariance,
}

fn default_over_sample() -> f64 {
    1.0
}

fn default_limit() -> f64 {
    4.0
}

/// A band of shares of resolved episodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::rule("self.low < self.high", "rollout.dynamic.passRateBand from low {self.low} to high {self.high} is empty: low is less than high"))]
pub struct PassRateBand {
    /// Lower end.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub low: f64,
    /// Upper end.
    #[serde(default = "default_high")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub high: f64,
}

fn default_high() -> f64 {
    1.0
}

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sampling {
    /// Temperature; 0 takes the likeliest token.
    #[serde(default = "default_temperature")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub temperature: f64,
    /// Tokens of one answer at most; less when the context has less left.
    #[serde(default = "default_max_tokens_per_call")]
    #[schemars(range(min = 1, max = 1000000))]
    pub max_tokens_per_call: u32,
    /// Nucleus; 1 is off. Refused: in `rollout.sampling` of mode Train; leave it out: the trainer computes no such
    /// distribution; mode Evaluate takes it.
    #[serde(default = "default_top_p")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_p: f64,
    /// Number of likeliest tokens; 0 is off. Refused: in `rollout.sampling` of mode Train; leave it out: the trainer
    /// computes no such distribution; mode Evaluate takes it.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000000))]
    pub top_k: u32,
    /// Tokens less likely than this share of the likeliest one are left out, after the temperature; 0 is off. Refused:
    /// in `rollout.sampling` of mode Train; leave it out: the trainer computes no such distribution; mode Evaluate
    /// takes it.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_p: f64,
    /// Taken from the logit of every token that was sampled before in the answer; 0 is off. Refused: in
    /// `rollout.sampling` of mode Train; leave it out: the trainer computes no such distribution; mode Evaluate takes
    /// it.
    #[serde(default)]
    #[schemars(range(min = -2.0, max = 2.0))]
    pub presence_penalty: f64,
    /// Taken from the logit of a token once for every time it was sampled before in the answer; 0 is off. Refused: in
    /// `rollout.sampling` of mode Train; leave it out: the trainer computes no such distribution; mode Evaluate takes
    /// it.
    #[serde(default)]
    #[schemars(range(min = -2.0, max = 2.0))]
    pub frequency_penalty: f64,
    /// Divides the logit of every token of prompt and answer where it is positive, and multiplies it where it is
    /// negative; 1 is off. Refused: in `rollout.sampling` of mode Train; leave it out: the trainer computes no such
    /// distribution; mode Evaluate takes it.
    #[serde(default = "default_repetition_penalty")]
    #[schemars(range(min = 0.01, max = 10.0))]
    pub repetition_penalty: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: default_temperature(),
            max_tokens_per_call: default_max_tokens_per_call(),
            top_p: default_top_p(),
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: default_repetition_penalty(),
        }
    }
}

fn default_temperature() -> f64 {
    1.0
}

fn default_max_tokens_per_call() -> u32 {
    4096
}

fn default_top_p() -> f64 {
    1.0
}

fn default_repetition_penalty() -> f64 {
    1.0
}

fn one() -> u32 {
    1
}
