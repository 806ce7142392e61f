//! The GPU of a rank, the memory of its device, and copies of tensors between GPU and host.

use std::ffi::{c_char, c_int, c_void};

use tch::{Device, Tensor};

use crate::call::{call, made_tensor};

unsafe extern "C" {
    fn grpo_use_gpu(index: c_int, error: *mut c_char, room: usize) -> c_int;
    fn grpo_gpu_name(index: c_int, name: *mut c_char, name_room: usize, error: *mut c_char, room: usize) -> c_int;
    fn grpo_gpu_free(index: c_int, bytes: *mut u64, error: *mut c_char, room: usize) -> c_int;
    fn grpo_gpu_peak(index: c_int, bytes: *mut u64, error: *mut c_char, room: usize) -> c_int;
    fn grpo_gpu_total(index: c_int, bytes: *mut u64, error: *mut c_char, room: usize) -> c_int;
    fn grpo_return_gpu_memory(index: c_int, error: *mut c_char, room: usize) -> c_int;
    fn grpo_return_host_memory();
    fn grpo_compute_deterministically(on: c_int);
    fn grpo_computes_deterministically() -> c_int;
    fn grpo_host_copy(x: *mut c_void, out: *mut *mut c_void, error: *mut c_char, room: usize) -> c_int;
    fn grpo_copy_into_host(x: *mut c_void, host: *mut c_void, error: *mut c_char, room: usize) -> c_int;
    fn grpo_finish_host_copies(index: c_int, error: *mut c_char, room: usize) -> c_int;
    fn grpo_pinned(x: *mut c_void, out: *mut *mut c_void, error: *mut c_char, room: usize) -> c_int;
    fn grpo_gpu_copy(x: *mut c_void, index: c_int, out: *mut *mut c_void, error: *mut c_char, room: usize) -> c_int;
    fn grpo_wait_for_copies(index: c_int, error: *mut c_char, room: usize) -> c_int;
    fn grpo_sent(x: *mut c_void, index: c_int, out: *mut *mut c_void, error: *mut c_char, room: usize) -> c_int;
}

/// CUDA's limit for a name.
const NAME_BYTES: usize = 256;

/// A tensor could not be copied between the host and a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("copying a tensor of shape {shape:?} {way}: {message}")]
pub struct CopyError {
    /// `to the host`, `to GPU 0`.
    pub way: String,
    pub shape: Vec<i64>,
    pub message: String,
}

/// Selects a GPU for this thread's CUDA calls; `index` counts the GPUs that the process sees. The error names what is
/// missing: the GPU, or CUDA in the build (see `GRPO_CUDA` in build.rs).
pub fn use_gpu(index: usize) -> Result<(), String> {
    // SAFETY: takes a number.
    call(|error, room| unsafe { grpo_use_gpu(index as c_int, error, room) })
}

