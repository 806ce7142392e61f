//! The lease that owns the sandbox, and its expiry.
//!
//! The first signed bind decides. Afterwards sandboxd refuses any other lease or epoch, so a gateway that lost its
//! memory cannot give one sandbox to two holders. After the order to end, it refuses every call. When the time to live
//! passes without a renewal, sandboxd ends by itself: a lost gateway leaks nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum time to live.
const MAX_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    #[error("this sandbox is bound to lease {bound}")]
    OtherLease { bound: String },
    #[error("this sandbox is not bound to a lease yet")]
    Unbound,
    #[error("this sandbox was given back, and ends")]
    Ending,
}

/// Why the sandbox ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The lease was not renewed in time.
    Expired,
    /// The lease was released, and the container must restart.
    Reset,
}

struct Bound {
    lease: String,
    epoch: u64,
    until: Instant,
    is_ending: bool,
}

/// The sandbox's lease. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Binding {
    bound: Arc<Mutex<Option<Bound>>>,
    changed: Arc<Notify>,
}

impl Binding {
    /// Binds, or confirms the same lease with a new time to live.
    pub fn bind(&self, lease: &str, epoch: u64, ttl_seconds: u64) -> Result<(), LeaseError> {
        let until = Instant::now() + Duration::from_secs(ttl_seconds).min(MAX_TTL);
        let mut bound = self.lock();
        admits(bound.as_ref(), lease, epoch)?;
        *bound = Some(Bound {
            lease: lease.to_owned(),
            epoch,
            until,
            is_ending: false,
        });
        drop(bound);
        self.changed.notify_one();
        Ok(())
    }

    /// Whether a bind to this lease could succeed now.
    pub fn admits(&self, lease: &str, epoch: u64) -> Result<(), LeaseError> {
        admits(self.lock().as_ref(), lease, epoch)
    }

    /// The lease is released: the sandbox ends.
    pub fn end(&self, lease: &str, epoch: u64) -> Result<(), LeaseError> {
        self.check(lease, epoch)?;
        if let Some(bound) = self.lock().as_mut() {
            bound.is_ending = true;
        }
        self.changed.notify_one();
        Ok(())
    }

    pub fn is_ending(&self) -> bool {
        self.lock().as_ref().is_some_and(|bound| bound.is_ending)
    }

    /// Whether a request for this lease may be obeyed.
    pub fn check(&self, lease: &str, epoch: u64) -> Result<(), LeaseError> {
        match self.lock().as_ref() {
            None => Err(LeaseError::Unbound),
            Some(bound) if bound.is_ending => Err(LeaseError::Ending),
            Some(bound) if bound.lease == lease && bound.epoch == epoch => Ok(()),
            Some(bound) => Err(LeaseError::OtherLease {
                bound: bound.lease.clone(),
            }),
        }
    }

    /// Returns when the lease has expired or was released.
    pub async fn ended(&self) -> End {
        loop {
            let until = self.lock().as_ref().map(|bound| (bound.until, bound.is_ending));
            match until {
                None => self.changed.notified().await,
                Some((_, true)) => return End::Reset,
                Some((until, false)) if until <= Instant::now() => return End::Expired,
                Some((until, false)) => {
                    let _ = tokio::time::timeout_at(until, self.changed.notified()).await;
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Bound>> {
        self.bound.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn admits(bound: Option<&Bound>, lease: &str, epoch: u64) -> Result<(), LeaseError> {
    match bound {
        Some(bound) if bound.is_ending => Err(LeaseError::Ending),
        Some(other) if other.lease != lease || other.epoch != epoch => Err(LeaseError::OtherLease {
            bound: other.lease.clone(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
