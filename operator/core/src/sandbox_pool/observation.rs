//! What there is of a SandboxPool (`grpo.dev`) when it is decided upon.

use std::sync::Arc;

use grpo_crds::SandboxPool;
use grpo_sandbox_protocol::PoolReport;
use jiff::Timestamp;

use crate::{desired_object::Owner, pods::PodFacts};

/// Everything a decision about a pool is made from.
#[derive(Clone, Debug)]
pub struct SandboxPoolObservation {
    pub pool: SandboxPool,
    pub owner: Owner,
    pub gateway_pods: Vec<PodFacts>,
    pub sandbox_pods: Vec<PodFacts>,
    /// Leases in the ledger.
    pub leases: usize,
    /// What the gateway tells of the pool.
    pub report: Option<Arc<PoolReport>>,
    /// The run the pool was made for.
    pub run: Option<String>,
    pub now: Timestamp,
}
