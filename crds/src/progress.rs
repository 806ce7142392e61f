//! `status.progress`: what a running run is doing. The driver is its only writer, by server-side apply under
//! the field manager `grpo-driver`, every write naming the run's uid; the operator only reads it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the run is doing now, and how it went so far. Numbers without another word are those of the last finished
/// iteration.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Uid of the run whose driver wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub run_uid: Option<String>,
    /// The foremost of `stages`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// All stages that are active at the same time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub stages: Vec<Stage>,
    /// The iteration that runs, counted from 1; 0 before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<u32>,
    /// How many there will be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u32>,
    /// Episodes of the current iteration or evaluation that have a verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episodes_done: Option<u32>,
    /// Episodes of the current iteration or evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episodes_total: Option<u32>,
    /// Share of resolved episodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_rate: Option<f64>,
    /// Mean reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Loss of the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Version that samples, `base` or `<lineage>-v<step>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub weights: Option<String>,
    /// Episodes lost to faults of the infrastructure, over the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<u32>,
    /// Largest staleness of a token that was trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness: Option<u32>,
    /// Largest distance between a token's logprob at the engine and at the trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob_gap_max: Option<f64>,
    /// Finished evaluations, the newest of each set last. Of more than 64, the first of each set and the newest are
    /// kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub evaluations: Vec<Evaluation>,
    /// What the run downloads: commits of the hub's repositories, and objects of buckets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub revisions: Vec<PinnedRevision>,
    /// A fault that ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// What is worth knowing now, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// When this was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Time>,
    /// The same numbers, as the columns of `kubectl get` show them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<Display>,
}

impl Progress {
    /// Fills in what `kubectl get` shows, from the numbers. To be called last before every write.
    #[must_use]
    pub fn displayed(mut self) -> Self {
        let of = |done: Option<u32>, total: Option<u32>| match (done, total) {
            (Some(done), Some(total)) => Some(format!("{done}/{total}")),
            (Some(done), None) => Some(done.to_string()),
            (None, _) => None,
        };
        let rounded = |value: Option<f64>, digits: usize| value.map(|value| format!("{value:.digits$}"));
        self.display = Some(Display {
            iteration: of(self.iteration, self.iterations),
            episodes: of(self.episodes_done, self.episodes_total),
            resolved: rounded(self.resolved_rate, 2),
            reward: rounded(self.reward, 3),
            loss: rounded(self.loss, 4),
        });
        self
    }
}

/// What a run can be busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Stage {
    Starting,
    Rollout,
    Grading,
    Training,
    Syncing,
    Evaluating,
    Finished,
}

/// The bytes that a run takes of a model or dataset: a commit of a repository of the hub, or objects of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedRevision {
    /// Owner and name of a repository, or the URL of a folder or file of an object store.
    #[schemars(length(max = 1024))]
    pub repo: String,
    /// Of a repository the commit, 40 hexadecimal digits. Of an object store the sha256 of the listing: paths, sizes
    /// and ETags.
    #[schemars(length(max = 64))]
    pub commit: String,
}

/// One finished evaluation: a set, under one version of the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evaluation {
    /// Name in `tasks.evaluate`.
    #[schemars(length(max = 63))]
    pub set: String,
    /// Version of the weights.
    #[schemars(length(max = 64))]
    pub weights: String,
    /// Share of resolved episodes.
    pub resolved_rate: f64,
    /// Episodes with a verdict.
    pub episodes: u32,
}

/// A fault that ends a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// One word in CamelCase.
    #[schemars(length(max = 128))]
    pub reason: String,
    /// What happened and what to do, in words.
    #[schemars(length(max = 4096))]
    pub message: String,
}

/// Texts for the columns of `kubectl get`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Display {
    /// `3/10`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub iteration: Option<String>,
    /// `41/64`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub episodes: Option<String>,
    /// `0.62`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub resolved: Option<String>,
    /// `0.250`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub reward: Option<String>,
    /// `-0.0132`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub loss: Option<String>,
}
