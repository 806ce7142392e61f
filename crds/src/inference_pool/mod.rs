//! `InferencePool` (`grpo.dev`): replicas of an engine that serve one model, each behind its agent.
//!
//! What is particular to one engine is in [`engines`].

pub mod engines;
pub mod owned_flags;

use k8s_openapi::{
    api::core::v1::ResourceRequirements,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Condition},
};
use kube::{CustomResource, KubeSchema, core::Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use engines::{
    Device, EmbeddedEngine, Engine, ExternalApi, ExternalEngine, ExternalProbe, ExternalWeights, SglangEngine,
    VllmEngine,
};

use crate::attempts::AttemptStatus;
use crate::common::{EnvVariable, Period, PodOverlay};
use crate::sources::ModelSource;

/// Engines that serve one model and follow the weights of the run that has claimed them.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "grpo.dev",
    version = "v1alpha1",
    kind = "InferencePool",
    plural = "inferencepools",
    shortname = "gipool",
    category = "grpo",
    namespaced,
    status = "InferencePoolStatus",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas", label_selector_path = ".status.selector"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= 40").message("the name has at most 40 characters, begins with a letter and has no dots: the names of its services are made from it"),
    printcolumn = r#"{"name":"Engine","type":"string","jsonPath":".status.engine"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.ready","description":"replicas that serve some valid version, of those wanted"}"#,
    printcolumn = r#"{"name":"Updated","type":"string","jsonPath":".status.updated","description":"replicas that serve the newest ordered weights, of those wanted"}"#,
    printcolumn = r#"{"name":"Weights","type":"string","jsonPath":".status.weights"}"#,
    printcolumn = r#"{"name":"Claimed-By","type":"string","jsonPath":".status.claimedBy.name"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Model","type":"string","jsonPath":".status.model","priority":1}"#,
    printcolumn = r#"{"name":"URL","type":"string","jsonPath":".status.url","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.model == oldSelf.model").message("model is immutable: make another pool"),
    validation = external_runs_elsewhere(),
    validation = embedded_is_plain(),
    validation = sglang_with_adapters_is_one_copy(),
    validation = experts_are_reported()
)]
pub struct InferencePoolSpec {
    /// What is served as version `base`.
    pub model: ModelSource,
    /// The engine.
    pub engine: Engine,
    /// Replicas, one engine each: a pod, or as many as the engine's `nodes`. 0 frees every device and keeps the pool.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 1024))]
    pub replicas: u32,
    /// LoRA adapters the engines hold beside the model. A pool described in a run whose `model.lora` is set has it by
    /// itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraLimits>,
    /// The engines report which experts each token went through, for runs with `algorithm.routerReplay`; a pool
    /// described in such a run has it by itself. For mixtures of experts only: a dense model's engine does not start
    /// with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<bool>,
    /// How replicas are replaced when the spec changes, and how they end.
    #[serde(default)]
    pub update: UpdatePolicy,
    /// CPU and memory of each engine container, and of the init container that downloads the model before it. GPUs
    /// (`nvidia.com/gpu`) are added from the engine's parallelism. Default: what the scheduler gives; no memory limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// CPU and memory of each engine agent's container. A `weightsCache` with `medium: Memory` counts against its
    /// memory. Default: requests of 20m and 64Mi, with the size of such a cache; no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_resources: Option<ResourceRequirements>,
    /// Size of `/dev/shm` in each engine container, through which the processes of tensor-parallel ranks and NCCL talk.
    /// It counts against the container's memory. Default: 16Gi for vllm and sglang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<Quantity>,
    /// Where a model from the hub and what engines compile is kept, so that it is not downloaded twice. A run's driver
    /// and trainer share the volume claim or folder of the pool described in it. Default: a scratch volume of each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_cache: Option<ModelCache>,
    /// Where each replica keeps versions of the weights: the one that serves and the next. Default: a scratch volume
    /// without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_cache: Option<WeightsCache>,
    /// How long an engine of vllm or sglang may take from its start until it answers: reading the model, compiling.
    /// After that it is started again. Default: 1h. An embedded engine may take as long as it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_timeout: Option<Period>,
    /// The engines take turns with the trainer of the run that the pool was made for. The operator sets it in such a
    /// pool; other pools leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colocated: Option<Colocated>,
    /// Service accounts that may sample from the pool outside of a run, each with a token for the audience
    /// `engine-agent.grpo.dev`. They may call `/v1/models`, `/v1/chat/completions` and `/v1/completions`, and nothing
    /// else. A change replaces the replicas. None: only runs use the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub clients: Vec<PoolClient>,
    /// Added to the engines' environment; for an external engine, to its agent's. What the operator sets wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVariable>,
    /// Laid over the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodOverlay>,
}

