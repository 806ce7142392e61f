//! Replicas whose GPUs belong to a trainer's pods too (`spec.colocated`): which ResourceClaim and request each replica
//! uses.

use grpo_crds::InferencePoolSpec;
use serde_json::Value;

use crate::{device_claims::give_gpus, names};

/// Whether the replicas have no GPUs of their own.
pub fn are_shared(spec: &InferencePoolSpec) -> bool {
    spec.colocated
        .as_ref()
        .is_some_and(|colocated| !colocated.claims.is_empty())
}

/// Replicas to create: those that are wanted, as far as the claims have GPUs for them.
pub fn replicas(spec: &InferencePoolSpec) -> u32 {
    match &spec.colocated {
        Some(colocated) if !colocated.claims.is_empty() => {
            let claims = u32::try_from(colocated.claims.len()).unwrap_or(u32::MAX);
            spec.replicas.min(claims.saturating_mul(colocated.replicas_per_claim))
        }
        _ => spec.replicas,
    }
}

/// Why fewer replicas are created than the spec asks for.
pub fn shortage(spec: &InferencePoolSpec) -> Option<String> {
    let possible = replicas(spec);
    (possible < spec.replicas).then(|| {
        format!(
            "{} replicas are asked for, and the GPUs that they share with the trainer are enough for {possible}: no more are made; change trainer and inference.pool of the run while it is suspended",
            spec.replicas
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
