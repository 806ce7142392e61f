//! The observed state of an InferencePool (`grpo.dev`), as input of a decision.

use std::collections::BTreeMap;

use grpo_crds::InferencePool;
use grpo_engine_protocol::AgentStatus;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::{desired_object::Owner, names::RUN, pods::PodFacts, quota::QuotaWait};

/// Reports of a pool's agents, by the name of their pod.
pub type Statuses = BTreeMap<String, AgentStatus>;

/// All input of a decision about a pool.
#[derive(Clone, Debug)]
pub struct InferencePoolObservation {
    pub pool: InferencePool,
    pub owner: Owner,
    pub pods: Vec<PodFacts>,
    /// Engine pods of an earlier pool with this name, which was deleted.
    pub earlier_pods: Vec<PodFacts>,
    /// Reports of the agents in the pods.
    pub agents: Statuses,
    /// The run the pool was made for.
    pub run: Option<String>,
    /// The claim's run has ended or no longer exists.
    pub claim_is_void: bool,
    /// Why no pods are created now, if a ResourceQuota is short.
    pub quota: Option<QuotaWait>,
    pub now: Timestamp,
}

impl InferencePoolObservation {
    /// A pool that was just made: it has no pods yet.
    pub fn just_made(pool: InferencePool, owner: Owner, now: Timestamp) -> Self {
        Self {
            owner,
            run: pool.labels().get(RUN).cloned(),
            pool,
            pods: Vec::new(),
            earlier_pods: Vec::new(),
            agents: Statuses::new(),
            claim_is_void: false,
            quota: None,
            now,
        }
    }
}
