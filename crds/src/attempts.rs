//! How often pods that live and die together were made, and how the last of them ended.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Attempts of a pod group, or of all groups of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptStatus {
    /// The attempt that runs, counted from 1; 0 before the first.
    #[serde(default)]
    pub current: u32,
    /// Whether its pods have all been made: one that is missing afterwards was lost.
    #[serde(default)]
    pub created: bool,
    /// Attempts that failed since something was last finished.
    #[serde(default)]
    pub consecutive_failures: u32,
    /// Attempts in a row that the cluster took away (preemption, drain, a kubelet's refusal) before their pods had
    /// started. They do not count as failures; from the second on there is a pause.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub disruptions: u32,
    /// What had been finished when an attempt last failed. When it has changed at the next failure, the count begins
    /// anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub progress_mark: Option<String>,
    /// The next attempt begins then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Time>,
    /// Nodes that later attempts avoid where they can: a rank hung there, or the kubelet refused to start a pod. The
    /// newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub avoid_nodes: Vec<String>,
    /// How the last failed attempt ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub last_failure: Option<String>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