/// A service account that may sample from a pool outside of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolClient {
    /// The ServiceAccount. A user who may create tokens for it may use the pool.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub service_account: String,
    /// Its namespace. Default: the pool's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
}

/// Engines that use the devices of a trainer's pods in turns with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Colocated {
    /// ResourceClaims with the devices, one for each pod of the trainer. Empty: they compute on CPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 253)))]
    pub claims: Vec<String>,
    /// Replicas that share a claim. Replica `i` has the request `engine-<i % replicasPerClaim>` of the claim `i /
    /// replicasPerClaim`.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 16))]
    pub replicas_per_claim: u32,
}

fn external_runs_elsewhere() -> Rule {
    Rule::new("!has(self.engine.external) || (!has(self.lora) && !has(self.modelCache) && !has(self.weightsCache) && !has(self.sharedMemory) && !has(self.resources) && !has(self.routedExperts))")
        .message("engine.external runs elsewhere: remove lora, modelCache, weightsCache, sharedMemory, resources and routedExperts, they have nothing to apply to")
}

fn embedded_is_plain() -> Rule {
    Rule::new("!has(self.engine.embedded) || (!has(self.lora) && !has(self.routedExperts))").message(
        "engine.embedded has neither adapters nor experts: remove lora and routedExperts, or choose vllm or sglang",
    )
}

/// SGLang 0.5.23 loads an adapter into one copy of the model only, and answers 500 if there are more.
fn sglang_with_adapters_is_one_copy() -> Rule {
    Rule::new("!has(self.lora) || !has(self.engine.sglang) || !has(self.engine.sglang.dataParallel) || self.engine.sglang.dataParallel == 1")
        .message("SGLang with dataParallel loads no adapters: leave engine.sglang.dataParallel out and raise replicas instead, or remove lora")
}

fn experts_are_reported() -> Rule {
    Rule::new(format!(
        "!has(self.routedExperts) || !self.routedExperts || !(has(self.engine.vllm) || has(self.engine.sglang)) || {}",
        engines::can_report_experts("self.engine")
    ))
    .message(format!("routedExperts: {}; or leave it out", engines::WHAT_EXPERTS_NEED).as_str())
}

