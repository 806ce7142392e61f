//! The gateway's report about its pool, for the programs that display it. The ledger holds the report, so the report
//! outlives the gateway and needs no write of its own.

use serde::{Deserialize, Serialize};

use crate::{ImageTrouble, Limits, StuckPod};

/// Annotation of the ledger's first ConfigMap that holds a [`PoolReport`] in JSON.
pub const REPORT_ANNOTATION: &str = "grpo.dev/pool-report";

/// The state of a pool beyond its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolReport {
    /// Result of the last probe. `None` before the first probe has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressReport>,
    /// The limits of the probe's sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Images that are not tried now because a pull failed; the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<ImageTrouble>,
    /// Pods that do not start; the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stuck: Vec<StuckPod>,
}

/// What sandboxes were shown to reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EgressReport {
    /// Time of the probe, unix milliseconds.
    pub at: i64,
    /// The targets, in words: `the API server (10.0.0.1:443)`.
    pub tried: Vec<String>,
    /// The targets that a sandbox reached.
    pub reached: Vec<String>,
    /// The same sandbox reached nothing this many seconds later: the cluster enforces policies, but not from the start
    /// of a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_after_seconds: Option<u64>,
    /// Why the probe did not run, or is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl EgressReport {
    /// Why something was reached, and what to do about it.
    pub fn cause(&self) -> String {
        match self.blocked_after_seconds {
            None => {
                "the cluster does not enforce the NetworkPolicy of the sandboxes; install a network plugin that does"
                    .to_owned()
            }
            Some(seconds) => format!(
                "the cluster enforces the NetworkPolicy of the sandboxes late: the same sandbox reached nothing {seconds} s later; have the network \
                 plugin keep new pods off the network until their policies hold (Amazon VPC CNI: NETWORK_POLICY_ENFORCING_MODE=strict)"
            ),
        }
    }

    /// Every target was tried and none was reached.
    pub fn is_blocked(&self) -> bool {
        self.failed.is_none() && self.reached.is_empty() && !self.tried.is_empty()
    }
}
