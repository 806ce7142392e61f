//! The engines a pool can have.
//!
//! A field is here when it changes what the operator makes (devices, pods, volumes) or when most pools set it.
//! Everything else goes through `extraArgs`, except the flags that the operator sets itself ([`super::owned_flags`]).

use kube::{KubeSchema, core::Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::owned_flags::{OWNED_SGLANG_FLAGS, OWNED_VLLM_FLAGS, VLLM_SHORT_FLAGS, no_owned_flag};
use crate::{
    cel,
    common::{Period, SecretKeyRef},
};

/// What vLLM and SGLang need to report experts: stages of a pipeline do not tell each other theirs, and vLLM keeps them
/// beside the blocks of its prefix cache.
pub(crate) const WHAT_EXPERTS_NEED: &str =
    "experts are reported by vllm and sglang, with pipelineParallel: 1, and by vllm with enablePrefixCaching";

/// Whether the engine at `engine` can be told to report experts, in CEL.
pub(crate) fn can_report_experts(engine: &str) -> String {
    format!(
        "(has({engine}.vllm) && {engine}.vllm.pipelineParallel == 1 && {engine}.vllm.enablePrefixCaching || has({engine}.sglang) && {engine}.sglang.pipelineParallel == 1)"
    )
}

/// Every pod of a replica has the same number of GPUs.
fn nodes_divide() -> Rule {
    cel::rule(
        "(self.tensorParallel * self.pipelineParallel) % self.nodes == 0",
        "nodes does not divide tensorParallel x pipelineParallel: {self.nodes} pods cannot share \
         {self.tensorParallel * self.pipelineParallel} GPUs evenly; change one of the three",
    )
}

/// The engine of a pool: exactly one of the fields.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.embedded) ? 1 : 0) + (has(self.vllm) ? 1 : 0) + (has(self.sglang) ? 1 : 0) + (has(self.external) ? 1 : 0) == 1").message("give the engine: exactly one of embedded, vllm, sglang and external"),
    validation = Rule::new("!has(self.external) || self.external.api != 'Chat' || self.external.weights == 'Frozen'").message("external.api is Chat, and a server that returns only text takes no new weights: set external.weights: Frozen, or api: Tokens"),
    validation = Rule::new("has(self.embedded) == has(oldSelf.embedded) && has(self.vllm) == has(oldSelf.vllm) && has(self.sglang) == has(oldSelf.sglang) && has(self.external) == has(oldSelf.external) && (!has(self.external) || self.external.api == oldSelf.external.api)").message("the kind of engine is immutable, and so is external.api: make another pool")
)]
pub struct Engine {
    /// The operator's own engine: small models, CPU, the same model code as the trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedded: Option<EmbeddedEngine>,
    /// vLLM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vllm: Option<VllmEngine>,
    /// SGLang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sglang: Option<SglangEngine>,
    /// A server outside of the pool. The pool has no engines then, only engine agents, which pass requests on to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalEngine>,
}

impl Engine {
    /// Its name in `kubectl get`.
    pub fn name(&self) -> &'static str {
        match self {
            Self { embedded: Some(_), .. } => "embedded",
            Self { vllm: Some(_), .. } => "vllm",
            Self { sglang: Some(_), .. } => "sglang",
            Self { external: Some(_), .. } => "external",
            _ => "none",
        }
    }

    /// Pods of one replica.
    pub fn nodes(&self) -> u32 {
        match self {
            Self { vllm: Some(vllm), .. } => vllm.nodes,
            Self {
                sglang: Some(sglang), ..
            } => sglang.nodes,
            _ => 1,
        }
    }

    /// GPUs of each pod of a replica.
    pub fn gpus_per_node(&self) -> u32 {
        let per_node = |ranks: u32, nodes: u32| ranks.div_ceil(nodes.max(1));
        match self {
            Self { vllm: Some(vllm), .. } if vllm.device == Device::Gpu => per_node(vllm.ranks(), vllm.nodes),
            Self {
                sglang: Some(sglang), ..
            } => per_node(sglang.ranks(), sglang.nodes),
            _ => 0,
        }
    }
}

/// The embedded engine has no settings yet: it takes the context length from the model's `config.json`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmbeddedEngine {}

