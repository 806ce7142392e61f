//! Does what was decided about a SandboxPool (`grpo.dev`).

use super::{decide::Decision, read::Seen};
use crate::{child::Keep, controller::Context, error::Error};

pub async fn apply(seen: &Seen, decision: &Decision, context: &Context) -> Result<(), Error> {
    for child in &decision.children {
        // The operator does not watch Secrets: while no gateway serves, it makes sure that there is one.
        if child.keep == Keep::CreatedOnce && !decision.serves {
            context.cluster.distrust(&seen.owner.namespace, child);
        }
        context.cluster.apply(&seen.owner.namespace, child).await?;
    }
    Ok(())
}
