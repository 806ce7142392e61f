//! Observes a SandboxPool (`grpo.dev`): pods of gateway and sandboxes, and leases, all from memory.

use grpo_crds::SandboxPool;
use grpo_operator_core::{
    desired_object::Owner,
    names::{self, RUN, role},
    sandbox_pool::observation::SandboxPoolObservation,
};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::{context::Context, error::Error, parent::Parent, watches::ledgers::LedgerFacts};

pub fn read(pool: &SandboxPool, context: &Context) -> Result<SandboxPoolObservation, Error> {
    let owner = Owner::of(pool).ok_or_else(|| Error::Nameless {
        what: format!("SandboxPool {}", pool.name_any()),
    })?;
    let parent = Parent::sandbox_pool(&owner);
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
    Ok(SandboxPoolObservation {
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
