//! The ResourceClaims `<run>-gpus-<k>` of a colocated run: the GPUs of trainer pod `k`, which engines use in turns.
//!
//! The spec of a ResourceClaim is immutable. So the operator creates a claim once and never writes it again; it deletes
//! the claims when the run is suspended or over, and a changed spec gets new ones when the run is resumed.

use grpo_crds::GrpoRun;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use super::colocation::SharedGpus;
use crate::{
    desired_object::{DesiredObject, Owner},
    device_claims::GPU_CLASS,
    names::{self, labels},
};

/// The claims, one for each pod of the trainer; none for a run that shares no GPUs.
pub fn gpu_claims(run: &GrpoRun, owner: &Owner) -> Vec<DesiredObject> {
    let Some(shared) = SharedGpus::of(&run.spec) else {
        return Vec::new();
    };
    let labels = labels([(names::RUN, owner.name.as_str())]);
    let requests: Vec<Value> = (0..shared.replicas_per_claim)
        .map(|replica| {
            json!({
                "name": names::gpu_request(replica),
                "exactly": {
                    "deviceClassName": GPU_CLASS,
                    "allocationMode": "ExactCount",
                    "count": shared.gpus_per_replica,
                },
            })
        })
        .collect();
    (0..shared.claims)
        .map(|node| {
            owner
                .object::<ResourceClaim>(
                    names::gpu_claim(&owner.name, node),
                    &labels,
                    json!({"spec": {"devices": {"requests": requests}}}),
                )
                .created_once()
        })
        .collect()
}
