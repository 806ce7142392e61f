//! Kernels, copies and fills that a GPU ran for a computation, with their times: the measured counterpart of
//! [`crate::recorder`].

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crate::call::call;

type Each = extern "C" fn(*mut c_void, *const c_char, u64, u64);

unsafe extern "C" {
    fn grpo_profile_begin(error: *mut c_char, room: usize) -> c_int;
    fn grpo_profile_end(each: Each, into: *mut c_void, error: *mut c_char, room: usize) -> c_int;
}

/// A kernel, a copy or a fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuWork {
    /// The kernel's mangled name, or `Memcpy ..` or `Memset ..`.
    pub name: String,
    /// Since an unspecified instant.
    pub begin: Duration,
    pub took: Duration,
}

impl GpuWork {
    /// Whether it is a kernel. Others copy or fill memory.
    pub fn is_kernel(&self) -> bool {
        !self.name.starts_with("Memcpy") && !self.name.starts_with("Memset")
    }
}

/// Runs `work`, waits for the GPU, and returns its work in order. One at a time in a process.
pub fn profiled<T>(work: impl FnOnce() -> T) -> Result<(Vec<GpuWork>, T), String> {
    let mut found: Vec<GpuWork> = Vec::new();
    // SAFETY: takes a place for the error.
    call(|error, room| unsafe { grpo_profile_begin(error, room) })?;
    let done = catch_unwind(AssertUnwindSafe(work));
    // SAFETY: `into` is the list, which outlives the call, and `push` gets it back.
    let ended = call(|error, room| unsafe { grpo_profile_end(push, (&raw mut found).cast(), error, room) });
    let done = done.unwrap_or_else(|panic| resume_unwind(panic));
    ended?;
    found.sort_by_key(|work| work.begin);
    Ok((found, done))
}

extern "C" fn push(into: *mut c_void, name: *const c_char, begin: u64, nanos: u64) {
    // SAFETY: the shim passes the list of `profiled`, and a text that ends with a zero.
    let (found, name) = unsafe { (&mut *into.cast::<Vec<GpuWork>>(), CStr::from_ptr(name)) };
    found.push(GpuWork {
        name: name.to_string_lossy().into_owned(),
        begin: Duration::from_nanos(begin),
        took: Duration::from_nanos(nanos),
    });
}
