//! What there is of an InferencePool (`grpo.dev`): its pods from memory, and whether the run that claims it still does.

use grpo_crds::{InferencePool, grpo_run::Phase};
use grpo_operator_core::{
    desired_object::Owner,
    inference_pool::observation::InferencePoolObservation,
    names::{RUN, role},
};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    context::Context,
    error::Error,
    parent::{Controlled, Parent},
};

pub async fn read(pool: &InferencePool, context: &Context) -> Result<InferencePoolObservation, Error> {
    let owner = Owner::of(pool).ok_or_else(|| Error::Nameless {
        what: format!("InferencePool {}", pool.name_any()),
    })?;
    let parent = Parent {
        kind: Controlled::InferencePool,
        namespace: owner.namespace.clone(),
        name: owner.name.clone(),
    };
    let pods = context.pods.pods(&parent, role::ENGINE).into_iter();
    let pods = pods
        .filter(|pod| pod.owner.as_deref() == Some(&owner.uid))
        .map(|pod| pod.facts)
        .collect();
    let pods = context.pending_pods.with_made(&owner.uid, pods);
    Ok(InferencePoolObservation {
        agents: context.agents.statuses(&pods).await,
        pods,
        run: pool.labels().get(RUN).cloned(),
        claim_is_void: claim_is_void(pool, &owner.namespace, context).await,
        now: Timestamp::now(),
        pool: pool.clone(),
        owner,
    })
}

async fn claim_is_void(pool: &InferencePool, namespace: &str, context: &Context) -> bool {
    let Some(claim) = pool.status.as_ref().and_then(|status| status.claimed_by.as_ref()) else {
        return false;
    };
    let run = context.watched.runs.peek(namespace, &claim.name).await;
    run.is_none_or(|run| {
        let run = run.0.as_ref().ok();
        let phase = run.and_then(|run| run.status.as_ref()?.phase);
        let uid = run.and_then(|run| run.metadata.uid.as_ref());
        uid.is_some_and(|uid| *uid != claim.uid) || matches!(phase, Some(Phase::Succeeded | Phase::Failed))
    })
}
