//! Whether the pool is still this gateway's, asked of the ledger where being wrong would do harm.
//!
//! A gateway that was followed by another hears of it with its next write, or within seconds. Until then it must not
//! say what only the pool's gateway knows, and must make no pod: its follower makes as many as the pool may have.

use std::time::{Duration, Instant};

use grpo_sandbox_protocol::ErrorBody;

use super::Core;
use super::release::{TAKEN_WITHIN, unavailable};
use crate::ledger::LedgerError;

/// So long what the ledger said is believed when pods are made.
const BELIEVED_FOR: Duration = Duration::from_millis(250);
/// A gateway that follows another makes its first pod after so long. Until then the one before may have made some, and
/// the watch tells of them late.
const FIRST_POD_AFTER: Duration = Duration::from_secs(2);

impl Core {
    /// Returns when a pod may be made; false when that is another gateway's to do.
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
            // An API server that does not answer makes no pod either.
            Ok(Err(_)) | Err(_) => true,
        }
    }

    /// Whether the pool is still this gateway's. Another gateway may have granted leases that this one does not know.
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