/// vLLM. A replica has tensorParallel x pipelineParallel x dataParallel GPUs, spread evenly over `nodes` pods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = nodes_divide(),
    validation = Rule::new("!has(self.dataParallel) || self.dataParallel == 1 || self.nodes == 1").message("dataParallel needs nodes: 1; for more of them raise replicas instead"),
    validation = Rule::new("self.device == 'Gpu' || self.nodes == 1").message("device Cpu needs nodes: 1"),
    validation = Rule::new("!(has(self.image) && has(self.version))").message("give image or version, not both: version is a tag of vLLM's own image")
)]
pub struct VllmEngine {
    /// GPUs that share each layer. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub tensor_parallel: u32,
    /// Stages that the layers are divided into, usually one for each node. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub pipeline_parallel: u32,
    /// Copies of the model inside one replica, behind one server. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub data_parallel: Option<u32>,
    /// Pods of a replica. Default: 1. They start, fail and end together. More than one serve the model they booted
    /// with. Refused: more than 1 in mode Train; use 1: new weights reach the disk of a replica's first pod only.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub nodes: u32,
    /// Longest prompt and answer together, in tokens. Default: what the model's `config.json` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16, max = 10000000))]
    pub max_model_len: Option<u32>,
    /// Share of each GPU's memory that vLLM takes for weights and cache. Default: 0.9.
    #[serde(default = "default_gpu_memory_utilization")]
    #[schemars(range(min = 0.05, max = 0.99))]
    pub gpu_memory_utilization: f64,
    /// Sequences that are sampled at the same time. Default: vLLM's own, which depends on the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_num_seqs: Option<u32>,
    /// Keep the cache of prompts' beginnings: the turns of an episode share theirs. Default: true.
    #[serde(default = "yes")]
    pub enable_prefix_caching: bool,
    /// A quantization of vLLM's, such as `fp8`. The trainer's policy is not quantized: expect a larger distance between
    /// its logprobs and the engine's. Default: what the model's `config.json` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z0-9][a-z0-9_-]*$"))]
    pub quantization: Option<String>,
    /// What the engine computes on. Cpu needs an `image` with a CPU build, and asks for no GPUs.
    #[serde(default)]
    pub device: Device,
    /// More flags of `vllm serve`, each as one or two items. Those that the operator sets itself are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 512)))]
    #[x_kube(validation = no_owned_flag(OWNED_VLLM_FLAGS, VLLM_SHORT_FLAGS, "vllm"))]
    pub extra_args: Vec<String>,
    /// Image with the `vllm` command, of version 0.33 or near it. Default: vLLM's own of `version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Version of vLLM. Default: 0.33.0, which the command line is made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+[-a-z0-9.]*$"))]
    pub version: Option<String>,
}

impl Default for VllmEngine {
    fn default() -> Self {
        Self {
            tensor_parallel: 1,
            pipeline_parallel: 1,
            data_parallel: None,
            nodes: 1,
            max_model_len: None,
            gpu_memory_utilization: default_gpu_memory_utilization(),
            max_num_seqs: None,
            enable_prefix_caching: true,
            quantization: None,
            device: Device::Gpu,
            extra_args: Vec::new(),
            image: None,
            version: None,
        }
    }
}

impl VllmEngine {
    /// Processes of a replica that compute, one on each GPU.
    pub fn ranks(&self) -> u32 {
        self.tensor_parallel * self.pipeline_parallel * self.data_parallel.unwrap_or(1)
    }
}

/// What an engine computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Device {
    #[default]
    Gpu,
    Cpu,
}

/// SGLang. A replica has tensorParallel x pipelineParallel x dataParallel GPUs, spread evenly over `nodes` pods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = nodes_divide(),
    validation = Rule::new("!has(self.dataParallel) || self.dataParallel == 1 || self.nodes == 1").message("dataParallel needs nodes: 1; for more of them raise replicas instead"),
    validation = Rule::new("!(has(self.image) && has(self.version))").message("give image or version, not both: version is a tag of SGLang's own image")
)]
pub struct SglangEngine {
    /// GPUs that share each layer. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub tensor_parallel: u32,
    /// Stages that the layers are divided into. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub pipeline_parallel: u32,
    /// Copies of the model inside one replica, behind one server. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub data_parallel: Option<u32>,
    /// Pods of a replica. Default: 1. They start, fail and end together. More than one serve the model they booted
    /// with. Refused: more than 1 in mode Train; use 1: new weights reach the disk of a replica's first pod only.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub nodes: u32,
    /// Longest prompt and answer together, in tokens. Default: what the model's `config.json` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16, max = 10000000))]
    pub context_length: Option<u32>,
    /// Share of each GPU's memory for weights and cache (`--mem-fraction-static`). Default: SGLang's own, from the size
    /// of the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.05, max = 0.99))]
    pub memory_fraction: Option<f64>,
    /// Sequences that are sampled at the same time. Default: as many as the cache holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_running_requests: Option<u32>,
    /// Keep the cache of prompts' beginnings: the turns of an episode share theirs. Default: true.
    #[serde(default = "yes")]
    pub enable_prefix_caching: bool,
    /// A quantization of SGLang's, such as `fp8`. The trainer's policy is not quantized: expect a larger distance
    /// between its logprobs and the engine's. Default: what the model's `config.json` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z0-9][a-z0-9_-]*$"))]
    pub quantization: Option<String>,
    /// More flags of `sglang.launch_server`, each as one or two items. Those that the operator sets itself are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 512)))]
    #[x_kube(validation = no_owned_flag(OWNED_SGLANG_FLAGS, &["tp", "pp", "dp"], "sglang"))]
    pub extra_args: Vec<String>,
    /// Image with `python3 -m sglang.launch_server`, of version 0.5.23 or near it. Default: SGLang's own of `version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Version of SGLang. Default: 0.5.23, which the command line is made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+[-a-z0-9.]*$"))]
    pub version: Option<String>,
}

