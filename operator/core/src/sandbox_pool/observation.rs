//! The observed state of a SandboxPool (`grpo.dev`), as input of a decision.

use std::sync::Arc;

use grpo_crds::SandboxPool;
use grpo_sandbox_protocol::PoolReport;
use jiff::Timestamp;

use crate::{desired_object::Owner, pods::PodFacts};

/// All input of a decision about a pool.
#[derive(Clone, Debug)]
pub struct SandboxPoolObservation {
    pub pool: SandboxPool,
    pub owner: Owner,
    pub gateway_pods: Vec<PodFacts>,
    pub sandbox_pods: Vec<PodFacts>,
    /// Leases in the ledger.
    pub leases: usize,
    /// The gateway's report on the pool.
    pub report: Option<Arc<PoolReport>>,
    /// The run the pool was made for.
    pub run: Option<String>,
    pub now: Timestamp,
}
