//! Observes an InferencePool (`grpo.dev`): pods and the claim's run from memory, reports from the agents.

use grpo_crds::{GrpoRun, InferencePool, grpo_run::Phase};
use grpo_operator_core::{
    desired_object::Owner,
    inference_pool::{observation::InferencePoolObservation, replicas},
    names::{RUN, role},
    quota::Maker,
};
use jiff::Timestamp;
use kube::{Resource, ResourceExt};

use crate::{context::Context, error::Error, parent::Parent};

pub async fn read(pool: &InferencePool, context: &Context) -> Result<InferencePoolObservation, Error> {
    let owner = Owner::of(pool).ok_or_else(|| Error::Nameless {
        what: format!("InferencePool {}", pool.name_any()),
    })?;
    let parent = Parent::inference_pool(&owner);
    let (pods, earlier): (Vec<_>, Vec<_>) = context
        .pods
        .pods(&parent, role::ENGINE)
        .into_iter()
        .partition(|pod| pod.owner.as_deref() == Some(&owner.uid));
    let pods = pods.into_iter().map(|pod| pod.facts).collect();
    let pods = context.pending_pods.with_made(&owner.uid, pods);
    let living = pods.iter().filter(|pod| !pod.deleting).count();
    // Replicas for which Kueue's quota or the trainer's GPUs are not enough are never made: a pool that asked for them
    // would keep the others of its namespace waiting.
    let lacks = living < replicas(pool).saturating_mul(pool.spec.engine.nodes()) as usize;
    Ok(InferencePoolObservation {
        agents: context.agents.statuses(&pods).await,
        pods,
        earlier_pods: earlier.into_iter().map(|pod| pod.facts).collect(),
        run: pool.labels().get(RUN).cloned(),
        claim_is_void: claim_is_void(pool, &owner.namespace, context).await,
        quota: context.quotas.ask(&maker(pool), lacks),
        now: Timestamp::now(),
        pool: pool.clone(),
        owner,
    })
}

/// The maker of the pool's pods: the run that it was made for, otherwise the pool itself.
pub fn maker(pool: &InferencePool) -> Maker {
    let kinds = [GrpoRun::kind(&()), InferencePool::kind(&())];
    let run = pool
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true) && owner.kind == kinds[0]);
    let (kind, name, uid) = match run {
        Some(run) => (&kinds[0], run.name.clone(), run.uid.clone()),
        None => (&kinds[1], pool.name_any(), pool.uid().unwrap_or_default()),
    };
    Maker {
        namespace: pool.namespace().unwrap_or_default(),
        name: format!("{kind} {name}"),
        uid,
    }
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
