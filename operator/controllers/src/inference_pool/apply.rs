//! Does what was decided about an InferencePool (`grpo.dev`).

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use crate::{controller::Context, error::Error};
use grpo_operator_core::inference_pool::{decide::Decision, observation::InferencePoolObservation};
use grpo_operator_core::names::CLAIM_FIELD_MANAGER;

pub async fn apply(seen: &InferencePoolObservation, decision: &Decision, context: &Context) -> Result<(), Error> {
    let (cluster, owner) = (&context.cluster, &seen.owner);
    for child in &decision.children {
        cluster.apply(&owner.namespace, child).await?;
    }
    for pod in &decision.delete {
        cluster.delete::<Pod>(&owner.namespace, pod, None).await?;
    }
    for (pod, facts) in &decision.create {
        cluster.create_pod(&owner.namespace, &owner.uid, pod).await?;
        context.memory.made(&owner.uid, facts.clone());
    }
    if decision.release_claim {
        let version = seen.pool.resource_version();
        cluster
            .write_status(&seen.pool, CLAIM_FIELD_MANAGER, json!({}), version.as_deref())
            .await?;
    }
    Ok(())
}
