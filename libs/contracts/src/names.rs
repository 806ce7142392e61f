//! Names and labels that several programs use: the operator writes them on its objects, and other programs find the
//! objects by them.

use grpo_crds::grpo_run::GrpoRun;

/// The owner of the object: `grpo.dev/run` has the name of the GrpoRun.
pub const RUN: &str = "grpo.dev/run";
pub const INFERENCE_POOL: &str = "grpo.dev/inference-pool";
pub const SANDBOX_POOL: &str = "grpo.dev/sandbox-pool";
pub const ROLE: &str = "grpo.dev/role";
pub const ATTEMPT: &str = "grpo.dev/attempt";
/// The group of an object with several pod groups: the replica of an engine.
pub const GROUP: &str = "grpo.dev/group";
/// The pod's number in its group; an engine's agent is in pod 0.
pub const RANK: &str = "grpo.dev/rank";
/// Pods that mount the same ReadWriteOnce volume have its name here, which places them on one node.
pub const STORE: &str = "grpo.dev/store";

/// Pods with a SandboxPool's name here may reach its gateway, with a token of its client account.
pub const SANDBOX_CLIENT: &str = "grpo.dev/sandbox-client";
/// Pods with an InferencePool's name here may reach its engine agents, with a token of one of its clients.
pub const INFERENCE_CLIENT: &str = "grpo.dev/inference-client";
/// Marks sandboxes that a grader has leased, with `true`, in a pool with a package index: a NetworkPolicy lets them
/// connect to it. The label stays until the pod is deleted.
pub const GRADER: &str = "grpo.dev/grader";
/// The path of the agent image in every sandbox of a pool that has one. It is fixed: the paths of an agent's
/// interpreters are absolute.
pub const AGENT_FOLDER: &str = "/opt/agent";
/// The environment variable of a trainer whose nodes reach each other by RDMA: the trainer checks the limit on locked
/// memory first.
pub const RDMA_VARIABLE: &str = "GRPO_RDMA";
/// Pods in namespaces with this label, `true`, may reach this project's services to collect metrics.
pub const METRICS: &str = "grpo.dev/metrics";

/// The field manager under which a driver applies `status.progress`.
pub const PROGRESS_FIELD_MANAGER: &str = "grpo-driver";

/// Leases in one shard of a sandbox pool's ledger: a ConfigMap may hold 1 MiB, and each update writes all of it.
pub const LEASES_PER_SHARD: usize = 256;

/// Roles of pods, the values of their label.
pub mod role {
    pub const DRIVER: &str = "driver";
    pub const TRAINER: &str = "trainer";
    pub const ENGINE: &str = "engine";
    pub const GATEWAY: &str = "gateway";
    pub const SANDBOX: &str = "sandbox";
    /// Prefetch pods: each makes a node pull an image for later sandboxes.
    pub const IMAGE: &str = "image";
    pub const LEDGER: &str = "ledger";
}

/// The volume claim that is created for a run whose store is described inline.
pub fn store_claim(run: &str) -> String {
    format!("{run}-store")
}

/// The volume claim with a run's store; `None` if the store is not a volume.
pub fn store_claim_of(run: &GrpoRun) -> Option<String> {
    let store = &run.spec.store;
    match (&store.persistent_volume_claim, &store.volume_claim_template) {
        (Some(existing), _) => Some(existing.claim_name.clone()),
        (None, Some(_)) => run.metadata.name.as_deref().map(store_claim),
        (None, None) => None,
    }
}
