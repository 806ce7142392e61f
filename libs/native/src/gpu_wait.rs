//! Where the host waits for what a GPU computes: it may be another rank that keeps the GPU waiting, inside of a
//! collective. The watchdog sees such a wait as it sees the wait for a collective.
//!
//! A rank trains in the thread in which it joined the group, so its waits are noted by thread: the code that reads a
//! tensor need not know the group.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use tch::Device;

use crate::rendezvous_store::Progress;

/// As the watchdog names it.
const DOING: &str = "a wait for its GPU";

thread_local! {
    /// Of the rank that trains in this thread; none where it has no other ranks to wait for.
    static PROGRESS: RefCell<Weak<Progress>> = const { RefCell::new(Weak::new()) };
}

/// Waits of this thread are that rank's from here on.
pub(crate) fn counts_for(progress: &Arc<Progress>) {
    PROGRESS.set(Arc::downgrade(progress));
}

/// Does something that ends when `device` has computed what was asked of it before, such as reading a tensor.
pub fn wait_for<T>(device: Device, read: impl FnOnce() -> T) -> T {
    let progress = PROGRESS.with_borrow(Weak::upgrade);
    match progress.filter(|_| device.is_cuda()) {
        Some(progress) => progress.waiting(DOING, read),
        None => read(),
    }
}

#[cfg(test)]
mod tests;
