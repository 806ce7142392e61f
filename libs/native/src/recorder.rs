//! Operations of a computation, counted without a GPU: launches, floating-point operations and bytes.
//!
//! Input: tensors of [`meta`], which have shapes and no memory. In bf16 such a tensor stands for one on a Hopper GPU:
//! this crate makes the same calls for it, kernels of its own included, and nothing is computed, so a block of a model
//! of any size takes milliseconds. Code that reads a value, or creates a tensor on the device of another one, does not
//! support them.

use std::ffi::{CStr, c_char, c_int, c_void};

use tch::{Device, Kind, Tensor};

use crate::call::made_tensor;

type Each = extern "C" fn(*mut c_void, *const c_char, f64, f64, f64);

unsafe extern "C" {
    fn grpo_record_begin();
    fn grpo_record_end(each: Each, into: *mut c_void);
    fn grpo_meta(
        like: *mut c_void,
        size: *const i64,
        dims: usize,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
}

/// One call of a kernel of this crate (`grpo::`) or of libtorch's (`aten::`).
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    pub name: String,
    /// Floating-point operations of products; 0 for others.
    pub flops: f64,
    /// Bytes of the tensors that it reads and writes, each once.
    pub read: f64,
    pub written: f64,
}

/// Runs `work`, and returns its operations in this thread. Views and allocations are not among them.
pub fn recorded<T>(work: impl FnOnce() -> T) -> (Vec<Operation>, T) {
    let mut operations: Vec<Operation> = Vec::new();
    // SAFETY: installs an observer of this thread.
    unsafe { grpo_record_begin() };
    let recording = Recording(&mut operations);
    let done = work();
    drop(recording);
    (operations, done)
}

/// Ends the recording, also if the work panics.
struct Recording<'a>(&'a mut Vec<Operation>);

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let operations: *mut Vec<Operation> = self.0;
        // SAFETY: `into` is the list, which outlives the call, and `push` gets it back.
        unsafe { grpo_record_end(push, operations.cast()) };
    }
}

extern "C" fn push(into: *mut c_void, name: *const c_char, flops: f64, read: f64, written: f64) {
    // SAFETY: the shim passes the list of `recorded`, and a text that ends with a zero.
    let (operations, name) = unsafe { (&mut *into.cast::<Vec<Operation>>(), CStr::from_ptr(name)) };
    operations.push(Operation {
        name: name.to_string_lossy().into_owned(),
        flops,
        read,
        written,
    });
}

/// A contiguous tensor of this shape and kind without memory.
pub fn meta(size: &[i64], kind: Kind) -> Result<Tensor, String> {
    let mut like = Tensor::empty([0], (kind, Device::Cpu));
    // SAFETY: tensor and sizes outlive the call.
    made_tensor(|out, error, room| unsafe {
        grpo_meta(like.as_mut_ptr().cast(), size.as_ptr(), size.len(), out, error, room)
    })
}
