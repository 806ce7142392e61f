//! The objective and the optimizer of a run. Read by the trainer only.
//!
//! Of all of it only the learning rate may ever change, while the run is suspended or Failed: see [`crate::grpo_run`].

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cel;

/// Group relative policy optimisation: how rewards become advantages, advantages a loss, and the loss a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = cel::rule("self.loss == 'Clipped' || !has(self.clip.dual)", "algorithm.clip.dual bounds the loss Clipped, but algorithm.loss is {self.loss}: leave dual out"),
    validation = Rule::new("!has(self.correction) || self.oldLogprobs == 'Recompute' || !(has(self.correction.truncatedImportance) || has(self.correction.icePop))").message("algorithm.correction.truncatedImportance and icePop weigh what the trainer recomputes against what the engine recorded, but algorithm.oldLogprobs is Engine, so that the clipped ratio holds that difference already: set oldLogprobs: Recompute, or leave them out (sequenceMask and geometricMask go with both)"),
    validation = Rule::new("!has(self.kl) || self.kl.placement != 'Reward' || self.kl.gradient == 'Estimator'").message("algorithm.kl.gradient says how a KL term of the loss is differentiated, but algorithm.kl.placement is Reward: leave gradient out"),
    validation = cel::rule("!has(self.aggregationLength) || self.aggregation == 'SequenceSum'", "algorithm.aggregationLength divides token sums, but algorithm.aggregation is {self.aggregation}: set aggregation: SequenceSum or leave aggregationLength out"),
    validation = cel::immutable(
        &[
            "advantage", "loss", "ratio", "clip", "kl?", "entropyCoefficient", "aggregation", "aggregationLength?", "denominator", "maskOverlong",
            "oldLogprobs", "correction?", "miniBatches", "epochs", "weightDecay", "betas", "gradientClip", "schedule", "allowFrozenSampler",
            "routerReplay?", "control?",
        ],
        "algorithm is immutable but for learningRate: make another run",
    )
)]
pub struct Algorithm {
    /// Advantages of a group's episodes.
    #[serde(default)]
    pub advantage: Advantage,
    /// What a token's ratio and advantage become. Clipped: the smaller of ratio times advantage with and without the
    /// bounds of `clip` (PPO). Cispo: the logprob times the advantage, weighed by the ratio within those bounds, which
    /// is held constant: every token keeps a gradient.
    #[serde(default)]
    pub loss: Loss,
    /// Which ratio of new to old probability. Token: each token's own. Sequence: the geometric mean over the sequence's
    /// trained tokens (GSPO), whose bounds are to be much narrower. What a sequence is, `denominator` says.
    #[serde(default)]
    pub ratio: Ratio,
    /// Clipping of the probability ratio.
    #[serde(default)]
    pub clip: Clip,
    /// A penalty on the distance from the base model. Left out: none, and no base model is held. Refused: in mode
    /// Finetune; leave it out: supervised training has no policy to stay close to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<Kl>,
    /// Weight of the policy's entropy, which is added to the objective. 0: off. Refused: in mode Finetune; leave it
    /// out: supervised training has no entropy bonus.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub entropy_coefficient: f64,
    /// How token losses are put together.
    #[serde(default)]
    pub aggregation: Aggregation,
    /// With SequenceSum: each episode's token sum is divided by this number of tokens, the same for all (Dr. GRPO).
    /// Left out: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000000))]
    pub aggregation_length: Option<u32>,
    /// What counts as a sequence where an episode has several rows. Episode: its rows together, so that long episodes
    /// weigh no more than short ones. Row: every row.
    #[serde(default)]
    pub denominator: Denominator,
    /// Episodes cut by a limit are not trained on, but stay in their group's baseline.
    #[serde(default)]
    pub mask_overlong: bool,
    /// The probabilities that new ones are compared with. Engine: those recorded when the tokens were sampled.
    /// Recompute: the trainer's own, under the version that sampled.
    #[serde(default)]
    pub old_logprobs: OldLogprobs,
    /// Weighs or leaves out tokens whose probability differs between engine and trainer. Left out: none. Refused: in
    /// mode Finetune; leave it out: supervised training has no ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<Correction>,
    /// Optimizer steps that one batch is divided into.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub mini_batches: u32,
    /// Passes over one batch.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub epochs: u32,
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
    /// How the learning rate goes over the run's steps.
    #[serde(default)]
    pub schedule: Schedule,
    /// Train although the engine cannot take new weights: every iteration then samples from the base. The run says so
    /// in a condition. Refused: with other engines; describe the external server in `inference.pool`, or leave it out:
    /// other engines take new weights.
    #[serde(default)]
    pub allow_frozen_sampler: bool,
    /// For a mixture of experts: the trainer sends each token through the experts that the engine chose. true: a pool
    /// described in the run has `routedExperts` by itself, one that is referred to needs it. false: the trainer's own
    /// router chooses. Left out: as true for such models, but that the operator, which does not see the model, does not
    /// change the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router_replay: Option<bool>,
    /// For experiments only: a run that must not learn, to compare one that does with. Refused: in mode Finetune; leave
    /// it out: supervised training has no rewards to shuffle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
}

