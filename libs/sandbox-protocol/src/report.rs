//! What a gateway reports about its pool to the programs that display it. The ledger holds the report, so the report
//! outlives the gateway and needs no write of its own.

use serde::{Deserialize, Serialize};

use crate::{ImageTrouble, Limits, StuckPod};

/// Annotation of the ledger's first ConfigMap that holds a [`PoolReport`] in JSON.
pub const REPORT_ANNOTATION: &str = "grpo.dev/pool-report";

/// What is known of a pool beyond its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolReport {
    /// What the last probe found; none before the first has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressReport>,
    /// What the probe's sandbox was bounded by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Images that are left alone now because they could not be had; the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<ImageTrouble>,
    /// Pods that have no address for long; the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stuck: Vec<StuckPod>,
}

/// What sandboxes were shown to reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EgressReport {
    /// When, unix milliseconds.
    pub at: i64,
    /// What was tried, in words: `the API server (10.0.0.1:443)`.
    pub tried: Vec<String>,
    /// Which of them a sandbox reached.
    pub reached: Vec<String>,
    /// Why there was no probe, or not a whole one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl EgressReport {
    /// Everything was tried and nothing reached.
    pub fn is_blocked(&self) -> bool {
        self.failed.is_none() && self.reached.is_empty() && !self.tried.is_empty()
    }
}
