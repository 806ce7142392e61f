//! The ResourceClaims `<run>-gpus-<k>` of a colocated run: the GPUs of trainer pod `k`, which engines use in turns.
//!
//! | the run | its claims |
//! |---|---|
//! | waits for admission | deleted: a claim counts against a ResourceQuota from its creation |
//! | is admitted, or has a trainer or an engine on a node | created; until then its pods wait in the scheduler |
//! | is refused by a ResourceQuota | deleted, if no pod uses them: two runs must not have a part each |
//! | is suspended, or over | deleted |
//!
//! The spec of a ResourceClaim is immutable. So the operator creates a claim once and never writes it again. Claims of
//! an earlier spec are left if a run was suspended, changed and resumed before the operator saw it; see [`are_stale`].

use std::collections::BTreeMap;

use grpo_crds::GrpoRun;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    colocation::SharedGpus,
    observation::RunObservation,
    queue::{self, QueueVerdict},
};
use crate::{
    desired_object::{DesiredObject, Owner},
    device_claims::{ClaimedGpus, GPU_CLASS},
    digest::number,
    names::{self, labels},
};

/// The claims, one for each pod of the trainer; none for a run that shares no GPUs.
pub fn gpu_claims(run: &GrpoRun, owner: &Owner) -> Vec<DesiredObject> {
    let Some(shared) = SharedGpus::of(&run.spec) else {
        return Vec::new();
    };
    let labels = labels([(names::RUN, owner.name.as_str())]);
    let spec = json!({"devices": {"requests": requests(&shared)}});
    (0..shared.claims)
        .map(|node| {
            let name = names::gpu_claim(&owner.name, node);
            owner
                .object::<ResourceClaim>(name, &labels, json!({"spec": spec}))
                .created_once()
        })
        .collect()
}

fn requests(shared: &SharedGpus) -> Vec<Value> {
    let request = |replica: u32| {
        json!({
            "name": names::gpu_request(replica),
            "exactly": {
                "deviceClassName": GPU_CLASS,
                "allocationMode": "ExactCount",
                "count": shared.gpus_per_replica,
            },
        })
    };
    (0..shared.replicas_per_claim).map(request).collect()
}

/// What becomes of a run's claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuClaimStep {
    /// Create those that are missing.
    Create,
    Delete,
    Leave,
}

/// What becomes of the claims of a run that is neither suspended nor over.
pub fn step(seen: &RunObservation) -> GpuClaimStep {
    if SharedGpus::of(&seen.run.spec).is_none() {
        return GpuClaimStep::Leave;
    }
    // Kubernetes deletes a claim that pods use only after them, and until then no new pod gets it.
    let in_use = in_use(seen);
    if let Some(wait) = &seen.quota {
        return match wait.refused && !in_use {
            true => GpuClaimStep::Delete,
            false => GpuClaimStep::Leave,
        };
    }
    match (queue::verdict(seen), &seen.verdict) {
        _ if in_use => GpuClaimStep::Create,
        (QueueVerdict::Admitted(_), _) => GpuClaimStep::Create,
        (QueueVerdict::NoQueue, None) => GpuClaimStep::Leave,
        (QueueVerdict::NoQueue, Some(verdict)) if verdict.admitted => GpuClaimStep::Create,
        _ => GpuClaimStep::Delete,
    }
}

/// Whether a pod that names a claim may use it.
fn in_use(seen: &RunObservation) -> bool {
    let mut trainer = seen.trainer_pods.iter();
    seen.engines_on_nodes || trainer.any(|pod| pod.node_name.is_some() && !pod.is_finished())
}

/// The number of the claims' shape: equal if the trainer and the engines of two specs can use the same claims. `None`:
/// the spec shares no GPUs.
pub fn shape(run: &GrpoRun) -> Option<u64> {
    let shared = SharedGpus::of(&run.spec)?;
    Some(number(&json!([shared.claims, requests(&shared)])))
}

/// Whether claims that were read are of an earlier spec. Those that are being deleted are not: their successors are
/// created when they are gone.
pub fn are_stale(seen: &RunObservation) -> bool {
    if seen.gpu_claims.is_empty() {
        return false;
    }
    let wanted: BTreeMap<String, ClaimedGpus> = gpu_claims(&seen.run, &seen.owner)
        .into_iter()
        .filter_map(|desired| {
            let claim: ResourceClaim = serde_json::from_value(desired.object).ok()?;
            Some((desired.name, ClaimedGpus::of(&[claim])))
        })
        .collect();
    let left = seen.gpu_claims.iter();
    let mut left = left.filter(|claim| claim.metadata.deletion_timestamp.is_none());
    left.any(|claim| wanted.get(&claim.name_any()) != Some(&ClaimedGpus::of(std::slice::from_ref(claim))))
}
