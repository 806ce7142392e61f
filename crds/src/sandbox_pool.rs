//! `SandboxPool` (`grpo.dev`): throw-away sandboxes behind one gateway, which is their only owner.
//!
//! The gateway reads this spec as `pool.json`.

mod package_index;
mod resources;

use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    cel,
    common::{Period, PodOverlay, ProcessOptions},
};

pub use package_index::{IndexPods, PackageIndex};

/// Sandboxes that are leased by episodes and graders and deleted after use, or begun anew.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "grpo.dev",
    version = "v1alpha1",
    kind = "SandboxPool",
    plural = "sandboxpools",
    shortname = "gsbx",
    category = "grpo",
    namespaced,
    status = "SandboxPoolStatus",
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= 40").message("the name has at most 40 characters, begins with a letter and has no dots: the names of its services are made from it"),
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.ready","description":"sandboxes that run"}"#,
    printcolumn = r#"{"name":"Leased","type":"integer","jsonPath":".status.leased"}"#,
    printcolumn = r#"{"name":"Pending","type":"integer","jsonPath":".status.pending","description":"sandboxes that start"}"#,
    printcolumn = r#"{"name":"Max","type":"integer","jsonPath":".spec.max"}"#,
    printcolumn = r#"{"name":"Egress-Blocked","type":"string","jsonPath":".status.egressBlocked"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::rule("!has(self.warm.max) || self.warm.max <= self.max", "warm.max is {self.warm.max}, more than max {self.max}: warm sandboxes count as well; lower it or raise max"))]
pub struct SandboxPoolSpec {
    /// Sandboxes at the same time, leased and warm together.
    #[schemars(range(min = 1, max = 10000))]
    pub max: u32,
    /// Sandboxes on one node. Default: as many as its resources allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_per_node: Option<u32>,
    /// Sandboxes that are started before they are asked for.
    #[serde(default)]
    pub warm: Warm,
    /// Caps on what a lease may ask for.
    #[serde(default)]
    pub lease: LeaseCaps,
    /// CPU, memory and ephemeral storage of each sandbox. Every sandbox has a limit of each: what is left out here has
    /// that of the default. A limit of memory without a request is reserved in full, so that no neighbour brings the
    /// node to evict the sandbox.
    #[serde(default = "resources::default_resources", skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// What sandboxes may reach. None: nothing but their gateway, which reaches them.
    #[serde(default)]
    pub network: Network,
    /// The one server that graders may reach, to install packages; agents never reach it. None: graders reach nothing
    /// either, and tasks whose grading scripts install packages are named when a run begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_index: Option<PackageIndex>,
    /// Lease sandboxes even if no probe has shown that the cluster enforces `network`. The pool's conditions report it.
    #[serde(default)]
    pub allow_unenforced: bool,
    /// How image names of tasks are rewritten; the first that fits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub image_rewrites: Vec<ImageRewrite>,
    /// Image with command-line agents, mounted at `/opt/agent` of every sandbox, read-only. A run whose
    /// `agent.cli.image` is another one cannot use the pool. Of a pool of a run's own the operator sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub agent_image: Option<String>,
    /// Namespaces whose runs may lease sandboxes, besides the pool's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub allowed_namespaces: Vec<String>,
    /// Root inside a sandbox is an unprivileged user outside (`hostUsers: false`). Set false where nodes do not support
    /// this: root inside is then root outside, within the bounds of the baseline Pod Security level.
    #[serde(default = "yes")]
    pub user_namespaces: bool,
    /// What becomes of a sandbox that is given back. Never: its pod is deleted. ContainerRestart: its container begins
    /// anew from the image, in the same pod, and may be leased again; needs Kubernetes 1.36, and on an older cluster
    /// the pod is deleted. A pod that could reach `packageIndex` is always deleted.
    #[serde(default, skip_serializing_if = "Reset::is_never")]
    pub reset: Reset,
    /// Laid over the sandbox pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodOverlay>,
    /// How the gateway is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<ProcessOptions>,
}