/// ShuffledRewards: before advantages are computed, rewards change places within their group, by the run's seed, the
/// step and the group. Batches keep the raw rewards where they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Control {
    ShuffledRewards,
}

impl Default for Algorithm {
    fn default() -> Self {
        Self {
            advantage: Advantage::default(),
            loss: Loss::default(),
            ratio: Ratio::default(),
            clip: Clip::default(),
            kl: None,
            entropy_coefficient: 0.0,
            aggregation: Aggregation::default(),
            aggregation_length: None,
            denominator: Denominator::default(),
            mask_overlong: false,
            old_logprobs: OldLogprobs::default(),
            correction: None,
            mini_batches: one(),
            epochs: one(),
            learning_rate: default_learning_rate(),
            weight_decay: 0.0,
            betas: default_betas(),
            gradient_clip: default_gradient_clip(),
            schedule: Schedule::default(),
            allow_frozen_sampler: false,
            router_replay: None,
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

fn one() -> u32 {
    1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Loss {
    #[default]
    Clipped,
    Cispo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Ratio {
    #[default]
    Token,
    Sequence,
}

/// What a reward is compared with, and what the difference is divided by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Advantage {
    /// Group: reward minus the mean of its group. LeaveOneOut: minus the mean of the others. StepWise: rewards of
    /// single turns, compared within the group's turns of the same number; needs `reward.process`.
    #[serde(default)]
    pub estimator: Estimator,
    /// Which standard deviation divides: None (no division), Population (n) or Unbiased (n - 1) of the group's rewards,
    /// or Batch, the unbiased one of all rewards of the batch.
    #[serde(default)]
    pub std: StandardDeviation,
    /// Is added to the standard deviation before it divides.
    #[serde(default = "default_epsilon")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub epsilon: f64,
}

impl Default for Advantage {
    fn default() -> Self {
        Self {
            estimator: Estimator::default(),
            std: StandardDeviation::default(),
            epsilon: default_epsilon(),
        }
    }
}

fn default_epsilon() -> f64 {
    1.0e-6
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Estimator {
    #[default]
    Group,
    LeaveOneOut,
    StepWise,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum StandardDeviation {
    None,
    #[default]
    Population,
    Unbiased,
    Batch,
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

/// TokenMean: mean over all tokens of the batch. SequenceMean: mean over episodes of their token means. SequenceSum:
/// mean over episodes of their token sums. TokenSum: sum over all tokens of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Aggregation {
    #[default]
    TokenMean,
    SequenceMean,
    SequenceSum,
    TokenSum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Denominator {
    #[default]
    Episode,
    Row,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum OldLogprobs {
    #[default]
    Engine,
    Recompute,
}

/// A penalty on the distance from the base model, per token, with x = log p(policy) - log p(base).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Kl {
    /// Its weight.
    #[serde(default = "default_kl")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub coefficient: f64,
    /// K1: x. K2: x squared, halved. K3: exp(-x) - 1 + x. Abs: x without its sign. SquaredRatio: exp(-x) - 1, squared
    /// and halved.
    #[serde(default)]
    pub estimator: KlEstimator,
    /// How a term of the loss is differentiated. Estimator: as written; in expectation this is not the gradient of the
    /// KL divergence, and for K1 it is zero. StraightThrough: the value of the estimator with the gradient of K2; in
    /// expectation this is the divergence's gradient if the policy itself drew the samples. ImportanceWeighted: the
    /// estimator times the token's ratio of new to old probability; the whole product is differentiated.
    #[serde(default)]
    pub gradient: KlGradient,
    /// Loss: added to the loss. Reward: taken from the reward before advantages are computed.
    #[serde(default)]
    pub placement: KlPlacement,
}

fn default_kl() -> f64 {
    0.001
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum KlEstimator {
    K1,
    K2,
    #[default]
    K3,
    Abs,
    SquaredRatio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum KlGradient {
    #[default]
    Estimator,
    StraightThrough,
    ImportanceWeighted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum KlPlacement {
    #[default]
    Loss,
    Reward,
}

/// What is done about the engine's arithmetic and about stale samples. The ratio is the trainer's probability of a
/// token, under the weights that the batch's first step starts from, over the engine's. What is left out stays in the
/// denominators, so that nothing else weighs more for it.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.truncatedImportance) && has(self.icePop))").message("algorithm.correction has both truncatedImportance and icePop: they weigh the same ratio; leave one of them out"),
    validation = Rule::new("has(self.truncatedImportance) || has(self.icePop) || has(self.sequenceMask) || has(self.geometricMask)").message("algorithm.correction is empty: give truncatedImportance, icePop, sequenceMask or geometricMask, or leave it out"),
    validation = Rule::new("self.level == 'Token' || has(self.truncatedImportance) || has(self.icePop)").message("algorithm.correction.level says which ratio truncatedImportance and icePop take, but neither is given: leave level out")
)]
pub struct Correction {
    /// Which ratio truncatedImportance and icePop take. Token: each token's own. Sequence: the product over the
    /// sequence's trained tokens.
    #[serde(default)]
    pub level: Ratio,
    /// TIS: a token's loss is multiplied by the ratio, held in the band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_importance: Option<Band>,
    /// IcePop: a token whose ratio lies outside the band is left out, the others' losses are multiplied by their ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ice_pop: Option<Band>,
    /// A sequence with a negative advantage is left out when the engine found its tokens likelier than the policy now
    /// does by more than this: the mean over its tokens of the engine's logprob minus the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub sequence_mask: Option<f64>,
    /// A sequence is left out when the geometric mean of its tokens' ratios lies outside the band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub geometric_mask: Option<Band>,
}

/// A band of ratios.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::rule("self.low < self.high", "the band from low {self.low} to high {self.high} is empty: low is less than high"))]
pub struct Band {
    /// Lower end.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub low: f64,
    /// Upper end.
    #[serde(default = "default_band")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub high: f64,
}

fn default_band() -> f64 {
    2.0
}

/// How the learning rate goes over the run's steps.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// Constant, or down to `finalRatio` in a line or a half cosine.
    #[serde(default)]
    pub decay: Decay,
    /// Steps over which it rises from 0 before.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000000))]
    pub warmup_steps: u32,
    /// The same as a share of all steps, rounded down. The longer of the two counts.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub warmup_ratio: f64,
    /// Of Linear and Cosine: the last step's share of `learningRate`.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub final_ratio: f64,
}

fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Decay {
    #[default]
    Constant,
    Linear,
    Cosine,
}
