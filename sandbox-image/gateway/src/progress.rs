//! The scheduler's progress. The scheduler beats in each round, at most a second apart. If a round hangs or the
//! scheduler has ended, the process still answers but grants nothing.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A scheduler without a beat for this long is stalled. The kubelet then restarts the gateway.
pub const STALLED_AFTER: Duration = Duration::from_secs(60);

/// When the scheduler began its last round.
#[derive(Default)]
pub struct Progress(Mutex<Option<Instant>>);

impl Progress {
    /// A round begins.
    pub fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// The time since the last round began, if it is too long. `None` before the first round.
    pub fn stalled(&self) -> Option<Duration> {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|last| last.elapsed()).filter(|ago| *ago >= STALLED_AFTER)
    }
}
