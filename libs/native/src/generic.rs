//! Whether this crate computes by its own kernels, or by libtorch's operations alone.

use std::cell::Cell;
use std::ffi::c_int;

thread_local! {
    static GENERIC: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with what this crate computes by libtorch's operations alone, on any device: attention's pieces, their
/// merging, rotation and norms. A GPU computes so but in bf16, for which it has kernels. What was computed so is
/// differentiated so.
pub fn generic<T>(work: impl FnOnce() -> T) -> T {
    let before = GENERIC.replace(true);
    let done = work();
    GENERIC.set(before);
    done
}

pub(crate) fn is_generic() -> c_int {
    c_int::from(GENERIC.get())
}
