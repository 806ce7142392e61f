//! Exponential back-off.

use std::time::Duration;

/// A first pause, doubled up to the longest.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

/// Back-off before failed pods are created again: pods of an attempt, and of a replica.
pub const FAILED_PODS: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));

impl Backoff {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The pause after this number of doublings.
    pub fn pause(&self, doublings: u32) -> Duration {
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests;
