//! The turns for creating pods while a ResourceQuota is short: see [`grpo_operator_core::quota`].

use std::sync::{Mutex, MutexGuard, PoisonError};

use grpo_operator_core::quota::{Maker, QuotaTurns, QuotaWait};
use jiff::Timestamp;

use crate::error::Error;

#[derive(Default)]
pub struct Quotas {
    turns: Mutex<QuotaTurns>,
}

impl Quotas {
    /// Why the maker may not create pods now; `None` if it may. `wants`: it lacks pods.
    pub fn ask(&self, maker: &Maker, wants: bool) -> Option<QuotaWait> {
        self.locked().ask(maker, wants, Timestamp::now())
    }

    /// Whether a quota refused a pod of the maker, or a claim on its devices; if so, the maker waits from now on.
    pub fn refused(&self, maker: &Maker, error: &Error) -> bool {
        let Some(said) = error.quota_refusal() else {
            return false;
        };
        tracing::info!(
            maker = maker.name,
            namespace = maker.namespace,
            said,
            "a quota refused a pod or a claim"
        );
        self.locked().refuse(maker, said, Timestamp::now());
        true
    }

    /// Forgets a maker.
    pub fn forget(&self, uid: &str) {
        self.locked().forget(uid);
    }

    fn locked(&self) -> MutexGuard<'_, QuotaTurns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
