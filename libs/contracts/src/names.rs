//! Names and labels that more than one program has to know: what the operator writes on its objects, and how others
//! find them again.

use grpo_crds::grpo_run::GrpoRun;

/// Whose object it is: `grpo.dev/run` carries the name of the GrpoRun.
pub const RUN: &str = "grpo.dev/run";
pub const INFERENCE_POOL: &str = "grpo.dev/inference-pool";
pub const SANDBOX_POOL: &str = "grpo.dev/sandbox-pool";
pub const ROLE: &str = "grpo.dev/role";
pub const ATTEMPT: &str = "grpo.dev/attempt";
/// Which of several groups of pods it is in: the replica of an engine.
pub const GROUP: &str = "grpo.dev/group";
/// Which of its group's pods it is; an engine's agent is in number 0.
pub const RANK: &str = "grpo.dev/rank";
/// Pods that mount the same ReadWriteOnce volume carry its name here, and are put on one node by it.
pub const STORE: &str = "grpo.dev/store";

/// Pods that carry a SandboxPool's name here may reach its gateway, with a token of its client account.
pub const SANDBOX_CLIENT: &str = "grpo.dev/sandbox-client";
/// Sandboxes that a grader has leased carry this label, `true`, in a pool with a package index: a NetworkPolicy lets
/// them out to it. It stays until the pod is deleted.
pub const GRADER: &str = "grpo.dev/grader";
/// Where every sandbox of a pool with an agent image has that image. It is fixed: the paths of an agent's interpreters
/// are absolute.
pub const AGENT_FOLDER: &str = "/opt/agent";
/// Pods of namespaces with this label, `true`, may reach our services: they collect metrics.
pub const METRICS: &str = "grpo.dev/metrics";

/// The field manager under which a driver applies `status.progress`.
pub const PROGRESS_FIELD_MANAGER: &str = "grpo-driver";

/// Leases in one ConfigMap of a sandbox pool's ledger: a ConfigMap may hold 1 MiB, and each update writes all of it.
pub const LEASES_PER_SHARD: usize = 256;

/// What a pod is for, as its label says.
pub mod role {
    pub const DRIVER: &str = "driver";
    pub const TRAINER: &str = "trainer";
    pub const ENGINE: &str = "engine";
    pub const GATEWAY: &str = "gateway";
    pub const SANDBOX: &str = "sandbox";
    /// Prefetch pods: each has a node pull an image for sandboxes to come.
    pub const IMAGE: &str = "image";
    pub const LEDGER: &str = "ledger";
}

/// The claim that is made for a run whose store is described in place.
pub fn store_claim(run: &str) -> String {
    format!("{run}-store")
}

/// The claim that holds a run's store; none where the store is no volume.
pub fn store_claim_of(run: &GrpoRun) -> Option<String> {
    let store = &run.spec.store;
    match (&store.persistent_volume_claim, &store.volume_claim_template) {
        (Some(existing), _) => Some(existing.claim_name.clone()),
        (None, Some(_)) => run.metadata.name.as_deref().map(store_claim),
        (None, None) => None,
    }
}
