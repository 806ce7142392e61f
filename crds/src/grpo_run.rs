//! `GrpoRun`: one reinforcement learning run of a coding agent. The spec says what is particular to it, the status where it is.
//!
//! The status has two writers with separate fields: the operator owns everything but `progress`, the driver owns `progress`.

use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    agent::Agent,
    algorithm::Algorithm,
    common::{ClaimSource, EnvVariable, ImageSource, ModelSource, ObjectRef, Period, PodOverlay, ProcessOptions},
    inference_pool::InferencePoolTemplate,
    progress::Progress,
    sandbox_pool::SandboxPoolSpec,
};

/// One GRPO run: a policy, tasks, an agent, a reward, and the pools and trainer it needs.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "grpo.dev",
    version = "v1alpha1",
    kind = "GrpoRun",
    plural = "grporuns",
    shortname = "grun",
    category = "grpo",
    namespaced,
    status = "GrpoRunStatus",
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= 40").message("the name has at most 40 characters, begins with a letter and has no dots: the names of its services are made from it"),
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Stage","type":"string","jsonPath":".status.progress.stage"}"#,
    printcolumn = r#"{"name":"Iteration","type":"string","jsonPath":".status.progress.display.iteration"}"#,
    printcolumn = r#"{"name":"Episodes","type":"string","jsonPath":".status.progress.display.episodes"}"#,
    printcolumn = r#"{"name":"Resolved","type":"string","jsonPath":".status.progress.display.resolved","description":"share of resolved episodes in the last finished iteration"}"#,
    printcolumn = r#"{"name":"Reward","type":"string","jsonPath":".status.progress.display.reward"}"#,
    printcolumn = r#"{"name":"Weights","type":"string","jsonPath":".status.progress.weights"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Loss","type":"string","jsonPath":".status.progress.display.loss","priority":1}"#,
    printcolumn = r#"{"name":"Void","type":"integer","jsonPath":".status.progress.void","priority":1}"#,
    printcolumn = r#"{"name":"Staleness","type":"integer","jsonPath":".status.progress.staleness","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.mode != 'Train' || (has(self.trainer) && has(self.tasks.train))").message("mode Train needs trainer and tasks.train"),
    validation = Rule::new("self.mode != 'Evaluate' || (has(self.tasks.evaluate) && self.tasks.evaluate.size() > 0)").message("mode Evaluate needs at least one set in tasks.evaluate"),
    validation = Rule::new("self.mode != 'Train' || (self.rollout.sampling.topP == 1.0 && self.rollout.sampling.topK == 0)").message("mode Train samples from the whole distribution: the trainer could not reproduce one cut by topP or topK"),
    validation = Rule::new("self.mode == oldSelf.mode && self.seed == oldSelf.seed").message("mode and seed are immutable: make another run"),
    validation = Rule::new("self.model == oldSelf.model").message("model is immutable: make another run"),
    validation = Rule::new("self.agent == oldSelf.agent").message("agent is immutable: make another run"),
    validation = Rule::new("self.reward == oldSelf.reward").message("reward is immutable: make another run"),
    validation = Rule::new("self.algorithm == oldSelf.algorithm").message("algorithm is immutable: make another run"),
    validation = Rule::new("has(self.trainer) == has(oldSelf.trainer) && (!has(self.trainer) || (self.trainer.nodes == oldSelf.trainer.nodes && self.trainer.gpusPerNode == oldSelf.trainer.gpusPerNode))").message("the trainer's size is immutable: make another run"),
    validation = Rule::new("self.rollout.prompts == oldSelf.rollout.prompts && self.rollout.samples == oldSelf.rollout.samples && self.rollout.maxStaleness == oldSelf.rollout.maxStaleness").message("of rollout, prompts, samples and maxStaleness are immutable: make another run")
)]
pub struct GrpoRunSpec {
    /// Train: rollouts, steps, and the evaluations in between. Evaluate: only the sets in `tasks.evaluate`, no trainer.
    #[serde(default)]
    pub mode: Mode,
    /// Seeds everything random in the run. The same seed, spec and images give the same samples.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9007199254740991i64))]
    pub seed: u64,
    /// The policy before the first step.
    pub model: ModelSource,
    /// What the agent works on.
    pub tasks: Tasks,
    /// Who works on it.
    pub agent: Agent,
    /// How many episodes, and how they are sampled.
    #[serde(default)]
    pub rollout: Rollout,
    /// What an episode is worth.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self.resolved > self.unresolved").message("resolved is worth more than unresolved"))]
    pub reward: Reward,
    /// The objective and the optimizer.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// Pods that train. Needed by mode Train.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<Trainer>,
    /// When the state of the training is kept.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Engines that sample.
    pub inference: InferenceSource,
    /// Sandboxes that the agent and the graders work in.
    pub sandboxes: SandboxSource,
    /// Where everything that is finished is kept.
    pub store: Store,
    /// What a run finds in its store when it starts. Auto: goes on after the last finished thing. Never: refuses a store that is not empty.
    #[serde(default)]
    pub resume: Resume,
    /// When faults end the run.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// How the driver is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<ProcessOptions>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    #[default]
    Train,
    Evaluate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Resume {
    #[default]
    Auto,
    Never,
}

/// What the agent works on.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tasks {
    /// Tasks that are trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<TaskSet>,
    /// Named fixed sets that are only measured. A set is never evaluated twice for one version of the weights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub evaluate: Vec<EvaluationSet>,
}

