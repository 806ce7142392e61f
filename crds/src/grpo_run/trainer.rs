//! Pods that train.

use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    cel,
    common::{EnvVariable, Period, PodOverlay},
};

/// Pods that train, as one group: `nodes` pods, one rank per GPU (one rank on the CPU where there are none).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = cel::rule("self.sequenceParallel == 1 || (self.gpusPerNode > 0 && self.gpusPerNode % self.sequenceParallel == 0)", "trainer.sequenceParallel is {self.sequenceParallel}, which does not divide gpusPerNode {self.gpusPerNode}: the ranks that share a sequence are GPUs of one node"),
    validation = cel::rule("!(self.offload.optimizer || self.offload.parameters || self.offload.activations) || self.gpusPerNode > 0", "trainer.offload is for GPUs, but trainer.gpusPerNode is 0: set it, or leave offload out"),
    validation = cel::rule("!has(self.network) || !has(self.network.rdma) || self.gpusPerNode > 0", "trainer.network.rdma is for GPUs, but trainer.gpusPerNode is 0: set it, or leave rdma out")
)]
pub struct Trainer {
    /// Pods; parameters, gradients and optimizer state are sharded over all their ranks.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 256))]
    pub nodes: u32,
    /// GPUs of each pod (`nvidia.com/gpu`); they need an `image` that is built for them. 0 trains on the CPU.
    #[serde(default)]
    #[schemars(range(min = 0, max = 16))]
    pub gpus_per_node: u32,
    /// CPU and memory of each pod; GPUs are added from `gpusPerNode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Ranks of a node that share one sequence, so that longer ones fit.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub sequence_parallel: u32,
    /// Tokens that a rank computes at a time; rows are packed up to it, times `sequenceParallel`. A prefix of several
    /// rows is computed once in each pack. A longer row is computed alone, or with rows that are its beginning.
    /// Default: 4,096 on CPUs, 16,384 on GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 64, max = 10000000))]
    pub max_tokens_per_gpu: Option<u32>,
    /// What is kept in the pods' memory instead of the GPUs'.
    #[serde(default)]
    pub offload: Offload,
    /// GPUs compute the same bits every time, so a step that is taken again after a crash gives the weights that were
    /// published. A step takes about twice as long. Without it the weights of such a step may differ in their last
    /// bits: the run then continues with them, in a new lineage where the step had been published. CPUs always compute
    /// the same bits.
    #[serde(default)]
    pub deterministic: bool,
    /// All: the state is sharded over all ranks. Node: over those of a node, and every node has a copy, which saves
    /// network for memory.
    #[serde(default)]
    pub shard: Shard,
    /// Trainer and engines take turns on the same GPUs: the engines sleep while the trainer steps, and the trainer
    /// keeps its state in the pods' memory while they sample. Needs an `inference.pool` of vllm or sglang whose
    /// replicas have as many GPUs as the trainer, and a cluster with NVIDIA's DRA driver. With `gpusPerNode: 0` an
    /// embedded engine and the trainer take the same turns on the CPU.
    #[serde(default)]
    pub colocate: bool,
    /// How ranks of different nodes talk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<TrainerNetwork>,
    /// What may take how long before the pods are started again.
    #[serde(default)]
    pub deadlines: Deadlines,
    /// Another trainer that keeps to the trainer contract. Default: the operator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Added to the environment, for example NCCL's settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVariable>,
    /// Laid over the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodOverlay>,
}

impl Trainer {
    /// What is kept in the pods' memory. Beside engines that use the same GPUs in turns, all that stays between two
    /// steps.
    pub fn keeps_aside(&self) -> Offload {
        Offload {
            optimizer: self.offload.optimizer || self.colocate,
            parameters: self.offload.parameters || self.colocate,
            activations: self.offload.activations,
        }
    }
}

fn one() -> u32 {
    1
}

/// What is kept in the pods' memory instead of the GPUs'.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Offload {
    /// The optimizer's moments: 8 bytes for each parameter.
    #[serde(default)]
    pub optimizer: bool,
    /// Parameters that no rank computes with at the moment.
    #[serde(default)]
    pub parameters: bool,
    /// Inputs of the blocks, from which the backward pass computes them again. A GPU with memory for all activations
    /// keeps those, and offloads nothing.
    #[serde(default)]
    pub activations: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Shard {
    #[default]
    All,
    Node,
}

/// How ranks of different nodes talk.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainerNetwork {
    /// RDMA devices of each pod. The container runtime must not limit locked memory. Left out: TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Rdma>,
    /// Network interface of the pods that NCCL and Gloo use, for example `eth0`. Default: the one of the pods' address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._@-]*$"))]
    pub interface: Option<String>,
}

/// RDMA devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rdma {
    /// The extended resource that a device plugin offers, for example `rdma/hca_shared_devices_a`.
    #[schemars(
        length(min = 3, max = 317),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub resource: String,
    /// How many for each pod.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub count: u32,
}

/// What may take how long before the pods are started again.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// From the last pod's start until all ranks are there. Waiting for nodes and images does not count. Default: 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Period>,
    /// One optimizer step. A rank that hangs is named, and the next attempt prefers other nodes. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Period>,
    /// One collective operation. Default: 2m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective: Option<Period>,
}

impl Deadlines {
    /// From the last pod's start until all ranks are there.
    pub fn start(&self) -> Duration {
        self.start.map_or(Duration::from_secs(30 * 60), Period::duration)
    }

    /// One collective operation.
    pub fn collective(&self) -> Duration {
        self.collective.map_or(Duration::from_secs(2 * 60), Period::duration)
    }

    /// One optimizer step, where it has a limit.
    pub fn step(&self) -> Option<Duration> {
        self.step.map(Period::duration)
    }
}
