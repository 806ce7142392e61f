//! Waiting for a store's answer on a thread that has no runtime.
//!
//! A folder's answers need none. A bucket's do: connections and pauses live in a runtime. It has threads of its own and
//! exists as soon as a bucket was opened, so that a process with a folder has none.

use super::error::StoreError;
use std::sync::OnceLock;
use tokio::runtime::{Builder, Runtime};

static IO: OnceLock<Runtime> = OnceLock::new();

/// Waits on this thread for a store's answer: for threads that have no runtime, or may wait within one.
///
/// Within a runtime the answer has no budget of polls: tokio would hold it back when the budget is used up, until this
/// thread returns to the runtime, which it does not while it waits.
pub fn wait<T>(answer: impl Future<Output = T>) -> T {
    // The threads of the caller's runtime may all be waiting here.
    let _within = IO.get().map(Runtime::enter);
    futures::executor::block_on(tokio::task::unconstrained(answer))
}

/// From here on [`wait`] has threads for connections.
pub(super) fn needs_io_threads() -> Result<(), StoreError> {
    if IO.get().is_none() {
        let made = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("store")
            .enable_all()
            .build();
        let made = made.map_err(|source| StoreError::Threads { source })?;
        // Of two that make one, the second goes away unused, but not within a runtime.
        if let Err(unused) = IO.set(made) {
            unused.shutdown_background();
        }
    }
    Ok(())
}
