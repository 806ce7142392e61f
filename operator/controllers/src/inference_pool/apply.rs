//! Executes the decision about an InferencePool (`grpo.dev`).

use grpo_operator_core::{
    inference_pool::{decide::Decision, observation::InferencePoolObservation},
    names::CLAIM_FIELD_MANAGER,
};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use serde_json::json;

use crate::{context::Context, error::Error, parent::Parent};

pub async fn apply(seen: &InferencePoolObservation, decision: &Decision, context: &Context) -> Result<(), Error> {
    let (cluster, owner) = (&context.cluster, &seen.owner);
    for desired in &decision.objects {
        cluster.apply(&owner.namespace, desired).await?;
    }
    for service in &decision.delete_services {
        cluster.keep_deleted::<Service>(owner, service).await?;
    }
    let parent = Parent::inference_pool(owner);
    for pod in &decision.delete {
        let uid = context.pods.uid(&parent, &owner.uid, pod);
        cluster.delete::<Pod>(&owner.namespace, pod, uid.as_deref()).await?;
        context.pending_pods.deleted(&owner.uid, pod);
    }
    for (pod, facts) in &decision.create {
        cluster.create_pod(&owner.namespace, pod).await?;
        context.pending_pods.made(&owner.uid, facts.clone());
    }
    if decision.release_claim {
        let version = seen.pool.resource_version();
        cluster
            .write_status(&seen.pool, CLAIM_FIELD_MANAGER, json!({}), version.as_deref())
            .await?;
    }
    Ok(())
}
