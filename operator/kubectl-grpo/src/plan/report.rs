//! A plan as data: what `-o json` prints, and what the tables are made of. Amounts are bytes, and thousandths of a CPU.

use serde::Serialize;
use std::collections::BTreeMap;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub manifests: Vec<ManifestReport>,
    pub pods: Vec<PodRow>,
    pub sandboxes: Vec<SandboxRow>,
    pub memory: Vec<MemoryRow>,
    /// Where nodes name their GPUs.
    pub speed: Vec<SpeedRow>,
    pub downloads: Vec<DownloadRow>,
    pub disk: Vec<DiskRow>,
    pub weights: Vec<WeightsRow>,
    /// Objects that have to exist, and are not in the manifests.
    pub needs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesReport>,
    /// What lets a run wait, or may end it later.
    pub warnings: Vec<String>,
    /// What keeps a run from running, each with the next step.
    pub problems: Vec<String>,
}

/// What the API server and the operator say of a manifest.
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
    /// Requests of each.
    pub gpus: i64,
    pub cpu_millis: i64,
    pub memory_bytes: i64,
    /// Other devices and storage that each requests.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, i64>,
    /// The fields that say so.
    pub from: String,
}

/// Sandboxes of a pool, which its gateway makes as they are leased.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxRow {
    pub of: String,
    pub at_most: u32,
    pub cpu_millis: i64,
    pub memory_bytes: i64,
    /// Of each: what it may use besides what it requests.
    pub limits: BTreeMap<String, String>,
    /// How many fit beside all other pods of the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<u32>,
}

/// The memory of a rank or of an engine's GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryRow {
    pub of: String,
    /// Such as `each of 8 trainer ranks`.
    pub each: String,
    /// None where the name of the model says no size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// What it has, where nodes say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_bytes: Option<u64>,
    pub parts: Vec<(String, u64)>,
    /// The assumption behind it, or what follows.
    pub notes: Vec<String>,
}

/// How fast a trainer's GPU computes, by arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpeedRow {
    pub of: String,
    pub gpu: String,
    /// GPUs that compute so.
    pub gpus: u32,
    /// Tokens of each row.
    pub row: u64,
    /// Of each GPU.
    pub tokens_per_second: u64,
    /// Whether activations fit into its memory; else blocks are computed twice.
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
    /// What is written, as far as it is known.
    pub bytes: u64,
    pub parts: Vec<(String, u64)>,
    /// What the manifest asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_bytes: Option<u64>,
}

/// Weights on the network, each iteration.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightsRow {
    pub of: String,
    /// One version.
    pub version_bytes: u64,
    /// Replicas that pull it.
    pub pulls: u32,
    /// Written once and read by each of them.
    pub iteration_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodesReport {
    pub from: String,
    pub count: usize,
    /// Allocatable GPUs of nodes that take pods.
    pub gpus: i64,
    /// Pods that are on the nodes already are counted.
    pub pods_known: bool,
    pub fits: Vec<FitRow>,
}

/// Whether the pods of a run, or of pools that no run owns, fit all at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FitRow {
    pub of: String,
    pub fits: bool,
    /// By node, its pods.
    pub places: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