/// A pool described in a GrpoRun: as an InferencePool, whose model is the run's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = external_runs_elsewhere(),
    validation = embedded_is_plain(),
    validation = sglang_with_adapters_is_one_copy(),
    validation = experts_are_reported()
)]
pub struct InferencePoolTemplate {
    /// The engine.
    pub engine: Engine,
    /// Replicas, one engine each: a pod, or as many as the engine's `nodes`.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 1024))]
    pub replicas: u32,
    /// LoRA adapters the engines hold beside the model. A pool described in a run whose `model.lora` is set has it by
    /// itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraLimits>,
    /// The engines report which experts each token went through, for runs with `algorithm.routerReplay`; a pool
    /// described in such a run has it by itself. For mixtures of experts only: a dense model's engine does not start
    /// with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<bool>,
    /// How replicas are replaced when the spec changes, and how they end.
    #[serde(default)]
    pub update: UpdatePolicy,
    /// CPU and memory of each engine container, and of the init container that downloads the model before it. GPUs
    /// (`nvidia.com/gpu`) are added from the engine's parallelism. Default: what the scheduler gives; no memory limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// CPU and memory of each engine agent's container. A `weightsCache` with `medium: Memory` counts against its
    /// memory. Default: requests of 20m and 64Mi, with the size of such a cache; no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_resources: Option<ResourceRequirements>,
    /// Size of `/dev/shm` in each engine container, through which the processes of tensor-parallel ranks and NCCL talk.
    /// It counts against the container's memory. Default: 16Gi for vllm and sglang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<Quantity>,
    /// Where a model from the hub and what engines compile is kept, so that it is not downloaded twice. A run's driver
    /// and trainer share the volume claim or folder of the pool described in it. Default: a scratch volume of each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_cache: Option<ModelCache>,
    /// Where each replica keeps versions of the weights: the one that serves and the next. Default: a scratch volume
    /// without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_cache: Option<WeightsCache>,
    /// How long an engine of vllm or sglang may take from its start until it answers: reading the model, compiling.
    /// After that it is started again. Default: 1h. An embedded engine may take as long as it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_timeout: Option<Period>,
    /// Added to the engines' environment; for an external engine, to its agent's. What the operator sets wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVariable>,
    /// Laid over the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodOverlay>,
}

impl InferencePoolSpec {
    /// The same pool with room for adapters of this rank, if its engine has adapters.
    pub fn with_room_for(mut self, rank: u32) -> Self {
        if self.engine.vllm.is_some() || self.engine.sglang.is_some() {
            let lora = self.lora.get_or_insert_with(|| LoraLimits::for_rank(rank));
            lora.max_rank = lora.max_rank.max(rank);
        }
        self
    }

    /// The same pool with engines that report experts, if its engine can be told to.
    pub fn reporting_experts(mut self) -> Self {
        if self.engine.vllm.is_some() || self.engine.sglang.is_some() {
            self.routed_experts = Some(true);
        }
        self
    }
}

impl InferencePoolTemplate {
    /// The pool of a run with this model.
    pub fn serving(&self, model: &ModelSource) -> InferencePoolSpec {
        InferencePoolSpec {
            model: model.clone(),
            engine: self.engine.clone(),
            replicas: self.replicas,
            lora: self.lora.clone(),
            routed_experts: self.routed_experts,
            update: self.update.clone(),
            resources: self.resources.clone(),
            agent_resources: self.agent_resources.clone(),
            shared_memory: self.shared_memory.clone(),
            model_cache: self.model_cache.clone(),
            weights_cache: self.weights_cache.clone(),
            startup_timeout: self.startup_timeout,
            colocated: None,
            clients: Vec::new(),
            env: self.env.clone(),
            pod_template: self.pod_template.clone(),
        }
    }
}

fn default_replicas() -> u32 {
    1
}

/// LoRA adapters the engines hold beside the model. Engines reserve memory for all of them when they start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoraLimits {
    /// Highest rank of an adapter. vLLM rounds it up to one of 1, 8, 16, 32, 64, 128, 256, 320 and 512.
    #[serde(default = "default_lora_rank")]
    #[schemars(range(min = 1, max = 512))]
    pub max_rank: u32,
    /// Adapters that can be sampled from at the same time: the one that serves and, while it is replaced, the next.
    #[serde(default = "default_lora_adapters")]
    #[schemars(range(min = 2, max = 64))]
    pub max_adapters: u32,
}

impl LoraLimits {
    /// For runs whose adapters have this rank.
    pub fn for_rank(rank: u32) -> Self {
        Self {
            max_rank: rank,
            max_adapters: default_lora_adapters(),
        }
    }
}

fn default_lora_rank() -> u32 {
    64
}

fn default_lora_adapters() -> u32 {
    2
}

