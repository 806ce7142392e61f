//! How a run goes over its life: what is kept of it, what it takes up again, which faults end it.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::tasks::Dataset;
use crate::cel;

/// When the state of the training is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// After every so many steps. What lies between is replayed from the stored batches.
    #[serde(default = "default_checkpoint_every")]
    #[schemars(range(min = 1, max = 1000000))]
    pub every: u32,
    /// So many are kept, the newest.
    #[serde(default = "default_checkpoint_keep")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: u32,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            every: default_checkpoint_every(),
            keep: default_checkpoint_keep(),
        }
    }
}

fn default_checkpoint_every() -> u32 {
    10
}

fn default_checkpoint_keep() -> u32 {
    2
}

/// When faults end the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// The driver's or the trainer's pods may fail so many times in a row; what is finished in between resets the
    /// count, and pods that were preempted or drained do not count.
    #[serde(default = "default_max_failures")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_consecutive_failures: u32,
    /// An episode lost to a fault of the infrastructure is tried again so many times; then it is void, which is no
    /// reward.
    #[serde(default = "default_void_retries")]
    #[schemars(range(min = 0, max = 100))]
    pub void_retries: u32,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            max_consecutive_failures: default_max_failures(),
            void_retries: default_void_retries(),
        }
    }
}

fn default_max_failures() -> u32 {
    6
}

fn default_void_retries() -> u32 {
    3
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    #[default]
    Train,
    Evaluate,
    Validate,
    Finetune,
}

impl Mode {
    /// Whether its pods include those of the trainer.
    pub fn needs_trainer(self) -> bool {
        matches!(self, Self::Train | Self::Finetune)
    }

    /// Whether it samples.
    pub fn needs_engines(self) -> bool {
        matches!(self, Self::Train | Self::Evaluate)
    }

    /// Whether something is run in sandboxes.
    pub fn needs_sandboxes(self) -> bool {
        self != Self::Finetune
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Resume {
    #[default]
    Auto,
    Never,
}

/// A checkpoint of another run that this one begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::stays_below("path", "resumeFrom.path"))]
pub struct ResumeFrom {
    /// The other run's folder in the same store, for example `team/first-try`.
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$"))]
    pub path: String,
    /// Step of the checkpoint. Default: its newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000000))]
    pub step: Option<u32>,
    /// Take the optimizer's state as well; otherwise only the weights.
    #[serde(default = "yes")]
    pub optimizer: bool,
}

fn yes() -> bool {
    true
}

/// Supervised training on conversations: the turns of the assistant are learnt, what it saw is not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finetune {
    /// The conversations, one a row: `messages` with `tools`, as chat APIs have them, or `tokens` with a `mask`.
    pub dataset: Dataset,
    /// Leave out rows whose field `resolved` is false.
    #[serde(default = "yes")]
    pub resolved_only: bool,
    /// Passes over the rows, each shuffled anew by the run's seed.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub epochs: u32,
    /// Rows of one step.
    #[serde(default = "default_batch")]
    #[schemars(range(min = 1, max = 65536))]
    pub batch: u32,
    /// Tokens of a row at most. Default: what the model has positions for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16777216))]
    pub max_tokens: Option<u32>,
    /// What becomes of a row with more tokens. Refuse: the run ends and names the row. Truncate: the row ends there.
    /// LeaveOut: the run trains without the row and says how many there were.
    #[serde(default)]
    pub overlong: Overlong,
    /// Whether rows without a field `enable_thinking` are rendered with reasoning switched on.
    #[serde(default = "yes")]
    pub thinking: bool,
    /// Rows that are not trained on, to see the loss on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<FinetuneValidation>,
}

/// Rows that the loss is measured on while others are trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FinetuneValidation {
    /// The conversations, in the form of `finetune.dataset`. All of them are measured.
    pub dataset: Dataset,
    /// After every so many steps, and after the last one.
    #[serde(default = "default_validation_every")]
    #[schemars(range(min = 1, max = 1000000))]
    pub every: u32,
}

/// What becomes of a row with more tokens than `finetune.maxTokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Overlong {
    #[default]
    Refuse,
    Truncate,
    LeaveOut,
}

fn default_validation_every() -> u32 {
    50
}

fn one() -> u32 {
    1
}

fn default_batch() -> u32 {
    32
}
