//! Waits for a store's answer on a thread without a runtime.
//!
//! A folder's answers need no runtime. A bucket's do, for connections and pauses. The runtime has its own threads and
//! is created when a bucket is opened, so a process that opens only folders has none.

use super::error::StoreError;
use std::sync::OnceLock;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

static IO: OnceLock<Runtime> = OnceLock::new();

/// Waits on this thread for a store's answer: for threads without a runtime, or threads that may block within one.
///
/// Within a runtime the answer runs without tokio's poll budget. Once the budget is used up, tokio would hold the
/// answer back until this thread returns to the runtime, which it does not do while it waits.
pub fn wait<T>(answer: impl Future<Output = T>) -> T {
    // All threads of the caller's runtime may be waiting here.
    let _within = IO.get().map(Runtime::enter);
    futures::executor::block_on(tokio::task::unconstrained(answer))
}

/// After this call [`wait`] has threads for connections.
pub(super) fn needs_io_threads() -> Result<(), StoreError> {
    if IO.get().is_none() {
        let made = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("store")
            .enable_all()
            .build();
        let made = made.map_err(|source| StoreError::Threads { source })?;
        // If two threads create one, the second runtime is dropped unused, but not within a runtime.
        if let Err(unused) = IO.set(made) {
            unused.shutdown_background();
        }
    }
    Ok(())
}

/// Starts work on the store's threads, which outlive every caller's runtime; `None` if no bucket was opened.
pub(super) fn in_background<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Option<JoinHandle<T>> {
    IO.get().map(|threads| threads.spawn(work))
}
