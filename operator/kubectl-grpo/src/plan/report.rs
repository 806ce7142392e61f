//! A plan as data, for `-o json` and the tables. Amounts are in bytes, and in thousandths of a CPU.

use serde::Serialize;
use std::collections::BTreeMap;

/// The whole plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub manifests: Vec<ManifestReport>,
    pub pods: Vec<PodRow>,
    pub sandboxes: Vec<SandboxRow>,
    /// GPUs that a trainer and engines share, each counted once.
    #[serde(skip_serializing_if = "is_zero")]
    pub shared_gpus: i64,
    pub memory: Vec<MemoryRow>,
    /// Only if nodes name their GPUs.
    pub speed: Vec<SpeedRow>,
    pub downloads: Vec<DownloadRow>,
    pub disk: Vec<DiskRow>,
    pub weights: Vec<WeightsRow>,
    /// Objects that must exist and are not in the manifests.
    pub needs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesReport>,
    /// Reasons why a run may wait, or end later.
    pub warnings: Vec<String>,
    /// Reasons why a run cannot run, each with the next step.
    pub problems: Vec<String>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// The judgement of the API server and the operator on a manifest.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestReport {
    pub kind: String,
    pub name: String,
    pub file: String,
    /// Refused by schema or CEL rules.
    pub refused: Vec<String>,
    /// Rules that could not be evaluated here.
    pub unchecked: Vec<String>,
    /// Fields that this version does not execute.
    pub not_executed: Vec<String>,
}

/// Pods of one role of one owner.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRow {
    pub of: String,
    pub role: String,
    pub count: u32,
    /// The requests of each pod.
    pub gpus: i64,
    /// GPUs that each pod shares with other pods.
    #[serde(skip_serializing_if = "is_zero")]
    pub shared_gpus: i64,
    pub cpu_millis: i64,
    pub memory_bytes: i64,
    /// Other requested devices and storage of each pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, i64>,
    /// The manifest fields behind them.
    pub from: String,
}

/// Sandboxes of a pool, which its gateway creates when they are leased.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxRow {
    pub of: String,
    pub at_most: u32,
    pub cpu_millis: i64,
    pub memory_bytes: i64,
    /// The limits of each sandbox, beyond its requests.
    pub limits: BTreeMap<String, String>,
    /// The number that fits beside all other pods of the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<u32>,
}

/// The memory of a rank, of a trainer's pod beside its GPUs, or of an engine's GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryRow {
    pub of: String,
    /// Such as `each of 8 trainer ranks`.
    pub each: String,
    /// `None` if the model's name contains no size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The available memory: of a GPU, if nodes report it, or the limit in `trainer.resources`, otherwise its request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_bytes: Option<u64>,
    pub parts: Vec<(String, u64)>,
    /// The assumption behind it, or the consequence.
    pub notes: Vec<String>,
}

/// A trainer GPU's speed, by arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpeedRow {
    pub of: String,
    pub gpu: String,
    /// GPUs with this speed.
    pub gpus: u32,
    /// Tokens of each row.
    pub row: u64,
    /// For each GPU.
    pub tokens_per_second: u64,
    /// Whether activations fit into memory; otherwise blocks are computed twice.
    pub kept: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DownloadRow {
    pub of: String,
    pub what: String,
    pub bytes: u64,
    pub times: u32,
    /// Pods of one node share a download.
    pub at_most: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskRow {
    pub of: String,
    /// Such as `claim runs`.
    pub place: String,
    /// The written bytes, as far as known.
    pub bytes: u64,
    pub parts: Vec<(String, u64)>,
    /// The requested size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_bytes: Option<u64>,
}

/// Network traffic of weights in each iteration.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightsRow {
    pub of: String,
    /// The size of one version.
    pub version_bytes: u64,
    /// Replicas that pull it.
    pub pulls: u32,
    /// Written once, and read by each replica.
    pub iteration_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodesReport {
    pub from: String,
    pub count: usize,
    /// Allocatable GPUs of nodes that take pods.
    pub gpus: i64,
    /// Whether the pods on the nodes are included.
    pub pods_known: bool,
    pub fits: Vec<FitRow>,
}

/// Whether the pods of a run, or of pools that no run owns, fit all at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FitRow {
    pub of: String,
    pub fits: bool,
    /// The pods of each node.
    pub places: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
