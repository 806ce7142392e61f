//! The HTTP messages between the driver and the trainer's rank 0; all large data goes through the store.

use serde::{Deserialize, Serialize};

/// `GET /v1/state`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainerState {
    pub attempt: u32,
    pub world_size: u32,
    pub lineage: String,
    /// Last finished step; 0 means that the initial weights are published.
    pub step: u32,
    /// Version published by that step; empty while `Starting`.
    pub weights: String,
    /// Hex SHA-256 of its manifest file.
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
    /// It uses no device yet: engines may still hold the memory of the devices that it shares with them. It starts when
    /// it gets [`DeviceGrant`].
    Waiting,
    /// Loading, or replaying stored batches.
    Starting,
    Idle,
    Stepping,
    /// The trainer cannot continue; `error` has the cause.
    Failed,
}

/// Body of `PUT /v1/devices`: the engines have left the devices, and the trainer may use them.
///
/// It holds until the trainer is `Idle`: from then on the trainer has given their memory back, and the next step is the
/// next grant. A trainer that shares no devices never waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceGrant {
    /// The attempt that is meant: another one, which began since, waits for a grant of its own.
    pub attempt: u32,
}

/// Body of `PUT /v1/steps/{k}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepRequest {
    /// Path of the batch below the run's root.
    pub batch: String,
    /// Hex SHA-256 of its bytes.
    pub sha256: String,
    /// The checkpoint after the step. Absent: as `run.json` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointOrder>,
    /// The run's number of iterations now: a person may change it while the run works, and the trainer read `run.json`
    /// when it started. Absent in mode Finetune, and from drivers before this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u32>,
}

impl StepRequest {
    /// Whether both request the same step on the same batch. The checkpoint order may have changed in between.
    pub fn is_same_step(&self, other: &Self) -> bool {
        (&self.batch, &self.sha256) == (&other.batch, &other.sha256)
    }
}

/// The checkpoint to write after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointOrder {
    /// Whether a checkpoint is written.
    pub write: bool,
    /// The number of newest checkpoints that are kept afterwards.
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

/// The progress of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepPhase {
    Queued,
    Running,
    Done,
    /// The batch was refused; parameters are unchanged.
    Failed,
}

/// `metrics/trainer/<k>.json`, and part of a step's answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepMetrics {
    pub step: u32,
    pub weights: String,
    /// Checksum of the weights that the step published. It stays known when the version itself is removed.
    pub tensors_sha256: String,
    /// Sum of the next three; for several optimizer steps, their mean. In mode Finetune, the weighted mean of negative
    /// logprobs.
    pub loss: f64,
    pub policy_loss: f64,
    /// Multiplied by its coefficient.
    pub kl_loss: f64,
    /// Multiplied by its coefficient; at most 0.
    pub entropy_loss: f64,
    /// Mean of the KL estimator over trained tokens, without its coefficient; 0 if the run has no KL term.
    pub kl: f64,
    /// Share of trained tokens whose ratio was clipped.
    pub clip_fraction: f64,
    /// Share of trained tokens whose ratio was clipped above 1.
    pub clip_fraction_high: f64,
    /// Share of trained tokens that a correction excluded.
    pub left_out_fraction: f64,
    /// Mean of |ratio - 1| over the trained tokens that were computed.
    pub ratio_deviation: f64,
    /// Mean entropy of the policy at the trained tokens that were computed, in nats.
    pub entropy: f64,
    /// Norm of the gradient before clipping; for several optimizer steps, their mean.
    pub gradient_norm: f64,
    /// Number of optimizer steps for the batch, over all its epochs.
    pub updates: u32,
    pub learning_rate: f64,
    /// Trained tokens (mask 1).
    pub trained_tokens: u64,
    /// All tokens of the batch's rows.
    pub row_tokens: u64,
    /// Tokens computed in a pass over the batch: shared prefixes once, sequences without a loss not at all.
    pub unique_tokens: u64,
    /// Largest staleness: how many steps the oldest version that sampled is behind the weights at the step's start.
    pub staleness_max: u32,
    /// Largest |engine's logprob - trainer's at the step's start| over the trained tokens of all mini-batches; of the
    /// first mini-batch only if the others' logprobs are not computed (`oldLogprobs: Engine` without `correction`).
    pub logprob_gap_max: f64,
    /// The number of these tokens with a gap over 1e-3.
    pub logprob_gap_over: u64,
    /// For a mixture: tokens of the busiest expert of any layer, divided by the mean of its layer; 1 is even.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert_load_max: Option<f64>,
    /// For a mixture: the number of experts, over all layers, that computed no token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts_idle: Option<u64>,
    /// Mode Finetune: mean negative logprob of the marked tokens in the held-out rows, after the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_loss: Option<f64>,
    pub groups: u32,
    /// Groups left out because they have fewer than two valid episodes.
    pub groups_dropped: u32,
    /// Groups whose rewards were all equal: they have no signal.
    pub groups_zero_variance: u32,
    /// Groups with a signal.
    pub groups_informative: u32,
    /// Rows that were not trained on because a limit ended their episode.
    pub rows_overlong: u32,
    pub mean_reward: f64,
    /// Advantages used in training: one list for each group of the batch, in the order of its rewards.
    #[serde(default)]
    pub advantages: Vec<Vec<f64>>,
    /// The control experiment: rewards are shuffled within their group.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shuffled: bool,
    pub seconds: f64,
    /// Seconds before the first optimizer step: checks, packing, forward passes for reference and old logprobs.
    pub observe_seconds: f64,
    /// Seconds of forward and backward passes.
    pub gradient_seconds: f64,
    /// Seconds of the optimizer.
    pub update_seconds: f64,
    /// Operations that the model's arithmetic needs for the step, over all ranks. Recomputation to save memory does not
    /// count.
    pub model_flops: f64,
    /// Model FLOPs utilization: `model_flops` as a share of all devices' peak over the step's seconds. Absent if the
    /// peak is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
}

impl StepMetrics {
    /// All metrics of the step under their names in Prometheus and TensorBoard: the field names in snake case, and
    /// derived metrics.
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

/// A field's name in Prometheus and TensorBoard.
pub(crate) fn shown(field: &str) -> String {
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
