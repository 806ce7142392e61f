//! Waits of the host for a GPU, which may itself wait for another rank inside of a collective. The watchdog sees such a
//! wait like the wait for a collective.
//!
//! A rank trains in the thread in which it joined the group, so waits are recorded by thread: code that reads a tensor
//! need not know the group.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

use tch::Device;

use crate::rendezvous_store::Progress;

/// The watchdog's name for it.
const DOING: &str = "a wait for its GPU";

thread_local! {
    /// Progress of the rank that trains in this thread; empty if there are no other ranks.
    static PROGRESS: RefCell<Weak<Progress>> = const { RefCell::new(Weak::new()) };
    static WAITS: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread has waited, or would have if its tensors were on a GPU.
pub fn waits() -> u64 {
    WAITS.get()
}

/// Records this thread's waits in `progress` from now on.
pub(crate) fn counts_for(progress: &Arc<Progress>) {
    PROGRESS.set(Arc::downgrade(progress));
}

/// Runs `read`, which ends when `device` has finished its queued work, such as reading a tensor.
pub fn wait_for<T>(device: Device, read: impl FnOnce() -> T) -> T {
    WAITS.set(WAITS.get() + 1);
    let progress = PROGRESS.with_borrow(Weak::upgrade);
    match progress.filter(|_| device.is_cuda()) {
        Some(progress) => progress.waiting(DOING, read),
        None => read(),
    }
}

#[cfg(test)]
mod tests;
