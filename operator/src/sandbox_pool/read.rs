//! What there is of a SandboxPool (`grpo.dev`): its gateway's and sandboxes' pods and its leases, all from memory.

use std::sync::Arc;

use grpo_crds::SandboxPool;
use grpo_sandbox_protocol::PoolReport;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    child::Owner,
    controller::Context,
    error::Error,
    names::{self, RUN, role},
    pods::PodFacts,
    watches::{Controlled, LedgerFacts, Parent},
};

/// Everything a decision about a pool is made from.
#[derive(Clone, Debug)]
pub struct Seen {
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

pub fn read(pool: &SandboxPool, context: &Context) -> Result<Seen, Error> {
    let owner = Owner::of(pool).ok_or_else(|| Error::Nameless {
        what: format!("SandboxPool {}", pool.name_any()),
    })?;
    let parent = Parent {
        kind: Controlled::SandboxPool,
        namespace: owner.namespace.clone(),
        name: owner.name.clone(),
    };
    let pods = |role: &str| {
        context
            .pods
            .pods(&parent, role)
            .into_iter()
            .map(|pod| pod.facts)
            .collect()
    };
    let ledgers: Vec<LedgerFacts> = names::ledgers(&owner.name, pool.spec.max)
        .iter()
        .map(|ledger| context.ledgers.facts(&owner.namespace, ledger))
        .collect();
    Ok(Seen {
        gateway_pods: pods(role::GATEWAY),
        sandbox_pods: pods(role::SANDBOX),
        leases: ledgers.iter().map(|ledger| ledger.leases).sum(),
        report: ledgers.into_iter().find_map(|ledger| ledger.report),
        run: pool.labels().get(RUN).cloned(),
        now: Timestamp::now(),
        pool: pool.clone(),
        owner,
    })
}
