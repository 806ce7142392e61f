//! Does what was decided about a SandboxPool (`grpo.dev`).

use super::{decide::Decision, read::Seen};
use crate::{controller::Context, error::Error};

pub async fn apply(seen: &Seen, decision: &Decision, context: &Context) -> Result<(), Error> {
    for child in &decision.children {
        context.cluster.apply(&seen.owner.namespace, child).await?;
    }
    Ok(())
}
