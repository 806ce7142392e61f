//! The switch between this crate's own kernels and libtorch's operations.

use std::cell::Cell;
use std::ffi::c_int;

thread_local! {
    static GENERIC: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with libtorch's operations in place of this crate's kernels, on any device: for attention's pieces,
/// their merging, rotation and norms. A GPU always computes so, except in bf16, for which it has kernels. The backward
/// pass uses the same way as its forward pass.
pub fn generic<T>(work: impl FnOnce() -> T) -> T {
    let before = GENERIC.replace(true);
    let done = work();
    GENERIC.set(before);
    done
}

pub(crate) fn is_generic() -> c_int {
    c_int::from(GENERIC.get())
}
