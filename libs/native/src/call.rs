//! Calls into the C++ shim. Each answers 0, or leaves the text of what was thrown there; some leave a pointer to what
//! they made.

use std::ffi::{c_char, c_int, c_void};

use tch::Tensor;

/// Calls, and takes the text of what was thrown.
pub(crate) fn call(work: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<(), String> {
    let mut text = vec![0u8; 1024];
    match work(text.as_mut_ptr().cast(), text.len()) {
        0 => Ok(()),
        _ => {
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            // What follows the first line is C++'s stack.
            let thrown = String::from_utf8_lossy(&text[..end]);
            Err(thrown.lines().next().unwrap_or_default().to_owned())
        }
    }
}

/// The same of a call whose third last argument is a place for what it makes: written where 0 is returned.
pub(crate) fn made(work: impl FnOnce(*mut *mut c_void, *mut c_char, usize) -> c_int) -> Result<*mut c_void, String> {
    let mut out = std::ptr::null_mut();
    call(|error, room| work(&mut out, error, room))?;
    Ok(out)
}

/// The same of a call that makes a tensor, by `new` and for us.
pub(crate) fn made_tensor(work: impl FnOnce(*mut *mut c_void, *mut c_char, usize) -> c_int) -> Result<Tensor, String> {
    let tensor = made(work)?;
    // SAFETY: every call of the shim that is given here returns a new tensor, and only this handle frees it.
    Ok(unsafe { Tensor::from_ptr(tensor.cast()) })
}
