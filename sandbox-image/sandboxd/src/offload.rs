//! Blocking work, on separate threads and with a deadline: the loop that answers the gateway never waits for it.
//!
//! The workload can make a fork, an `open` or a read last for any time: it stops the child before its program begins,
//! puts a pipe in the place of a file, or takes a lease on it. All threads are started before the workload could leave
//! no room for them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Threads for blocking work.
pub const THREADS: usize = 8;
/// Deadline for the start of all threads. A sandbox that may have fewer works with fewer.
const STARTED_WITHIN: Duration = Duration::from_secs(1);

/// The work was not done in time. It continues, and its result is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was not done within {0:?}")]
pub struct Late(pub Duration);

/// Runs blocking work away from the loop.
pub async fn run<T: Send + 'static>(within: Duration, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Late> {
    let done = tokio::time::timeout(within, tokio::task::spawn_blocking(work)).await;
    // A task that panicked has no result either.
    done.ok().and_then(Result::ok).ok_or(Late(within))
}

/// Starts every thread, each by a task that ends when all threads have begun.
pub async fn start_threads() {
    let began = Arc::new((Mutex::new(0), Condvar::new()));
    let tasks: Vec<_> = (0..THREADS)
        .map(|_| {
            let began = began.clone();
            tokio::task::spawn_blocking(move || {
                let (count, changed) = &*began;
                let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
                *count += 1;
                changed.notify_all();
                drop(changed.wait_timeout_while(count, STARTED_WITHIN, |count| *count < THREADS));
            })
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
}

#[cfg(test)]
mod tests;
