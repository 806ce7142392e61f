//! What there is of an InferencePool (`grpo.dev`) when it is decided upon.

use std::collections::BTreeMap;

use grpo_crds::InferencePool;
use grpo_engine_protocol::AgentStatus;
use jiff::Timestamp;

use crate::{desired_object::Owner, pods::PodFacts, quota::QuotaWait};

/// What the agents of a pool said, by the name of their pod.
pub type Statuses = BTreeMap<String, AgentStatus>;

/// Everything a decision about a pool is made from.
#[derive(Clone, Debug)]
pub struct InferencePoolObservation {
    pub pool: InferencePool,
    pub owner: Owner,
    pub pods: Vec<PodFacts>,
    /// What the agents in them say.
    pub agents: Statuses,
    /// The run the pool was made for.
    pub run: Option<String>,
    /// The claim is one of a run that has ended or does not exist any more.
    pub claim_is_void: bool,
    /// Why no pods are made now, where a ResourceQuota is short.
    pub quota: Option<QuotaWait>,
    pub now: Timestamp,
}
