//! Callers that wait for a lease. Each has a place; several may wait for the same lease, because callers ask again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpo_sandbox_protocol::{ErrorBody, Lease};
use tokio::sync::oneshot;

/// The answer to a caller.
pub type Told = Result<Lease, ErrorBody>;

type ByLease = HashMap<String, Vec<oneshot::Sender<Told>>>;

/// All waiting callers. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Waiters(Arc<Mutex<ByLease>>);

/// One caller's place. Dropping it leaves the place, for example when the caller's connection ends.
pub struct Place {
    waiters: Waiters,
    lease: String,
    told: oneshot::Receiver<Told>,
}

impl Waiters {
    pub fn join(&self, lease: &str) -> Place {
        let (tell, told) = oneshot::channel();
        self.lock().entry(lease.to_owned()).or_default().push(tell);
        Place {
            waiters: self.clone(),
            lease: lease.to_owned(),
            told,
        }
    }

    /// Answers all callers that wait for this lease.
    pub fn answer(&self, lease: &str, answer: Told) {
        for tell in self.lock().remove(lease).unwrap_or_default() {
            let _ = tell.send(answer.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, ByLease> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The answer, if it comes in time.
    pub async fn answer(&mut self, within: Duration) -> Option<Told> {
        match tokio::time::timeout(within, &mut self.told).await {
            Ok(told) => told.ok(),
            // The answer may come at the last moment.
            Err(_) => {
                self.told.close();
                self.told.try_recv().ok()
            }
        }
    }

    /// Gives up the place. Returns true if no other caller waits for the same lease.
    pub fn leave(mut self) -> bool {
        self.vacate()
    }

    fn vacate(&mut self) -> bool {
        self.told.close();
        let mut waiters = self.waiters.lock();
        let Some(others) = waiters.get_mut(&self.lease) else {
            return true;
        };
        others.retain(|other| !other.is_closed());
        let is_empty = others.is_empty();
        if is_empty {
            waiters.remove(&self.lease);
        }
        is_empty
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.vacate();
    }
}

#[cfg(test)]
mod tests;
