//! Executes the decision about a SandboxPool (`grpo.dev`).

use grpo_operator_core::{
    desired_object::Keep,
    sandbox_pool::{decide::Decision, observation::SandboxPoolObservation},
};
use k8s_openapi::api::networking::v1::NetworkPolicy;

use crate::{context::Context, error::Error};

pub async fn apply(seen: &SandboxPoolObservation, decision: &Decision, context: &Context) -> Result<(), Error> {
    for desired in &decision.objects {
        // The operator does not watch Secrets: while no gateway serves, it makes sure that the Secret exists.
        if desired.keep == Keep::CreatedOnce && !decision.serves {
            context.cluster.distrust(&seen.owner.namespace, desired);
        }
        context.cluster.apply(&seen.owner.namespace, desired).await?;
    }
    for policy in &decision.delete_policies {
        context
            .cluster
            .keep_deleted::<NetworkPolicy>(&seen.owner, policy)
            .await?;
    }
    Ok(())
}
