//! Parts of a block in one pass each, which keep less for backward than single operations would.

use std::ffi::{c_char, c_int, c_void};

use tch::Tensor;

use crate::call::made_tensor;
use crate::generic::is_generic;

unsafe extern "C" {
    fn grpo_rms_norm(
        x: *mut c_void,
        weight: *mut c_void,
        epsilon: f64,
        generic: c_int,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn grpo_swiglu(gate: *mut c_void, up: *mut c_void, out: *mut *mut c_void, error: *mut c_char, room: usize)
    -> c_int;
}

/// A fused operation could not be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} over shapes {shapes:?}: {message}")]
pub struct FusedError {
    pub operation: &'static str,
    pub shapes: Vec<Vec<i64>>,
    pub message: String,
}

/// RMSNorm (arXiv 1910.07467) over the last dimension: `x: [.., h]`, `weight: [h]`. Sums are in fp32 where both are in
/// bf16.
pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor, FusedError> {
    let shapes = vec![x.size(), weight.size()];
    let failed = |message: String| FusedError {
        operation: "RMSNorm",
        shapes: shapes.clone(),
        message,
    };
    if weight.size().len() != 1
        || weight.numel() == 0
        || x.size().last() != weight.size().first()
        || x.kind() != weight.kind()
    {
        return Err(failed("the shapes or kinds do not fit each other".to_owned()));
    }
    let (mut x, mut weight) = (x.shallow_clone(), weight.shallow_clone());
    made_tensor(|out, error, room| {
        let (x, weight) = (x.as_mut_ptr(), weight.as_mut_ptr());
        // SAFETY: the tensors outlive the call.
        unsafe { grpo_rms_norm(x.cast(), weight.cast(), epsilon, is_generic(), out, error, room) }
    })
    .map_err(failed)
}

/// silu(gate) * up (SwiGLU, arXiv 2002.05202), both of one shape.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor, FusedError> {
    let shapes = vec![gate.size(), up.size()];
    let failed = |message: String| FusedError {
        operation: "SwiGLU",
        shapes: shapes.clone(),
        message,
    };
    if gate.size() != up.size() || gate.kind() != up.kind() {
        return Err(failed("the shapes or kinds differ".to_owned()));
    }
    let (mut gate, mut up) = (gate.shallow_clone(), up.shallow_clone());
    made_tensor(|out, error, room| {
        let (gate, up) = (gate.as_mut_ptr(), up.as_mut_ptr());
        // SAFETY: as above.
        unsafe { grpo_swiglu(gate.cast(), up.cast(), out, error, room) }
    })
    .map_err(failed)
}
