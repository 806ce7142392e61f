//! Exact bytes of libtorch's tensors on the CPU, to check memory estimates.

unsafe extern "C" {
    fn grpo_memory_count();
    fn grpo_memory_now() -> i64;
    fn grpo_memory_peak() -> i64;
    fn grpo_memory_reset();
}

/// Counts every new tensor from now on, until the process ends. Call it before the first one.
pub fn count() {
    // SAFETY: takes nothing; the allocator it installs is never freed.
    unsafe { grpo_memory_count() }
}

/// Bytes held now.
pub fn now() -> u64 {
    // SAFETY: reads a number.
    unsafe { grpo_memory_now() }.max(0) as u64
}

/// Most bytes held since [`reset_peak`].
pub fn peak() -> u64 {
    // SAFETY: reads a number.
    unsafe { grpo_memory_peak() }.max(0) as u64
}

pub fn reset_peak() {
    // SAFETY: sets a number.
    unsafe { grpo_memory_reset() }
}