/// The GPU's name from its driver, such as `NVIDIA H100 80GB HBM3`.
pub fn gpu_name(index: usize) -> Result<String, String> {
    let mut name = vec![0u8; NAME_BYTES];
    // SAFETY: the place for the name outlives the call, which writes no more than fits and ends it with a zero.
    call(|error, room| unsafe { grpo_gpu_name(index as c_int, name.as_mut_ptr().cast(), name.len(), error, room) })?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// Bytes of the GPU's memory that this process could use now: free memory, and freed tensors' memory that libtorch
/// keeps.
pub fn gpu_free(index: usize) -> Result<u64, String> {
    let mut bytes = 0;
    // SAFETY: the place for the number outlives the call.
    call(|error, room| unsafe { grpo_gpu_free(index as c_int, &mut bytes, error, room) })?;
    Ok(bytes)
}

/// Most bytes of this process's tensors on the GPU since the last call. The first call is after the first tensor.
pub fn gpu_peak(index: usize) -> Result<u64, String> {
    let mut bytes = 0;
    // SAFETY: the place for the number outlives the call.
    call(|error, room| unsafe { grpo_gpu_peak(index as c_int, &mut bytes, error, room) })?;
    Ok(bytes)
}

/// Total bytes of the GPU's memory.
pub fn gpu_total(index: usize) -> Result<u64, String> {
    let mut bytes = 0;
    // SAFETY: the place for the number outlives the call.
    call(|error, room| unsafe { grpo_gpu_total(index as c_int, &mut bytes, error, room) })?;
    Ok(bytes)
}

/// Waits for the work of this thread's device, and gives the memory that no tensor holds back: a GPU's to the other
/// processes that use the GPU, the host's to the system. Without this call the process keeps it for later tensors.
pub fn return_memory(device: Device) -> Result<(), String> {
    if let Device::Cuda(index) = device {
        // SAFETY: takes a number.
        return call(|error, room| unsafe { grpo_return_gpu_memory(index as c_int, error, room) });
    }
    // SAFETY: takes nothing, and changes only memory that is free.
    unsafe { grpo_return_host_memory() }
    Ok(())
}

/// Sets whether the process computes the same bits every time on a GPU (true), or may sum in any order (false). On the
/// CPU it always computes the same bits.
pub fn compute_deterministically(on: bool) {
    // SAFETY: sets two flags of the process.
    unsafe { grpo_compute_deterministically(c_int::from(on)) }
}

/// The last setting of [`compute_deterministically`].
pub fn computes_deterministically() -> bool {
    // SAFETY: reads a flag.
    unsafe { grpo_computes_deterministically() != 0 }
}

/// A copy in pinned memory, made beside the computation, on its own stream, after the computation's work so far.
/// [`start_gpu_copy`] sees the complete copy, the process does not. For a tensor on the host, returns the tensor
/// itself.
pub fn host_copy(x: &Tensor) -> Result<Tensor, CopyError> {
    copied(x, Device::Cpu, |from, out, error, room| {
        // SAFETY: the tensor outlives the call.
        unsafe { grpo_host_copy(from, out, error, room) }
    })
}

/// Begins to copy `x` from a GPU into `host`, a result of [`pinned`] of the same shape, beside the computation, after
/// its work so far. [`start_gpu_copy`] sees the complete copy; the process does after [`finish_host_copies`].
pub fn start_copy_into(x: &Tensor, host: &mut Tensor) -> Result<(), CopyError> {
    let (mut from, shape) = (x.shallow_clone(), x.size());
    let failed = |message: String| CopyError {
        way: "to the host".to_owned(),
        shape: shape.clone(),
        message,
    };
    if host.size() != shape || host.kind() != x.kind() {
        return Err(failed(format!("its place has shape {:?}", host.size())));
    }
    // SAFETY: the shim keeps the GPU's tensor until it is copied; the memory of `pinned` waits for the GPU before it is
    // freed.
    call(|error, room| unsafe { grpo_copy_into_host(from.as_mut_ptr().cast(), host.as_mut_ptr().cast(), error, room) })
        .map_err(failed)
}

/// Waits for this thread's copies to the host.
pub fn finish_host_copies(index: usize) -> Result<(), String> {
    // SAFETY: takes a number.
    call(|error, room| unsafe { grpo_finish_host_copies(index as c_int, error, room) })
}

/// The same values in pinned memory of the host. Needs a GPU.
pub fn pinned(x: &Tensor) -> Result<Tensor, CopyError> {
    copied(x, Device::Cpu, |from, out, error, room| {
        // SAFETY: the tensor outlives the call.
        unsafe { grpo_pinned(from, out, error, room) }
    })
}

/// Begins to copy a result of [`host_copy`] or [`pinned`] to a GPU, beside the computation. Call [`wait_for_copies`]
/// before its first use, and before it is dropped.
pub fn start_gpu_copy(x: &Tensor, index: usize) -> Result<Tensor, CopyError> {
    copied(x, Device::Cuda(index), |from, out, error, room| {
        // SAFETY: the tensor outlives the call.
        unsafe { grpo_gpu_copy(from, index as c_int, out, error, room) }
    })
}

/// Makes the GPU's later computation wait for this thread's copies that have begun. The process continues.
pub fn wait_for_copies(index: usize) -> Result<(), String> {
    // SAFETY: takes a number.
    call(|error, room| unsafe { grpo_wait_for_copies(index as c_int, error, room) })
}

/// The tensor on a device. From the host to a GPU it passes through pinned memory, so that the process does not wait
/// for the GPU's earlier work.
pub fn sent(x: &Tensor, device: Device) -> Result<Tensor, CopyError> {
    let (Device::Cpu, Device::Cuda(index)) = (x.device(), device) else {
        return Ok(x.to_device(device));
    };
    copied(x, device, |from, out, error, room| {
        // SAFETY: the tensor outlives the call.
        unsafe { grpo_sent(from, index as c_int, out, error, room) }
    })
}

/// A copy by one of the shim's calls; an error names the tensor and the device.
fn copied(
    x: &Tensor,
    to: Device,
    copy: impl FnOnce(*mut c_void, *mut *mut c_void, *mut c_char, usize) -> c_int,
) -> Result<Tensor, CopyError> {
    let mut from = x.shallow_clone();
    made_tensor(|out, error, room| copy(from.as_mut_ptr().cast(), out, error, room)).map_err(|message| CopyError {
        way: match to {
            Device::Cuda(index) => format!("to GPU {index}"),
            _ => "to the host".to_owned(),
        },
        shape: x.size(),
        message,
    })
}

#[cfg(test)]
mod tests;
