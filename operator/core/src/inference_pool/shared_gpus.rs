//! Replicas whose GPUs belong to a trainer's pods too (`spec.colocated`): which pools may have them, which
//! ResourceClaim and request each replica uses, and for which pods it waits.

use grpo_crds::{GrpoRun, InferencePool, InferencePoolSpec};
use kube::{Resource, ResourceExt};
use serde_json::Value;

use super::observation::InferencePoolObservation;
use crate::{
    admission::gate::EngineQuota,
    device_claims::give_gpus,
    names,
    pod_group::{GroupUpdate, devices_in_use, may_use_devices, until_lost},
    pods::PodFacts,
};

/// Refuses `spec.colocated` in a pool that was not made for a run. Engines of a copied pool would take the GPUs of the
/// run's trainer at any time, since the run's driver does not know them. A copy may have the labels and owner of the
/// original too, but not its name: the run's.
pub fn refusal(pool: &InferencePool) -> Option<String> {
    let mut owners = pool.owner_references().iter();
    let run = owners.find(|owner| owner.controller == Some(true) && owner.kind == GrpoRun::kind(&()));
    let made_for_run = run.is_some_and(|run| run.name == pool.name_any());
    (pool.spec.colocated.is_some() && !made_for_run).then(|| {
        "spec.colocated: the operator writes this field into the pool of a GrpoRun with trainer.colocate, and this \
         pool was not made for a run; remove spec.colocated"
            .to_owned()
    })
}

/// Whether the replicas have no GPUs of their own.
pub fn are_shared(spec: &InferencePoolSpec) -> bool {
    spec.colocated
        .as_ref()
        .is_some_and(|colocated| !colocated.claims.is_empty())
}

/// Replicas to create: those that are wanted, as far as the claims have GPUs for them, and as Kueue gave quota.
pub fn replicas(pool: &InferencePool) -> u32 {
    let spec = &pool.spec;
    let possible = match &spec.colocated {
        Some(colocated) if !colocated.claims.is_empty() => {
            let claims = u32::try_from(colocated.claims.len()).unwrap_or(u32::MAX);
            spec.replicas.min(claims.saturating_mul(colocated.replicas_per_claim))
        }
        _ => spec.replicas,
    };
    match EngineQuota::of_pool(pool) {
        Some(quota) => possible.min(quota.replicas(spec.engine.nodes())),
        None => possible,
    }
}

/// Why fewer replicas are created than the spec asks for.
pub fn shortage(pool: &InferencePool) -> Option<String> {
    let (possible, wanted) = (replicas(pool), pool.spec.replicas);
    let why = match EngineQuota::of_pool(pool) {
        Some(quota) if quota.replicas(pool.spec.engine.nodes()) == possible => "Kueue admitted the run with quota for",
        _ => "the GPUs that they share with the trainer are enough for",
    };
    (possible < wanted).then(|| {
        format!(
            "{wanted} replicas are asked for, and {why} {possible}: no more are made; change trainer and inference.pool of the run while it is suspended"
        )
    })
}

/// Gives a pod of this replica its share of the GPUs. [`replicas`] ensures that there is one.
pub fn give(spec: &InferencePoolSpec, replica: u32, pod: &mut Value) {
    let Some(colocated) = &spec.colocated else { return };
    let per_claim = colocated.replicas_per_claim.max(1);
    let claim = usize::try_from(replica / per_claim).ok();
    if let Some(claim) = claim.and_then(|claim| colocated.claims.get(claim)) {
        give_gpus(pod, claim, Some(&names::gpu_request(replica % per_claim)));
    }
}

/// Why a replica with shared GPUs is not made yet: a pod that it replaces may still use them.
pub fn wait(seen: &InferencePoolObservation) -> Option<String> {
    let ending = seen.pods.iter().filter(|pod| pod.deleting);
    let mut before = ending.chain(&seen.earlier_pods);
    let pod = before.find(|pod| are_shared(&seen.pool.spec) && may_use_devices(pod, seen.now))?;
    Some(format!("replica {} is made later: {}", pod.group, devices_in_use(pod)))
}

/// Holds back replicas whose GPUs a pod of an earlier pool may still use.
pub fn after_earlier_pods(mut update: GroupUpdate, seen: &InferencePoolObservation) -> GroupUpdate {
    let in_use: Vec<&PodFacts> = seen
        .earlier_pods
        .iter()
        .filter(|pod| are_shared(&seen.pool.spec) && may_use_devices(pod, seen.now))
        .collect();
    let wanted = update.create.len();
    update
        .create
        .retain(|key| !in_use.iter().any(|pod| pod.group == key.group));
    if update.create.len() < wanted {
        let lost = until_lost(in_use.iter().copied(), seen.now);
        update.retry_in = update.retry_in.into_iter().chain(lost).min();
    }
    update
}
