//! Calls into the C++ shim. Each returns 0, or fails and leaves the exception's text; some return a pointer to a new
//! object.

use std::ffi::{c_char, c_int, c_void};

use tch::Tensor;

/// Runs a call and returns the exception's text as the error.
pub(crate) fn call(work: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<(), String> {
    let mut text = vec![0u8; 1024];
    match work(text.as_mut_ptr().cast(), text.len()) {
        0 => Ok(()),
        _ => {
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            // The lines after the first are C++'s stack.
            let thrown = String::from_utf8_lossy(&text[..end]);
            Err(thrown.lines().next().unwrap_or_default().to_owned())
        }
    }
}

/// [`call`] for a function whose third last argument receives a new object if it returns 0.
pub(crate) fn made(work: impl FnOnce(*mut *mut c_void, *mut c_char, usize) -> c_int) -> Result<*mut c_void, String> {
    let mut out = std::ptr::null_mut();
    call(|error, room| work(&mut out, error, room))?;
    Ok(out)
}

/// [`made`] for a function that allocates a tensor with `new` and passes its ownership to us.
pub(crate) fn made_tensor(work: impl FnOnce(*mut *mut c_void, *mut c_char, usize) -> c_int) -> Result<Tensor, String> {
    let tensor = made(work)?;
    // SAFETY: every call of the shim that is given here returns a new tensor, and only this handle frees it.
    Ok(unsafe { Tensor::from_ptr(tensor.cast()) })
}
