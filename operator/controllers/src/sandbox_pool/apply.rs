//! Does what was decided about a SandboxPool (`grpo.dev`).

use crate::{controller::Context, error::Error};
use grpo_operator_core::child::Keep;
use grpo_operator_core::sandbox_pool::{decide::Decision, observation::SandboxPoolObservation};

pub async fn apply(seen: &SandboxPoolObservation, decision: &Decision, context: &Context) -> Result<(), Error> {
    for child in &decision.children {
        // The operator does not watch Secrets: while no gateway serves, it makes sure that there is one.
        if child.keep == Keep::CreatedOnce && !decision.serves {
            context.cluster.distrust(&seen.owner.namespace, child);
        }
        context.cluster.apply(&seen.owner.namespace, child).await?;
    }
    Ok(())
}
