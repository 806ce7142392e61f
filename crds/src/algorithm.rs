//! The objective and the optimizer of a run. Read by the trainer only.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Group relative policy optimisation: how rewards become advantages, advantages a loss, and the loss a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Algorithm {
    /// Advantages of a group's episodes.
    #[serde(default)]
    pub advantage: Advantage,
    /// Clipping of the probability ratio.
    #[serde(default)]
    pub clip: Clip,
    /// How token losses are put together.
    #[serde(default)]
    pub aggregation: Aggregation,
    /// Step size of AdamW.
    #[serde(default = "default_learning_rate")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub learning_rate: f64,
    /// Decoupled weight decay of AdamW.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub weight_decay: f64,
    /// Decay rates of AdamW's first and second moments.
    #[serde(default = "default_betas")]
    #[x_kube(validation = Rule::new("self.all(b, b >= 0.0 && b < 1.0)").message("betas lie in [0, 1)"))]
    pub betas: [f64; 2],
    /// Largest norm of the whole gradient; 0 does not clip.
    #[serde(default = "default_gradient_clip")]
    #[schemars(range(min = 0.0, max = 1000000.0))]
    pub gradient_clip: f64,
    /// For experiments only: a run that must not learn, to compare one that does with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
}

/// ShuffledRewards: before advantages are computed, rewards change places within their group, by the run's seed, the step and the group. Batches keep
/// the raw rewards where they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Control {
    ShuffledRewards,
}

impl Default for Algorithm {
    fn default() -> Self {
        Self {
            advantage: Advantage::default(),
            clip: Clip::default(),
            aggregation: Aggregation::default(),
            learning_rate: default_learning_rate(),
            weight_decay: 0.0,
            betas: default_betas(),
            gradient_clip: default_gradient_clip(),
            control: None,
        }
    }
}

fn default_learning_rate() -> f64 {
    1.0e-6
}

fn default_betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn default_gradient_clip() -> f64 {
    1.0
}

/// Reward minus the mean of its group, divided by a standard deviation.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Advantage {
    /// Which standard deviation of the group's rewards divides: None (no division), Population (n) or Unbiased (n - 1).
    #[serde(default)]
    pub std: StandardDeviation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum StandardDeviation {
    None,
    #[default]
    Population,
    Unbiased,
}

/// The ratio of new to old probability is held in [1 - low, 1 + high].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Clip {
    /// Room below 1.
    #[serde(default = "default_clip")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub low: f64,
    /// Room above 1.
    #[serde(default = "default_clip")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub high: f64,
    /// Dual clip: for negative advantages the loss is at most this multiple of the advantage. Left out: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 1000.0))]
    pub dual: Option<f64>,
}

impl Default for Clip {
    fn default() -> Self {
        Self {
            low: default_clip(),
            high: default_clip(),
            dual: None,
        }
    }
}

fn default_clip() -> f64 {
    0.2
}

/// TokenMean: mean over all tokens of the batch. SequenceMean: mean over episodes of their token means. SequenceSum: mean over episodes of
/// their token sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Aggregation {
    #[default]
    TokenMean,
    SequenceMean,
    SequenceSum,
}