/// Tasks that are trained on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskSet {
    /// Rows, one task each.
    pub dataset: Dataset,
    /// Which of the rows.
    #[serde(default)]
    pub select: Select,
    /// Shuffled: another order in every pass, drawn from `seed`. InOrder: as in the file.
    #[serde(default)]
    pub order: Order,
    /// Seed of the order. Default: the run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991i64))]
    pub seed: Option<u64>,
}

/// A named fixed set that is only measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvaluationSet {
    /// Its name, in status, store and metrics.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Rows, one task each.
    pub dataset: Dataset,
    /// Which of the rows.
    #[serde(default)]
    pub select: Select,
    /// Episodes per task.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 256))]
    pub samples: u32,
    /// Seed of the sampling. Default: the run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991i64))]
    pub seed: Option<u64>,
    /// After every so many iterations. Left out: only at start and end, as said below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub every: Option<u32>,
    /// Before the first iteration, under the base weights.
    #[serde(default)]
    pub at_start: bool,
    /// After the last iteration.
    #[serde(default = "yes")]
    pub at_end: bool,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Order {
    #[default]
    Shuffled,
    InOrder,
}

/// A file of task rows (JSON lines): exactly one of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.image) != has(self.persistentVolumeClaim)").message("give exactly one of image and persistentVolumeClaim"),
    validation = Rule::new("(!has(self.image) || has(self.image.path)) && (!has(self.persistentVolumeClaim) || has(self.persistentVolumeClaim.path))").message("path names the file with the rows")
)]
pub struct Dataset {
    /// The file lies in an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// The file lies on a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimSource>,
}

/// Which rows of a dataset. Everything given must hold; the limit is applied last.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Select {
    /// Only these instances.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 200)))]
    pub instance_ids: Vec<String>,
    /// Only instances of this repository, for example `django/django`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub repo: Option<String>,
    /// At most so many, the first of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000000))]
    pub limit: Option<u32>,
}

/// How many episodes, and how they are sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// Iterations of the run: rollout, step, sync.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000000))]
    pub iterations: u32,
    /// Tasks of one iteration.
    #[serde(default = "default_prompts")]
    #[schemars(range(min = 1, max = 4096))]
    pub prompts: u32,
    /// Episodes per task: one group, whose mean reward is the baseline.
    #[serde(default = "default_samples")]
    #[schemars(range(min = 2, max = 256))]
    pub samples: u32,
    /// Episodes at the same time. Default: as many as the sandbox pool has room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub concurrency: Option<u32>,
    /// Steps that the sampling weights may lag behind the trained ones. 0: strictly on-policy. 1: the next rollout overlaps the step.
    #[serde(default)]
    #[schemars(range(min = 0, max = 8))]
    pub max_staleness: u32,
    /// How tokens are drawn.
    #[serde(default)]
    pub sampling: Sampling,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            iterations: one(),
            prompts: default_prompts(),
            samples: default_samples(),
            concurrency: None,
            max_staleness: 0,
            sampling: Sampling::default(),
        }
    }
}

fn default_prompts() -> u32 {
    8
}

fn default_samples() -> u32 {
    8
}

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sampling {
    /// Temperature; 0 takes the likeliest token.
    #[serde(default = "default_temperature")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub temperature: f64,
    /// Tokens of one answer at most; less when the context has less left.
    #[serde(default = "default_max_tokens_per_call")]
    #[schemars(range(min = 1, max = 1000000))]
    pub max_tokens_per_call: u32,
    /// Nucleus; 1 is off.
    #[serde(default = "default_top_p")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_p: f64,
    /// Number of likeliest tokens; 0 is off.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000000))]
    pub top_k: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: default_temperature(),
            max_tokens_per_call: default_max_tokens_per_call(),
            top_p: default_top_p(),
            top_k: 0,
        }
    }
}

fn default_temperature() -> f64 {
    1.0
}

fn default_max_tokens_per_call() -> u32 {
    4096
}

fn default_top_p() -> f64 {
    1.0
}

/// What an episode is worth. A fault of the infrastructure is never a reward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reward {
    /// The patch makes the tests pass that should, and breaks none.
    #[serde(default = "default_resolved")]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub resolved: f64,
    /// Anything else the policy brought about.
    #[serde(default)]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub unresolved: f64,
    /// Time of one grading.
    #[serde(default = "default_grade_timeout")]
    pub grade_timeout: Period,
}

impl Default for Reward {
    fn default() -> Self {
        Self {
            resolved: default_resolved(),
            unresolved: 0.0,
            grade_timeout: default_grade_timeout(),
        }
    }
}

fn default_resolved() -> f64 {
    1.0
}

fn default_grade_timeout() -> Period {
    Period::from_minutes(15)
}

