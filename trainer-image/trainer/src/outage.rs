//! Waits for a store that does not answer for a while: a bucket that cannot be reached, a volume whose reads and writes
//! fail.
//!
//! The trainer repeats its own work on the store, with growing pauses: at the start, in the replay, for versions and
//! for checkpoints. A batch that the driver has ordered is not waited for here, because the driver orders its step
//! again. Durations come from the monotonic clock, so a jump of the wall clock changes nothing. [`StoreWaits`] has the
//! present waits, for the HTTP side.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::TrainError;

/// How long one piece of work may fail before the attempt ends: less than the half hour for which ranks wait for a busy
/// one ([`crate::watchdog`]). A bucket's client repeats each request for minutes before it fails.
const TOTAL: Duration = Duration::from_secs(900);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Numbers pieces of work, so that each has its own entry in [`StoreWaits`].
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What this process waits for in the store: the training thread, and the thread that writes a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct StoreWaits(Arc<Mutex<BTreeMap<u64, String>>>);

impl StoreWaits {
    /// The wait that began first, in words.
    pub fn now(&self) -> Option<String> {
        self.locked().values().next().cloned()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<u64, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long, and with which pauses, work is repeated while the store does not answer.
#[derive(Clone, Debug)]
pub struct Patience {
    total: Duration,
    first_pause: Duration,
    longest_pause: Duration,
    waits: StoreWaits,
}

impl Patience {
    /// The first error is the last.
    pub fn none() -> Self {
        Self::new(Duration::ZERO, Duration::ZERO, StoreWaits::default())
    }

    /// That of a run's trainer.
    pub fn of_run(waits: StoreWaits) -> Self {
        Self {
            longest_pause: LONGEST_PAUSE,
            ..Self::new(TOTAL, FIRST_PAUSE, waits)
        }
    }

    /// With equal pauses.
    pub fn new(total: Duration, pause: Duration, waits: StoreWaits) -> Self {
        Self {
            total,
            first_pause: pause,
            longest_pause: pause,
            waits,
        }
    }

    /// Does this work, and repeats it while the store does not answer.
    pub fn retry<T>(&self, mut work: impl FnMut() -> Result<T, TrainError>) -> Result<T, TrainError> {
        let mut outage = self.begin();
        loop {
            match work() {
                Ok(done) => {
                    outage.answered();
                    return Ok(done);
                }
                Err(error) => outage.wait(error)?,
            }
        }
    }

    /// For work that the caller repeats.
    pub fn begin(&self) -> Outage {
        Outage {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            next: self.first_pause,
            patience: self.clone(),
            since: None,
            tries: 0,
        }
    }
}

/// One piece of work, and its failures so far.
pub struct Outage {
    number: u64,
    patience: Patience,
    /// The first failure.
    since: Option<Instant>,
    next: Duration,
    tries: u32,
}

impl Outage {
    /// After a failed try: returns after a pause if the work is to be tried again, or else the error that ends it.
    pub fn wait(&mut self, error: TrainError) -> Result<(), TrainError> {
        let total = self.patience.total;
        if total.is_zero() || !error.is_outage() {
            return Err(error);
        }
        self.tries += 1;
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited + self.next > total {
            return Err(TrainError::StoreOutage {
                tries: self.tries,
                seconds: waited.as_secs(),
                source: Box::new(error),
            });
        }
        let said = format!(
            "waits for the store: {error} (try {} failed after {} s of at most {} s)",
            self.tries,
            waited.as_secs(),
            total.as_secs()
        );
        tracing::warn!("{said}");
        self.patience.waits.locked().insert(self.number, said);
        std::thread::sleep(self.next);
        self.next = (2 * self.next).min(self.patience.longest_pause);
        Ok(())
    }

    /// The work is done.
    pub fn answered(&self) {
        if let Some(since) = self.since {
            let seconds = since.elapsed().as_secs();
            tracing::info!(seconds, tries = self.tries, "the store answers again");
        }
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        self.patience.waits.locked().remove(&self.number);
    }
}

#[cfg(test)]
mod tests;
