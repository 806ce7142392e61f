//! The settings that may change during a run, as the driver accepted them. The journal holds them, so a restarted
//! driver finishes an iteration or evaluation with the settings that it began with.

use grpo_engine_protocol::Penalties;
use serde::{Deserialize, Serialize};

/// All live settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveSettings {
    pub iterations: u32,
    pub sampling: Sampling,
    pub checkpoint: Checkpoint,
    /// In the order of the run's sets.
    pub evaluate: Vec<Cadence>,
}

/// How tokens are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sampling {
    pub temperature: f64,
    pub top_p: f64,
    pub top_k: i64,
    pub max_tokens_per_call: u32,
    /// For evaluations only.
    #[serde(default, skip_serializing_if = "Penalties::is_off")]
    pub penalties: Penalties,
}

/// When checkpoints are written and how many are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    pub every: u32,
    pub keep: u32,
}

/// When a set is evaluated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cadence {
    pub set: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
    pub at_start: bool,
    pub at_end: bool,
}

impl LiveSettings {
    /// Whether a step is followed by a checkpoint: at regular intervals, and at the end.
    pub fn is_kept(&self, step: u32) -> bool {
        step.is_multiple_of(self.checkpoint.every.max(1)) || step >= self.iterations
    }
}
