//! Leases, the demand that precedes them, and the ledger that makes them durable.

use serde::{Deserialize, Serialize};

/// Who waits for a sandbox. Graders have a reserved share: an agent's patch must not wait for other agents to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Priority {
    Agent,
    Grader,
}

/// Ask for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaseRequest {
    /// Chosen by the caller: asking again with it gets the same lease.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 512), regex(pattern = "^[!-~]([ -~]*[!-~])?$"))
    )]
    pub id: String,
    /// Name of the GrpoRun.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 512), regex(pattern = "^[!-~]([ -~]*[!-~])?$"))
    )]
    pub run: String,
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 512), regex(pattern = "^[!-~]([ -~]*[!-~])?$"))
    )]
    pub image: String,
    pub ttl_seconds: u64,
    /// How long the caller will wait in the queue.
    pub wait_seconds: u64,
    pub priority: Priority,
}

/// A sandbox that is somebody's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    pub id: String,
    /// Counts the pool's leases; fences an earlier holder.
    pub epoch: u64,
    /// Name of the pod.
    pub sandbox: String,
    pub image: String,
    #[serde(default)]
    pub node: String,
    /// Unix milliseconds.
    pub expires_at: i64,
}

/// One lease in the ledger. Renewals are not written there: `expires_at` is that of the first grant, and a gateway
/// that restarts gives each lease whose sandbox lives the whole of its time again, so that a holder that renews in time
/// loses nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LedgerEntry {
    pub lease: String,
    pub run: String,
    pub sandbox: String,
    pub pod_uid: String,
    /// How often the pod's container had restarted: another one is not this lease's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u32,
    pub image: String,
    pub epoch: u64,
    /// Unix milliseconds.
    pub expires_at: i64,
    /// The longest time that it was given, by the lease or a renewal.
    #[serde(default)]
    pub ttl_millis: i64,
    pub priority: Priority,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Sandboxes a run wants warm from now on; replaces what it wanted before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Demand {
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 512)))]
    pub run: String,
    #[cfg_attr(feature = "schema", schemars(length(max = 4096)))]
    pub images: Vec<ImageDemand>,
}

/// How many sandboxes of one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageDemand {
    pub image: String,
    pub count: u32,
}

/// A pool in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PoolState {
    pub ready: u32,
    pub leased: u32,
    pub pending: u32,
    pub max: u32,
    pub warm_hits: u64,
    pub cold_leases: u64,
    pub voided: u64,
    /// Groups of episodes whose sandboxes a run may ask for ahead of their turn; left out: as many episodes as it runs
    /// at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_ahead: Option<u32>,
    /// URL of the package index that graders reach; left out where they reach nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_index: Option<String>,
}

/// Whether the pool's package index answers now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PackageIndexState {
    /// Left out where the pool names no index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Why the gateway cannot connect to it; left out when it can, and where there is no index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<String>,
}

impl PoolState {
    /// How many sandboxes agents may hold at one time.
    pub fn agents(&self) -> u32 {
        self.max - reserved_for_graders(self.max)
    }
}

/// How many of a pool's sandboxes agents leave for graders: a quarter. A pool of one serves agents and graders in turn.
pub fn reserved_for_graders(max: u32) -> u32 {
    if max > 1 { (max / 4).max(1) } else { 0 }
}
