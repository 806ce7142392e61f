//! What the driver and the trainer's rank 0 say to each other over HTTP; everything large goes through the store.

use serde::{Deserialize, Serialize};

/// `GET /v1/state`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainerState {
    pub attempt: u32,
    pub world_size: u32,
    pub lineage: String,
    /// Last finished step; 0: the initial weights are published.
    pub step: u32,
    /// Version published by that step; empty while `Starting`.
    pub weights: String,
    /// Hex sha256 of its manifest file.
    pub manifest_sha256: String,
    /// Step of the newest complete checkpoint.
    pub checkpoint_step: u32,
    pub phase: TrainerPhase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What the trainer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrainerPhase {
    /// Loading, or replaying stored batches.
    Starting,
    Idle,
    Stepping,
    /// It cannot go on; `error` says why.
    Failed,
}

/// Body of `PUT /v1/steps/{k}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepRequest {
    /// Path of the batch below the run's root.
    pub batch: String,
    /// Hex sha256 of its bytes.
    pub sha256: String,
    /// What is kept of the state after the step. Left out: as `run.json` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointOrder>,
}

impl StepRequest {
    /// Whether both ask for the same step on the same batch; what is kept after it may have changed in between.
    pub fn is_same_step(&self, other: &Self) -> bool {
        (&self.batch, &self.sha256) == (&other.batch, &other.sha256)
    }
}

/// What is kept of the state after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointOrder {
    /// Whether a checkpoint is written.
    pub write: bool,
    /// So many are kept then, the newest.
    pub keep: u32,
}

/// Answer about one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepState {
    pub step: u32,
    pub state: StepPhase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<StepMetrics>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepPhase {
    Queued,
    Running,
    Done,
    /// The batch was refused; parameters are as before.
    Failed,
}

/// `metrics/trainer/<k>.json`, and part of a step's answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepMetrics {
    pub step: u32,
    pub weights: String,
    /// Checksum of the weights that the step published: known even after the version itself is removed.
    pub tensors_sha256: String,
    /// Sum of the three below; of several optimizer steps their mean. In mode Finetune the weighed mean of negative
    /// logprobs.
    pub loss: f64,
    pub policy_loss: f64,
    /// With its coefficient.
    pub kl_loss: f64,
    /// With its coefficient; at most 0.
    pub entropy_loss: f64,
    /// Mean of the KL estimator over trained tokens, without its coefficient; 0 where the run has none.
    pub kl: f64,
    /// Share of trained tokens whose ratio was clipped.
    pub clip_fraction: f64,
    /// The same of ratios above 1.
    pub clip_fraction_high: f64,
    /// Share of trained tokens that a correction left out.
    pub left_out_fraction: f64,
    /// Mean of |ratio - 1| over the trained tokens that are computed.
    pub ratio_deviation: f64,
    /// Mean entropy of the policy at the trained tokens that are computed, nats.
    pub entropy: f64,
    /// Norm of the gradient before clipping; of several optimizer steps their mean.
    pub gradient_norm: f64,
    /// Optimizer steps that the batch was divided into, over all its epochs.
    pub updates: u32,
    pub learning_rate: f64,
    /// Trained tokens (mask 1).
    pub trained_tokens: u64,
    /// All tokens of the batch's rows.
    pub row_tokens: u64,
    /// Tokens that were computed in a pass over the batch: shared prefixes once, and no sequence without a loss.
    pub unique_tokens: u64,
    /// How many steps the oldest weights that sampled are behind those that the step began with.
    pub staleness_max: u32,
    /// Largest |engine's logprob - trainer's under the weights that the step began with| over the trained tokens of all
    /// mini-batches; of the first alone where those of the others are not computed (`oldLogprobs: Engine` without
    /// `correction`).
    pub logprob_gap_max: f64,
    /// Of those tokens, how many have a gap over 1e-3.
    pub logprob_gap_over: u64,
    /// Of a mixture: tokens of the busiest expert of any layer, over the mean of its layer; 1 is even.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert_load_max: Option<f64>,
    /// Of a mixture: experts, of all layers, that computed no token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts_idle: Option<u64>,
    /// Mode Finetune: mean negative logprob of what is learnt in the rows that nothing is learnt from, after the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_loss: Option<f64>,
    pub groups: u32,
    /// Groups left out for having fewer than two valid episodes.
    pub groups_dropped: u32,
    /// Groups whose rewards were all equal: they teach nothing.
    pub groups_zero_variance: u32,
    /// Groups that teach something.
    pub groups_informative: u32,
    /// Rows that were not trained on because a limit had cut their episode.
    pub rows_overlong: u32,
    pub mean_reward: f64,
    /// Advantages that were trained with: one list a group of the batch, in the order of its rewards.
    #[serde(default)]
    pub advantages: Vec<Vec<f64>>,
    /// The control in which rewards change places within their group.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shuffled: bool,
    pub seconds: f64,
    /// Of them, those before the first optimizer step: checks, packing, forward passes for reference and old logprobs.
    pub observe_seconds: f64,
    /// Forward and backward.
    pub gradient_seconds: f64,
    /// The optimizer's.
    pub update_seconds: f64,
    /// Operations that the model's arithmetic asks of the step, over all ranks: what is computed a second time to save
    /// memory is not among them.
    pub model_flops: f64,
    /// Share of all devices' peak that they were over the step's seconds. Left out where no peak is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
}

impl StepMetrics {
    /// Every number of the step under the name that Prometheus and TensorBoard show it by: the field's, in snake case.
    /// What is derived is here too.
    pub fn numbers(&self) -> Vec<(String, f64)> {
        let fields = match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let named = fields.iter().filter(|(name, _)| *name != "step");
        let mut numbers: Vec<(String, f64)> = named
            .filter_map(|(name, value)| Some((shown(name), value.as_f64()?)))
            .collect();
        if self.seconds > 0.0 {
            for (name, count) in [
                ("row_tokens", self.row_tokens as f64),
                ("unique_tokens", self.unique_tokens as f64),
                ("model_flops", self.model_flops),
            ] {
                numbers.push((format!("{name}_per_second"), count / self.seconds));
            }
        }
        numbers
    }
}

fn shown(field: &str) -> String {
    if field == "seconds" {
        return "step_seconds".to_owned();
    }
    let snake = |c: char| match c.is_ascii_uppercase() {
        true => format!("_{}", c.to_ascii_lowercase()),
        false => c.to_string(),
    };
    field.chars().map(snake).collect()
}

#[cfg(test)]
mod tests;
