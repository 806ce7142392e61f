//! Writes a SandboxPool's (`grpo.dev`) status if it has changed.

use grpo_crds::{SandboxPool, SandboxPoolStatus};
use grpo_operator_core::{
    conditions::{ConditionStatus, Conditions, shortened},
    names::STATUS_FIELD_MANAGER,
    sandbox_pool::{
        decide::{Decision, READY},
        observation::SandboxPoolObservation,
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::{context::Context, controller::event_of, error::Error};

pub async fn write(seen: &SandboxPoolObservation, decision: Decision, context: &Context) -> Result<(), Error> {
    write_if_new(&seen.pool, &decision.status, context).await?;
    context.cluster.tell(&seen.pool, decision.events).await;
    Ok(())
}

/// Shows an error that keeps the pool from its desired state. What else is known of the pool, such as the result of its
/// probe, holds as before.
pub async fn show(pool: &SandboxPool, error: &Error, context: &Context) -> Result<(), Error> {
    let previous = pool.status.clone().unwrap_or_default();
    let message = error.to_string();
    let status = SandboxPoolStatus {
        conditions: Conditions::after(&previous.conditions, pool.metadata.generation, Time(Timestamp::now()))
            .set_alone(READY, ConditionStatus::False, error.reason(), &message)
            .done(),
        message: Some(shortened(&message)),
        observed_generation: pool.metadata.generation,
        ..previous
    };
    if write_if_new(pool, &status, context).await? {
        context.cluster.tell(pool, vec![event_of(error)]).await;
    }
    Ok(())
}

/// Writes a status if it has changed; returns whether it did.
async fn write_if_new(pool: &SandboxPool, status: &SandboxPoolStatus, context: &Context) -> Result<bool, Error> {
    if pool.status.as_ref() == Some(status) {
        return Ok(false);
    }
    let body = serde_json::to_value(status).map_err(|source| Error::Json {
        what: format!("the status of SandboxPool {}", pool.name_any()),
        source,
    })?;
    context
        .cluster
        .write_status(pool, STATUS_FIELD_MANAGER, body, None)
        .await?;
    Ok(true)
}
