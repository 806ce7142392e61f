//! Checks with the ledger that this gateway still owns the pool, before steps where an error would do harm.
//!
//! A gateway with a successor learns of it with its next write, or within seconds. Until then it must not give answers
//! that only the pool's owner can know, and must make no pods: its successor makes as many as the pool may have.

use std::time::{Duration, Instant};

use grpo_sandbox_protocol::ErrorBody;

use super::Core;
use super::release::{TAKEN_WITHIN, unavailable};
use crate::ledger::LedgerError;

/// How long an answer of the ledger counts when pods are made.
const BELIEVED_FOR: Duration = Duration::from_millis(250);
/// A gateway with a predecessor waits this long before its first pod. Until then the predecessor may have made some,
/// and the watch reports them late.
const FIRST_POD_AFTER: Duration = Duration::from_secs(2);

impl Core {
    /// Returns when a pod may be made; false if another gateway owns the pool.
    pub(super) async fn may_make_pods(&self) -> bool {
        let Some(fencing) = &self.fencing else {
            return true;
        };
        if self.template.term > 1 {
            tokio::time::sleep_until((self.began + FIRST_POD_AFTER).into()).await;
        }
        let mut proven = self.proven.lock().await;
        if proven.is_some_and(|at| at.elapsed() < BELIEVED_FOR) {
            return true;
        }
        let asked = Instant::now();
        match tokio::time::timeout(TAKEN_WITHIN, fencing.is_ours()).await {
            Ok(Err(LedgerError::Fenced { .. })) => {
                self.replaced.notify_one();
                false
            }
            Ok(Ok(())) => {
                *proven = Some(asked);
                true
            }
            // If the API server does not answer, it makes no pod either.
            Ok(Err(_)) | Err(_) => true,
        }
    }

    /// Whether this gateway still owns the pool. Another gateway may have granted leases that this one does not know.
    pub async fn owns_pool(&self) -> Result<(), ErrorBody> {
        let Some(fencing) = &self.fencing else {
            return Ok(());
        };
        let asked = async {
            let _turn = self.fencing_checks.acquire().await;
            fencing.is_ours().await
        };
        let why = match tokio::time::timeout(TAKEN_WITHIN, asked).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the API server does not answer".to_owned(),
        };
        Err(unavailable(format!(
            "this gateway knows of no such lease, and whether another has the pool now is not certain ({why}); ask again"
        )))
    }
}
