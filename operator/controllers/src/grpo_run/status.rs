//! Writes the operator's part of a run's status if it has changed. Never writes `progress`, which is the driver's.

use grpo_crds::{GrpoRun, GrpoRunStatus, grpo_run::Phase};
use grpo_operator_core::{
    conditions::{ConditionStatus, Conditions, is_true, shortened},
    grpo_run::{
        decision::{ADMITTED, Decision, FAILED, PROVISIONED, SUCCEEDED},
        observation::RunObservation,
        status::OF_THE_SPEC,
    },
    names::STATUS_FIELD_MANAGER,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::{context::Context, controller::event_of, error::Error};

pub async fn write(seen: &RunObservation, decision: Decision, context: &Context) -> Result<(), Error> {
    let uid = &seen.owner.uid;
    if seen.run.metadata.deletion_timestamp.is_some() {
        context.forget(uid);
    } else if let Some(attempts) = &decision.status.attempts {
        context.attempts.count(uid, attempts.clone());
    }
    if differs(&seen.run, &decision.status) {
        write_own(&seen.run, &decision.status, context).await?;
    }
    context.cluster.tell(&seen.run, decision.events).await;
    Ok(())
}

/// Shows an error that keeps the run from continuing.
pub async fn show(run: &GrpoRun, error: &Error, context: &Context) -> Result<(), Error> {
    let previous = run.status.clone().unwrap_or_default();
    if matches!(previous.phase, Some(Phase::Succeeded | Phase::Failed)) {
        return Ok(());
    }
    let message = error.to_string();
    let now = Time(Timestamp::now());
    let conditions = Conditions::after(&previous.conditions, run.metadata.generation, now);
    let conditions = OF_THE_SPEC
        .iter()
        .fold(conditions, |conditions, type_| conditions.keep(type_))
        .set(
            ADMITTED,
            ConditionStatus::of(is_true(&previous.conditions, ADMITTED)),
            error.reason(),
            &message,
        )
        .set(PROVISIONED, ConditionStatus::False, error.reason(), &message)
        .not_finished([SUCCEEDED, FAILED], "the run has not ended")
        .done();
    let uid = run.uid().unwrap_or_default();
    let status = GrpoRunStatus {
        phase: Some(match is_true(&previous.conditions, ADMITTED) {
            true => Phase::Provisioning,
            false => Phase::Pending,
        }),
        message: Some(shortened(&message)),
        observed_generation: run.metadata.generation,
        objective: previous.objective,
        plan: previous.plan,
        conditions,
        attempts: Some(context.attempts.attempts(&uid, previous.attempts.as_ref())),
        progress: None,
    };
    if differs(run, &status) {
        write_own(run, &status, context).await?;
        context.cluster.tell(run, vec![event_of(error)]).await;
    }
    Ok(())
}

fn differs(run: &GrpoRun, wanted: &GrpoRunStatus) -> bool {
    let own = run.status.clone().map(|status| GrpoRunStatus {
        progress: None,
        ..status
    });
    own.as_ref()
        != Some(&GrpoRunStatus {
            progress: None,
            ..wanted.clone()
        })
}

async fn write_own(run: &GrpoRun, status: &GrpoRunStatus, context: &Context) -> Result<(), Error> {
    let own = GrpoRunStatus {
        progress: None,
        ..status.clone()
    };
    let body = serde_json::to_value(&own).map_err(|source| Error::Json {
        what: format!("the status of GrpoRun {}", run.name_any()),
        source,
    })?;
    context
        .cluster
        .write_status(run, STATUS_FIELD_MANAGER, body, None)
        .await
}
