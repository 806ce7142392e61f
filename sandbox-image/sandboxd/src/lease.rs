//! To whom the sandbox belongs, and until when.
//!
//! The first signed bind decides; from then on another lease or epoch is refused, so a gateway that lost its memory cannot give one sandbox to
//! two holders. When the time to live passes without a renewal, sandboxd ends by itself: a lost gateway leaks nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Longest time to live that is believed.
const MAX_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    #[error("this sandbox is bound to lease {bound}")]
    OtherLease { bound: String },
    #[error("this sandbox is not bound to a lease yet")]
    Unbound,
}

struct Bound {
    lease: String,
    epoch: u64,
    until: Instant,
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
        });
        drop(bound);
        self.changed.notify_one();
        Ok(())
    }

    /// Whether a bind to this lease could succeed now.
    pub fn admits(&self, lease: &str, epoch: u64) -> Result<(), LeaseError> {
        admits(self.lock().as_ref(), lease, epoch)
    }

    /// Whether a request for this lease may be obeyed.
    pub fn check(&self, lease: &str, epoch: u64) -> Result<(), LeaseError> {
        match self.lock().as_ref() {
            None => Err(LeaseError::Unbound),
            Some(bound) if bound.lease == lease && bound.epoch == epoch => Ok(()),
            Some(bound) => Err(LeaseError::OtherLease {
                bound: bound.lease.clone(),
            }),
        }
    }

    /// Returns when the lease has run out.
    pub async fn expired(&self) {
        loop {
            let until = self.lock().as_ref().map(|bound| bound.until);
            match until {
                None => self.changed.notified().await,
                Some(until) if until <= Instant::now() => return,
                Some(until) => {
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
        Some(other) if other.lease != lease || other.epoch != epoch => Err(LeaseError::OtherLease {
            bound: other.lease.clone(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lease_keeps_the_sandbox() {
        let binding = Binding::default();
        assert_eq!(binding.check("a", 1), Err(LeaseError::Unbound));
        assert_eq!(binding.admits("b", 1), Ok(()));
        assert_eq!(binding.bind("a", 1, 60), Ok(()));
        assert_eq!(binding.bind("a", 1, 60), Ok(()));
        for (lease, epoch) in [("b", 1), ("a", 2)] {
            assert_eq!(
                binding.bind(lease, epoch, 60),
                Err(LeaseError::OtherLease { bound: "a".to_owned() })
            );
            assert!(binding.check(lease, epoch).is_err() && binding.admits(lease, epoch).is_err());
        }
        assert_eq!(binding.check("a", 1), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_nobody_renews_runs_out() {
        let binding = Binding::default();
        binding.bind("a", 1, 10).unwrap();
        let began = Instant::now();
        binding.expired().await;
        assert!(began.elapsed() >= Duration::from_secs(10) && began.elapsed() < Duration::from_secs(11));
    }
}
