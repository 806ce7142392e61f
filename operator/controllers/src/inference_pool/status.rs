//! Writes the operator's part of an InferencePool's (`grpo.dev`) status. Never writes the claim, which is the run's.

use grpo_crds::{InferencePool, InferencePoolStatus};
use grpo_operator_core::{
    conditions::{ConditionStatus, Conditions, shortened},
    inference_pool::{
        decide::{Decision, READY},
        observation::InferencePoolObservation,
    },
    names::STATUS_FIELD_MANAGER,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::{context::Context, controller::event_of, error::Error};

pub async fn write(seen: &InferencePoolObservation, decision: Decision, context: &Context) -> Result<(), Error> {
    if seen.pool.metadata.deletion_timestamp.is_some() {
        context.forget(&seen.owner.uid);
    }
    if differs(&seen.pool, &decision.status) {
        write_own(&seen.pool, &decision.status, context).await?;
    }
    context.cluster.tell(&seen.pool, decision.events).await;
    Ok(())
}

/// Shows an error that keeps the pool from its desired state. What else is known of the pool, such as the result of its
/// probe, holds as before.
pub async fn show(pool: &InferencePool, error: &Error, context: &Context) -> Result<(), Error> {
    let previous = pool.status.clone().unwrap_or_default();
    let message = error.to_string();
    let status = InferencePoolStatus {
        conditions: Conditions::after(&previous.conditions, pool.metadata.generation, Time(Timestamp::now()))
            .set_alone(READY, ConditionStatus::False, error.reason(), &message)
            .done(),
        message: Some(shortened(&message)),
        observed_generation: pool.metadata.generation,
        ..previous
    };
    if differs(pool, &status) {
        write_own(pool, &status, context).await?;
        context.cluster.tell(pool, vec![event_of(error)]).await;
    }
    Ok(())
}

fn without_claim(status: InferencePoolStatus) -> InferencePoolStatus {
    InferencePoolStatus {
        claimed_by: None,
        ..status
    }
}

fn differs(pool: &InferencePool, wanted: &InferencePoolStatus) -> bool {
    pool.status.clone().map(without_claim) != Some(without_claim(wanted.clone()))
}

async fn write_own(pool: &InferencePool, status: &InferencePoolStatus, context: &Context) -> Result<(), Error> {
    let body = serde_json::to_value(without_claim(status.clone())).map_err(|source| Error::Json {
        what: format!("the status of InferencePool {}", pool.name_any()),
        source,
    })?;
    context
        .cluster
        .write_status(pool, STATUS_FIELD_MANAGER, body, None)
        .await
}