/// Pods that train, as one group: `nodes` pods, one rank per GPU (one rank on the CPU where there are none).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trainer {
    /// Pods; parameters, gradients and optimizer state are sharded over all their ranks.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 256))]
    pub nodes: u32,
    /// GPUs of each pod (`nvidia.com/gpu`). 0 trains on the CPU.
    #[serde(default)]
    #[schemars(range(min = 0, max = 16))]
    pub gpus_per_node: u32,
    /// CPU and memory of each pod; GPUs are added from `gpusPerNode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Added to the environment, for example NCCL's settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVariable>,
    /// Laid over the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodOverlay>,
}

/// When the state of the training is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// After every so many steps. What lies between is replayed from the stored batches.
    #[serde(default = "default_checkpoint_every")]
    #[schemars(range(min = 1, max = 1000000))]
    pub every: u32,
    /// So many are kept, the newest.
    #[serde(default = "default_checkpoint_keep")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: u32,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            every: default_checkpoint_every(),
            keep: default_checkpoint_keep(),
        }
    }
}

fn default_checkpoint_every() -> u32 {
    10
}

fn default_checkpoint_keep() -> u32 {
    2
}

/// Engines that sample: a pool described in place and owned by the run, or one that exists.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.pool) != has(self.poolRef)").message("give exactly one of pool and poolRef"),
    validation = Rule::new("has(self.poolRef) == has(oldSelf.poolRef) && (!has(self.poolRef) || self.poolRef.name == oldSelf.poolRef.name)").message("the pool is immutable: make another run")
)]
pub struct InferenceSource {
    /// A pool of the run's own, which serves the run's model and is deleted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<InferencePoolTemplate>,
    /// An InferencePool (`grpo.dev`) of the same namespace. The run claims it: it serves this run's weights until the run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_ref: Option<ObjectRef>,
}

/// Sandboxes that the agent and the graders work in: a pool described in place and owned by the run, or one that exists.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.pool) != has(self.poolRef)").message("give exactly one of pool and poolRef"),
    validation = Rule::new("has(self.poolRef) == has(oldSelf.poolRef) && (!has(self.poolRef) || self.poolRef.name == oldSelf.poolRef.name)").message("the pool is immutable: make another run")
)]
pub struct SandboxSource {
    /// A pool of the run's own, deleted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<SandboxPoolSpec>,
    /// A SandboxPool (`grpo.dev`) of the same namespace, which several runs may share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_ref: Option<ObjectRef>,
}

/// Where everything that is finished is kept: exactly one volume, and a path on it.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.volumeClaimTemplate) != has(self.persistentVolumeClaim)").message("give exactly one of volumeClaimTemplate and persistentVolumeClaim"),
    validation = Rule::new("has(self.persistentVolumeClaim) == has(oldSelf.persistentVolumeClaim) && (!has(self.persistentVolumeClaim) || self.persistentVolumeClaim.claimName == oldSelf.persistentVolumeClaim.claimName)").message("the volume is immutable: make another run"),
    validation = Rule::new("has(self.path) == has(oldSelf.path) && (!has(self.path) || self.path == oldSelf.path)").message("path is immutable: make another run")
)]
pub struct Store {
    /// A volume of the run's own, deleted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_template: Option<VolumeClaimTemplate>,
    /// A volume that exists and is never deleted by the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ExistingClaim>,
    /// Folder on the volume. Default: `<namespace>/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$"))]
    pub path: Option<String>,
}

/// An existing PersistentVolumeClaim of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExistingClaim {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
}

/// A PersistentVolumeClaim to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaimTemplate {
    /// StorageClass. Default: the cluster's default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
    /// How the volume is mounted. ReadWriteOnce puts all pods of the run on one node.
    #[serde(default = "default_access_modes")]
    #[schemars(length(min = 1, max = 4))]
    pub access_modes: Vec<AccessMode>,
    /// `requests.storage` says how much.
    pub resources: ClaimResources,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    ReadWriteOnce,
    ReadWriteMany,
}

fn default_access_modes() -> Vec<AccessMode> {
    vec![AccessMode::ReadWriteOnce]
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimResources {
    pub requests: ClaimRequests,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRequests {
    /// For example `20Gi`.
    #[schemars(length(min = 1, max = 32))]
    pub storage: String,
}

/// When faults end the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// The driver's or the trainer's pods may fail so many times in a row; what is finished in between resets the count.
    #[serde(default = "default_max_failures")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_consecutive_failures: u32,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            max_consecutive_failures: default_max_failures(),
        }
    }
}

fn default_max_failures() -> u32 {
    6
}

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
    /// Provisioned, Succeeded, Failed.
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

/// Coarse summary of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Seen, nothing made yet.
    Pending,
    /// Its objects are made; pods are scheduled, pull images, start.
    Provisioning,
    /// Everything runs.
    Running,
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

/// Attempts of one pod group.
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
    /// What had been finished when an attempt last failed. When it has changed at the next failure, the count begins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub progress_mark: Option<String>,
    /// The next attempt begins then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
    /// How the last failed attempt ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub last_failure: Option<String>,
}