impl SandboxPoolSpec {
    /// What each sandbox requests and is limited to. A limit of memory that the pool names is reserved in full, unless
    /// it also names a request: no neighbour can then bring a node to evict the sandbox.
    pub fn bounded_resources(&self) -> ResourceRequirements {
        resources::bounded(self.resources.as_ref())
    }
}

/// Sandboxes that are started before they are asked for, because the driver says which images come next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Warm {
    /// Groups of episodes whose sandboxes are started before their turn comes. Default: as many episodes as run at the
    /// same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub ahead: Option<u32>,
    /// Sandboxes that are kept warm even if no run asks for them. None: an unused pool holds no sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub min: Vec<WarmImage>,
    /// Maximum number of warm sandboxes without a lease. 0 keeps none warm. Default: as many as `max` leaves room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub max: Option<u32>,
    /// Maximum number of images that nodes pull and keep at a time for future sandboxes, while the pool has no room
    /// for the sandboxes themselves. The kubelet's image garbage collection removes images that are no longer wanted.
    /// 0: the first sandbox of an image pulls it.
    #[serde(default = "default_images")]
    #[schemars(range(min = 0, max = 1000))]
    pub images: u32,
}

impl Default for Warm {
    fn default() -> Self {
        Self {
            ahead: None,
            min: Vec::new(),
            max: None,
            images: default_images(),
        }
    }
}

fn default_images() -> u32 {
    16
}

/// So many sandboxes of one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WarmImage {
    /// As tasks name it, before `imageRewrites`.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// Unleased ones, as long as `max` leaves room for them.
    #[schemars(range(min = 1, max = 10000))]
    pub count: u32,
}

fn yes() -> bool {
    true
}

/// Caps on what a lease may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseCaps {
    /// Longest time to live that a lease or a renewal may ask for.
    #[serde(default = "default_max_ttl", rename = "maxTTL")]
    pub max_ttl: Period,
    /// The lease of a sandbox in which nothing runs for so long ends, renewed or not. Longer than a driver waits for an
    /// engine that is away.
    #[serde(default = "default_idle_timeout")]
    pub idle_timeout: Period,
}

impl Default for LeaseCaps {
    fn default() -> Self {
        Self {
            max_ttl: default_max_ttl(),
            idle_timeout: default_idle_timeout(),
        }
    }
}

fn default_max_ttl() -> Period {
    Period::from_minutes(120)
}

fn default_idle_timeout() -> Period {
    Period::from_minutes(40)
}

/// What sandboxes may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Network {
    #[default]
    None,
}

/// What becomes of a sandbox that is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Reset {
    #[default]
    Never,
    ContainerRestart,
}

impl Reset {
    fn is_never(&self) -> bool {
        *self == Self::Never
    }
}

/// One rewrite of image names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageRewrite {
    /// A registry (`docker.io/`), a folder of one (`swebench/`), or one image with its tag. Names are read as runtimes
    /// read them: `swebench/x` is `docker.io/swebench/x`, and `ubuntu` is `docker.io/library/ubuntu`.
    #[schemars(length(min = 1, max = 512))]
    pub from: String,
    /// What takes its place. The rest of the name, its tag and its digest stay.
    #[schemars(length(max = 512))]
    pub to: String,
}

/// How the pool is.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxPoolStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, EgressBlocked, LimitsEnforced, ImagesAvailable, SandboxesStart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The message of the condition that matters most now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub message: Option<String>,
    /// Sandboxes that run.
    #[serde(default)]
    pub ready: u32,
    /// Leases in the ledger.
    #[serde(default)]
    pub leased: u32,
    /// Sandboxes that start.
    #[serde(default)]
    pub pending: u32,
    /// Whether sandboxes were shown to reach nothing: True, False or Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub egress_blocked: Option<String>,
}
