//! Linear layers, and a SwiGLU with the linear layer after it. Differentiable, in either precision.
//!
//! Input: `x: [.., inputs]` and a weight `[outputs, inputs]`; output: `[.., outputs]`. A weight's gradient is
//! contiguous, like the weight; for the SwiGLU, backward keeps only its two inputs.

use std::ffi::{c_char, c_int, c_void};

use tch::Tensor;

use crate::call::{call, made_tensor};
use crate::fused::FusedError;

unsafe extern "C" {
    fn grpo_linear(
        x: *mut c_void,
        weight: *mut c_void,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn grpo_adapted(
        x: *mut c_void,
        dropped: *mut c_void,
        weight: *mut c_void,
        a: *mut c_void,
        b: *mut c_void,
        scale: f64,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn grpo_gated(
        gate: *mut c_void,
        up: *mut c_void,
        weight: *mut c_void,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn grpo_backward(y: *mut c_void, above: *mut c_void, error: *mut c_char, room: usize) -> c_int;
}

/// `x: [.., inputs]` times `weight: [outputs, inputs]` transposed.
pub fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor, FusedError> {
    let failed = |message: String| failure("a linear layer", &[x, weight], message);
    fits(x, weight).map_err(failed)?;
    let (mut x, mut weight) = (x.shallow_clone(), weight.shallow_clone());
    made_tensor(|out, error, room| {
        let (x, weight) = (x.as_mut_ptr(), weight.as_mut_ptr());
        // SAFETY: the tensors outlive the call.
        unsafe { grpo_linear(x.cast(), weight.cast(), out, error, room) }
    })
    .map_err(|message| failure("a linear layer", &[&x, &weight], message))
}

/// The two matrices of a linear layer's adapter (LoRA, arXiv 2106.09685).
#[derive(Clone, Copy)]
pub struct LowRank<'a> {
    /// `[rank, inputs]`.
    pub a: &'a Tensor,
    /// `[outputs, rank]`.
    pub b: &'a Tensor,
    /// The factor of B A.
    pub scale: f64,
}

/// [`linear`] plus scale B A `dropped`, which is `x` after dropout, or `x` itself if it is `None`.
pub fn adapted(
    x: &Tensor,
    dropped: Option<&Tensor>,
    weight: &Tensor,
    matrices: LowRank<'_>,
) -> Result<Tensor, FusedError> {
    let LowRank { a, b, scale } = matrices;
    let failed = |message: String| failure("a linear layer with an adapter", &[x, weight, a, b], message);
    fits(x, weight).map_err(failed)?;
    fits(x, a).map_err(failed)?;
    let outputs = weight.size()[0];
    if b.size() != [outputs, a.size()[0]] || b.kind() != x.kind() || dropped.is_some_and(|d| d.size() != x.size()) {
        return Err(failed("the shapes or kinds do not fit each other".to_owned()));
    }
    let mut dropped = dropped.map(Tensor::shallow_clone);
    let [mut x, mut weight, mut a, mut b] = [x, weight, a, b].map(Tensor::shallow_clone);
    made_tensor(|out, error, room| {
        let dropped = dropped.as_mut().map_or(std::ptr::null_mut(), |d| d.as_mut_ptr().cast());
        let [x, weight, a, b] = [&mut x, &mut weight, &mut a, &mut b].map(|tensor| tensor.as_mut_ptr().cast());
        // SAFETY: the tensors outlive the call.
        unsafe { grpo_adapted(x, dropped, weight, a, b, scale, out, error, room) }
    })
    .map_err(|message| failure("a linear layer with an adapter", &[&x, &weight, &a, &b], message))
}

/// silu(gate) * up (SwiGLU, arXiv 2002.05202), both `[.., inputs]`, times `weight: [outputs, inputs]` transposed.
pub fn gated(gate: &Tensor, up: &Tensor, weight: &Tensor) -> Result<Tensor, FusedError> {
    let failed = |message: String| failure("SwiGLU", &[gate, up, weight], message);
    if gate.size() != up.size() || gate.kind() != up.kind() {
        return Err(failed("the shapes or kinds differ".to_owned()));
    }
    fits(gate, weight).map_err(failed)?;
    let (mut gate, mut up, mut weight) = (gate.shallow_clone(), up.shallow_clone(), weight.shallow_clone());
    made_tensor(|out, error, room| {
        let (gate, up, weight) = (gate.as_mut_ptr(), up.as_mut_ptr(), weight.as_mut_ptr());
        // SAFETY: as above.
        unsafe { grpo_gated(gate.cast(), up.cast(), weight.cast(), out, error, room) }
    })
    .map_err(|message| failure("SwiGLU", &[&gate, &up, &weight], message))
}

/// Runs backward through `y` with the gradient `above` of the same shape, in `y`'s kind: leaves get the gradients of
/// <y, above>.
pub fn backward(y: &Tensor, above: &Tensor) -> Result<(), FusedError> {
    let failed = |message: String| failure("a backward pass", &[y, above], message);
    if y.size() != above.size() {
        return Err(failed("the shapes differ".to_owned()));
    }
    let (mut y, mut above) = (y.shallow_clone(), above.to_kind(y.kind()));
    // SAFETY: the tensors outlive the call.
    call(|error, room| unsafe { grpo_backward(y.as_mut_ptr().cast(), above.as_mut_ptr().cast(), error, room) })
        .map_err(|message| failure("a backward pass", &[&y, &above], message))
}

fn fits(x: &Tensor, weight: &Tensor) -> Result<(), String> {
    match (x.size().as_slice(), weight.size().as_slice()) {
        ([.., inputs], [_, wanted]) if inputs == wanted && *inputs > 0 && x.kind() == weight.kind() => Ok(()),
        _ => Err("the shapes or kinds do not fit each other".to_owned()),
    }
}

fn failure(operation: &'static str, tensors: &[&Tensor], message: String) -> FusedError {
    FusedError {
        operation,
        shapes: tensors.iter().map(|tensor| tensor.size()).collect(),
        message,
    }
}