impl Default for SglangEngine {
    fn default() -> Self {
        Self {
            tensor_parallel: 1,
            pipeline_parallel: 1,
            data_parallel: None,
            nodes: 1,
            context_length: None,
            memory_fraction: None,
            max_running_requests: None,
            enable_prefix_caching: true,
            quantization: None,
            extra_args: Vec::new(),
            image: None,
            version: None,
        }
    }
}

impl SglangEngine {
    /// Processes of a replica that compute, one on each GPU.
    pub fn ranks(&self) -> u32 {
        self.tensor_parallel * self.pipeline_parallel * self.data_parallel.unwrap_or(1)
    }
}

/// A server outside of the pool. The agent asks it for one answer before the pool is Ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalEngine {
    /// Its base URL with the `/v1` at the end, such as `https://example.com/v1`.
    #[schemars(
        length(min = 10, max = 1024),
        regex(pattern = r"^https?://[^/?#\s@]+(/[^?#\s]*)?/v1/?$")
    )]
    pub url: String,
    /// The name of the model in its requests. Default: the first of those the server lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub model: Option<String>,
    /// What is sent as `Authorization: Bearer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_secret_ref: Option<SecretKeyRef>,
    /// How it is asked.
    #[serde(default)]
    pub api: ExternalApi,
    /// Whether it can be given new weights.
    #[serde(default)]
    pub weights: ExternalWeights,
    /// How it is found out that the server is fit for the runs of the pool.
    #[serde(default)]
    pub probe: ExternalProbe,
}

/// How an external server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum ExternalApi {
    /// OpenAI's completions with vLLM's extensions: prompts as token ids, answers as token ids with logprobs.
    #[default]
    Tokens,
    /// OpenAI's chat completions: messages and tools, answers as text. For mode Evaluate only: without token ids and
    /// logprobs its episodes cannot be trained on. They are marked, and `kubectl grpo export --format messages` writes
    /// them for mode Finetune.
    Chat,
}

/// Whether an external server can be given new weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum ExternalWeights {
    /// It always serves what it serves now, as version `base`. A run that trains must allow a frozen sampler by name.
    #[default]
    Frozen,
    /// At the URL is an engine agent of this operator's, perhaps of another cluster. It is given the orders, and must
    /// reach the driver.
    Agent,
}

/// How it is found out that an external server is fit for the runs of the pool: one completion of token ids, or with
/// api Chat one answer in text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalProbe {
    /// Token ids of the prompt that is asked. Default: ids 1 to 8, which every vocabulary has. Without effect with api
    /// Chat.
    #[serde(default = "default_probe_tokens")]
    #[schemars(length(min = 1, max = 256), inner(range(min = 0, max = 10000000)))]
    pub tokens: Vec<u32>,
    /// How often it is asked again.
    #[serde(default = "default_probe_period")]
    pub period: Period,
    /// How long it may take. A server that was scaled to nothing has to start first.
    #[serde(default = "default_probe_timeout")]
    pub timeout: Period,
}

impl Default for ExternalProbe {
    fn default() -> Self {
        Self {
            tokens: default_probe_tokens(),
            period: default_probe_period(),
            timeout: default_probe_timeout(),
        }
    }
}

fn default_probe_tokens() -> Vec<u32> {
    (1..=8).collect()
}

fn default_probe_period() -> Period {
    Period::from_minutes(1)
}

fn default_probe_timeout() -> Period {
    Period::from_minutes(5)
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn default_gpu_memory_utilization() -> f64 {
    0.9
}
