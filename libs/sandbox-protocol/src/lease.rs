//! Leases, the demand that precedes them, and their durable entries in the ledger.

use serde::{Deserialize, Serialize};

/// Who waits for a sandbox. Graders have a reserved share: an agent's patch must not wait for other agents to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Priority {
    Agent,
    Grader,
}

/// A request for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaseRequest {
    /// Chosen by the caller: a request with the same id gets the same lease.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 512), regex(pattern = "^[!-~]([ -~]*[!-~])?$"))
    )]
    pub id: String,
    /// The GrpoRun's name.
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
    /// Seconds that the caller waits in the queue, at most 600.
    pub wait_seconds: u64,
    pub priority: Priority,
}

/// A leased sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    pub id: String,
    /// Number of this lease among the pool's leases; fences earlier holders.
    pub epoch: u64,
    /// The pod's name.
    pub sandbox: String,
    pub image: String,
    #[serde(default)]
    pub node: String,
    /// Unix milliseconds.
    pub expires_at: i64,
}

/// One lease in the ledger. Renewals are not written: `expires_at` is that of the first grant. A restarted gateway
/// gives each lease with a living sandbox its full time again, so a holder that renews in time loses nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LedgerEntry {
    pub lease: String,
    pub run: String,
    pub sandbox: String,
    pub pod_uid: String,
    /// Restarts of the pod's container at the grant: a container after another restart is not this lease's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u32,
    pub image: String,
    pub epoch: u64,
    /// Unix milliseconds.
    pub expires_at: i64,
    /// The longest time that the lease or a renewal gave it.
    #[serde(default)]
    pub ttl_millis: i64,
    pub priority: Priority,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The number of warm sandboxes that a run needs from now on; replaces its earlier demand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Demand {
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 512)))]
    pub run: String,
    #[cfg_attr(feature = "schema", schemars(length(max = 4096)))]
    pub images: Vec<ImageDemand>,
}

/// The number of warm sandboxes of one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageDemand {
    pub image: String,
    pub count: u32,
}

/// The state of a pool.
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
    /// Groups of episodes for whose sandboxes a run may ask before their turn. Default: as many episodes as run at one
    /// time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_ahead: Option<u32>,
    /// URL of the package index that graders reach; absent if they reach none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_index: Option<String>,
}

/// Whether the gateway can reach the pool's package index now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PackageIndexState {
    /// The index's URL; absent if the pool names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Why the gateway cannot connect; absent if it can, and without an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<String>,
}

impl PoolState {
    /// Maximum number of sandboxes that agents hold at one time.
    pub fn agents(&self) -> u32 {
        self.max - reserved_for_graders(self.max)
    }
}

/// Sandboxes that agents leave for graders: a quarter of the pool. A pool of one serves agents and graders in turn.
pub fn reserved_for_graders(max: u32) -> u32 {
    if max > 1 { (max / 4).max(1) } else { 0 }
}
