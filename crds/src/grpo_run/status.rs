//! Status of a run: what the operator owns of it. What the driver owns is [`crate::progress`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{attempts::AttemptStatus, progress::Progress};

/// Where the run is.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrpoRunStatus {
    /// Coarse summary of the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The message of the condition that matters most now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub message: Option<String>,
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What is optimised, in one line: estimator, clipping, KL, aggregation, corrections, as presets and defaults
    /// resolve. None without training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub objective: Option<String>,
    /// Pods that the run consists of, its own pools included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub plan: Vec<PlannedPods>,
    /// Admitted, Provisioned, Succeeded, Failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Attempts of the pod groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<Attempts>,
    /// What a running run is doing. Written by the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// Pods of one role.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedPods {
    /// driver, trainer, engine, gateway or sandbox.
    #[schemars(length(max = 32))]
    pub role: String,
    /// How many: `4`, or `0-64` for sandboxes that come and go.
    #[schemars(length(max = 32))]
    pub pods: String,
    /// What each takes: `8 GPUs, 96 CPUs, 1200Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub each: Option<String>,
    /// How many run now. Left out for sandboxes, which come and go: their pool counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
}

/// Coarse summary of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Seen, nothing made yet.
    Pending,
    /// All its objects exist; its pods wait until the run is admitted as a whole.
    Queued,
    /// Its objects are made; pods are scheduled, pull images, start.
    Provisioning,
    /// Everything runs.
    Running,
    /// Its pods are gone because the spec says so; its store stays.
    Suspended,
    /// Done.
    Succeeded,
    /// Ended by a fault.
    Failed,
    /// Deleted; its objects go.
    Terminating,
}

/// Attempts of the pod groups of a run.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempts {
    #[serde(default)]
    pub driver: AttemptStatus,
    #[serde(default)]
    pub trainer: AttemptStatus,
}
