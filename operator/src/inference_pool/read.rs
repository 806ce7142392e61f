//! What there is of an InferencePool (`grpo.dev`): its pods from memory, and whether the run that claims it still does.

use grpo_crds::{InferencePool, grpo_run::Phase};
use jiff::Timestamp;
use kube::ResourceExt;

use super::agents::Statuses;
use crate::{
    child::Owner,
    controller::Context,
    error::Error,
    names::{RUN, role},
    pods::PodFacts,
    watches::{Controlled, Parent},
};

/// Everything a decision about a pool is made from.
#[derive(Clone, Debug)]
pub struct Seen {
    pub pool: InferencePool,
    pub owner: Owner,
    pub pods: Vec<PodFacts>,
    /// What the agents in them say.
    pub agents: Statuses,
    /// The run the pool was made for.
    pub run: Option<String>,
    /// The claim is one of a run that has ended or does not exist any more.
    pub claim_is_void: bool,
    pub now: Timestamp,
}

pub async fn read(pool: &InferencePool, context: &Context) -> Result<Seen, Error> {
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
    let pods = context.memory.with_made(&owner.uid, pods);
    Ok(Seen {
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
    let run = context.mirrors.runs.peek(namespace, &claim.name).await;
    run.is_none_or(|run| {
        let run = run.0.as_ref().ok();
        let phase = run.and_then(|run| run.status.as_ref()?.phase);
        let uid = run.and_then(|run| run.metadata.uid.as_ref());
        uid.is_some_and(|uid| *uid != claim.uid) || matches!(phase, Some(Phase::Succeeded | Phase::Failed))
    })
}
