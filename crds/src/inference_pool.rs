//! `InferencePool` (`grpo.dev`): replicas of an engine that serve one model, each behind its agent.

use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{EnvVariable, ModelSource, PodOverlay};

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
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.ready"}"#,
    printcolumn = r#"{"name":"Claimed-By","type":"string","jsonPath":".status.claimedBy.name"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Model","type":"string","jsonPath":".status.model","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.model == oldSelf.model").message("model is immutable: make another pool"))]
pub struct InferencePoolSpec {
    /// What is served as version `base`.
    pub model: ModelSource,
    /// The engine.
    pub engine: Engine,
    /// Pods, one engine each.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 1024))]
    pub replicas: u32,
    /// CPU, memory and GPUs of each engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Added to the engines' environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVariable>,
    /// Laid over the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodOverlay>,
}

/// A pool described in a GrpoRun: as an InferencePool, whose model is the run's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferencePoolTemplate {
    /// The engine.
    pub engine: Engine,
    /// Pods, one engine each.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 1024))]
    pub replicas: u32,
    /// CPU, memory and GPUs of each engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Added to the engines' environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVariable>,
    /// Laid over the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodOverlay>,
}

impl InferencePoolTemplate {
    /// The pool of a run with this model.
    pub fn serving(&self, model: &ModelSource) -> InferencePoolSpec {
        InferencePoolSpec {
            model: model.clone(),
            engine: self.engine.clone(),
            replicas: self.replicas,
            resources: self.resources.clone(),
            env: self.env.clone(),
            pod_template: self.pod_template.clone(),
        }
    }
}

fn default_replicas() -> u32 {
    1
}

/// The engine of a pool: exactly one of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.embedded)").message("give the engine: embedded"))]
pub struct Engine {
    /// The operator's own engine: small models, CPU, the same model code as the trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedded: Option<EmbeddedEngine>,
}

impl Engine {
    /// Its name in `kubectl get`.
    pub fn name(&self) -> &'static str {
        match self.embedded {
            Some(_) => "embedded",
            None => "none",
        }
    }
}

/// The embedded engine has no settings yet: it takes the context length from the model's `config.json`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmbeddedEngine {}

/// How the pool is.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferencePoolStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready.
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
    /// Pods that exist.
    #[serde(default)]
    pub replicas: u32,
    /// Pods that serve.
    #[serde(default)]
    pub ready_replicas: u32,
    /// Selects the pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub selector: Option<String>,
    /// The GrpoRun whose weights the pool follows, until that run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_by: Option<Claim>,
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
