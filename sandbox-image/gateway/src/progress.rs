//! Whether the gateway makes progress. Its scheduler says so in each round, a second apart at most. A round that hangs,
//! or a scheduler that has ended, leaves a process that answers and grants nothing.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A scheduler that says nothing for so long makes no progress. The kubelet then restarts the gateway.
pub const STALLED_AFTER: Duration = Duration::from_secs(60);

/// When the scheduler began its last round.
#[derive(Default)]
pub struct Progress(Mutex<Option<Instant>>);

impl Progress {
    /// A round begins.
    pub fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// How long ago the last round began, if that is too long. Before the first one nothing is late.
    pub fn stalled(&self) -> Option<Duration> {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|last| last.elapsed()).filter(|ago| *ago >= STALLED_AFTER)
    }
}