/// How replicas are replaced when the spec changes, and how they end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.maxSurge > 0 || self.maxUnavailable > 0").message("maxSurge and maxUnavailable are both 0, so that no replica could ever be replaced: set one of them to 1 or more"))]
pub struct UpdatePolicy {
    /// Replicas above `replicas` while the spec's change goes through: they need devices of their own. 0: an old
    /// replica goes before its successor comes.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1024))]
    pub max_surge: u32,
    /// Replicas below `replicas` that may be missing while the spec's change goes through.
    #[serde(default = "default_max_unavailable")]
    #[schemars(range(min = 0, max = 1024))]
    pub max_unavailable: u32,
    /// How long a replica that is taken away may go on answering what it was asked before; new requests are refused
    /// meanwhile, and go to other replicas. Default: 10s for embedded, 2m for the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<Period>,
}

impl Default for UpdatePolicy {
    fn default() -> Self {
        Self {
            max_surge: 0,
            max_unavailable: default_max_unavailable(),
            drain_timeout: None,
        }
    }
}

fn default_max_unavailable() -> u32 {
    1
}

/// Where engines keep what they download and compile.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.claimName) ? 1 : 0) + (has(self.hostPath) ? 1 : 0) + (has(self.sizeLimit) ? 1 : 0) == 1").message("give exactly one of claimName, hostPath and sizeLimit"))]
pub struct ModelCache {
    /// A PersistentVolumeClaim of the namespace that all replicas write to: ReadWriteMany, unless they run on one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
    /// A folder of each node, shared by all pods there that name it. The namespace's Pod Security level must be
    /// `privileged`, and the folder writable for user 65532.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 512), regex(pattern = r"^/[A-Za-z0-9]"))]
    pub host_path: Option<String>,
    /// A scratch volume of each pod, not larger than this. The pod requests so much disk of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_limit: Option<Quantity>,
}

/// A scratch volume of each replica for versions of the weights.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WeightsCache {
    /// Largest size. The pod requests so much of its node. While the next version comes, two versions and their deltas
    /// are on it: `kubectl grpo plan` adds them up. The kubelet evicts a replica that has more on its disk; a full
    /// volume in memory delays the version, and the replica keeps serving.
    pub size_limit: Quantity,
    /// Memory: a file system in the node's memory, from which engines load faster than from most disks. The agent's
    /// container requests the memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<CacheMedium>,
}

/// What a scratch volume is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum CacheMedium {
    /// The node's disk.
    #[default]
    Disk,
    /// The node's memory.
    Memory,
}

/// How the pool is.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferencePoolStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted (the spec can be made true), Ready (all replicas serve), Updated (all serve the ordered weights) and,
    /// for an external engine, Probed (it answered as its api requires).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The message of the condition that matters most now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub message: Option<String>,
    /// Which engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub engine: Option<String>,
    /// Where the base model comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub model: Option<String>,
    /// Ready of wanted replicas, `3/4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub ready: Option<String>,
    /// Replicas that serve the newest ordered weights, of those wanted, `3/4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub updated: Option<String>,
    /// The version that the replicas serve; two with a comma between them while a new one is brought to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub weights: Option<String>,
    /// Where completions are taken inside the cluster. The name resolves to every replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub url: Option<String>,
    /// Where `clients` sample inside the cluster: each connection goes to a replica that serves. `/v1` is the base URL
    /// of OpenAI's clients. Left out: the pool has no clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub clients_url: Option<String>,
    /// Replicas that exist.
    #[serde(default)]
    pub replicas: u32,
    /// Replicas that serve.
    #[serde(default)]
    pub ready_replicas: u32,
    /// Replicas that serve the newest ordered weights.
    #[serde(default)]
    pub updated_replicas: u32,
    /// Attempts of its replicas: how often they failed since all of them were ready, and when the next are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<AttemptStatus>,
    /// Selects the pod of each replica that its agent is in, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub selector: Option<String>,
    /// The GrpoRun whose weights the pool follows, until that run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_by: Option<Claim>,
    /// The GrpoRun that ordered the weights it serves, also after that run's claim. Left out: it serves its own model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_of: Option<Claim>,
}

/// The GrpoRun whose weights a pool follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its uid: a later run of the same name is another one.
    #[schemars(length(max = 64))]
    pub uid: String,
}
