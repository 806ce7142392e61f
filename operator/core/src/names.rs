//! Names and labels of all objects that the operator creates. No other module builds them.

use std::collections::BTreeMap;

pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
pub const OPERATOR: &str = "grpo-operator";
/// Selects all objects created by the operator, or by a gateway on its behalf.
pub const MANAGED_SELECTOR: &str = "app.kubernetes.io/managed-by=grpo-operator";
pub const LEDGER_SELECTOR: &str = "grpo.dev/role=ledger";

pub use grpo_contracts::access::account;
pub use grpo_contracts::names::{
    ATTEMPT, GRADER, GROUP, INFERENCE_CLIENT, INFERENCE_POOL, LEASES_PER_SHARD, METRICS, RANK, ROLE, RUN,
    SANDBOX_CLIENT, SANDBOX_POOL, STORE, role, store_claim,
};

/// Annotation of a volume claim that outlives its run: uid of the run that keeps it and may take it back.
pub const RETAINED_BY: &str = "grpo.dev/retained-by";
/// Annotation of engine pods: the template that they were created from.
pub const TEMPLATE: &str = "grpo.dev/template";

/// The label of every namespace with its own name, which Kubernetes sets.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// The scheduling gate that keeps pods of a run from being scheduled before the run is admitted.
pub const GATE: &str = "grpo.dev/admission";
/// Annotation of gated pods: uid of the run they are admitted with.
pub const ADMITTED_WITH: &str = "grpo.dev/admitted-with";
/// Annotation of a pool made for a run that Kueue admitted: the number of its pods, and where they are placed.
pub const QUOTA: &str = "grpo.dev/quota";

/// Field manager for all writes except status.
pub const FIELD_MANAGER: &str = "grpo-operator";
/// Field manager of the operator's part of every status.
pub const STATUS_FIELD_MANAGER: &str = "grpo-operator-status";
/// Field manager of a run's claim on an InferencePool (`grpo.dev`).
pub const CLAIM_FIELD_MANAGER: &str = "grpo-operator-claim";

/// Identifies a pod within a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    /// The group; 0 if the role has only one.
    pub group: u32,
    /// The attempt, counted from 1. Pods of two attempts have different names.
    pub attempt: u32,
    /// The pod's index within the group.
    pub rank: u32,
}

pub type Labels = BTreeMap<String, String>;

/// Labels of an object, beginning with the label that names its creator.
pub fn labels<'a>(more: impl IntoIterator<Item = (&'a str, &'a str)>) -> Labels {
    std::iter::once((MANAGED_BY, OPERATOR))
        .chain(more)
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

pub fn config(run: &str) -> String {
    format!("{run}-config")
}

pub fn driver(run: &str) -> String {
    format!("{run}-driver")
}

pub fn trainer(run: &str) -> String {
    format!("{run}-trainer")
}

/// The headless service that gives the pods of one attempt stable hostnames.
pub fn trainer_hosts(run: &str, attempt: u32) -> String {
    format!("{run}-trainer-{attempt}")
}

/// A pod of a role with one group: `<run>-<role>-<attempt>-<rank>`.
pub fn group_pod(run: &str, role: &str, attempt: u32, rank: u32) -> String {
    format!("{run}-{role}-{attempt}-{rank}")
}

/// A pod of a role with several groups, here replicas of a pool: `<pool>-engine-<replica>-<attempt>-<rank>`.
pub fn engine_pod(pool: &str, key: PodKey) -> String {
    let role = format!("{}-{}", role::ENGINE, key.group);
    group_pod(pool, &role, key.attempt, key.rank)
}

/// The ResourceClaim with the GPUs that a trainer pod shares with engines.
pub fn gpu_claim(run: &str, node: u32) -> String {
    format!("{run}-gpus-{node}")
}

/// The request of such a claim with the GPUs of one replica.
pub fn gpu_request(replica: u32) -> String {
    format!("{}-{replica}", role::ENGINE)
}

pub fn engines(pool: &str) -> String {
    format!("{pool}-engines")
}

/// The service that divides the clients of an InferencePool among the replicas that serve.
pub fn clients(pool: &str) -> String {
    format!("{pool}-clients")
}

pub fn gateway(pool: &str) -> String {
    format!("{pool}-gateway")
}

pub fn gateway_key(pool: &str) -> String {
    format!("{pool}-gateway-key")
}

/// The shards of a pool's ledger: one for every [`LEASES_PER_SHARD`] of its maximum leases.
pub fn ledgers(pool: &str, max: u32) -> Vec<String> {
    let shards = max.div_ceil(LEASES_PER_SHARD as u32).max(1);
    (0..shards).map(|shard| format!("{pool}-ledger-{shard}")).collect()
}

pub fn sandbox_policy(pool: &str) -> String {
    format!("{pool}-sandboxes")
}

/// The policy that allows graders to reach the pool's package index.
pub fn grader_policy(pool: &str) -> String {
    format!("{pool}-graders")
}
