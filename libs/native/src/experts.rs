//! A mixture's experts on a GPU in bf16: one product for each of their matrices over all experts together.
//! Differentiable.

use std::ffi::{c_char, c_int, c_void};

use tch::{Kind, Tensor};

use crate::call::made_tensor;
use crate::fused::FusedError;
use crate::generic::is_generic;

unsafe extern "C" {
    fn grpo_experts_have_kernels(x: *mut c_void) -> c_int;
    fn grpo_experts(
        x: *mut c_void,
        ends: *mut c_void,
        weights: *const *mut c_void,
        count: usize,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
}

/// Most experts that libtorch's grouped products take.
const MOST: usize = 1024;

/// Whether [`experts`] supports these tokens, `[n, h]`, and weights: in bf16 on a Hopper GPU, with widths that are
/// multiples of eight.
pub fn have_kernels(x: &Tensor, weights: &[Tensor]) -> bool {
    let even = |weight: &Tensor| weight.size().iter().all(|side| side % 8 == 0);
    let mut x = x.shallow_clone();
    is_generic() == 0
        && x.dim() == 2
        && weights.len() < 3 * MOST
        && weights.iter().take(3).all(even)
        // SAFETY: reads a live tensor's type.
        && unsafe { grpo_experts_have_kernels(x.as_mut_ptr().cast()) != 0 }
}

/// SwiGLU of each token by its expert, to `[n, h]`. `x: [n, h]` in the order of the experts; the tokens of the i-th
/// expert end at `ends[i]`, `[experts]` int32; `weights` are gate and up `[width, h]` and down `[h, width]` of each
/// expert in turn.
pub fn experts(x: &Tensor, ends: &Tensor, weights: &[Tensor]) -> Result<Tensor, FusedError> {
    let failed = |message: String| FusedError {
        operation: "a mixture's experts",
        shapes: [x, ends].into_iter().chain(weights.first()).map(Tensor::size).collect(),
        message,
    };
    let matrices = |at: usize| weights.iter().skip(at).step_by(3);
    let alike = |at: usize, shape: [i64; 2]| matrices(at).all(|w| w.size() == shape && w.kind() == x.kind());
    let width = weights.first().map_or(0, |gate| gate.size()[0]);
    let h = x.size().last().copied().unwrap_or(0);
    let fits = x.dim() == 2
        && ends.kind() == Kind::Int
        && weights.len() == 3 * ends.numel()
        && width % 8 == 0
        && alike(0, [width, h])
        && alike(1, [width, h])
        && alike(2, [h, width]);
    if !fits {
        return Err(failed("the shapes or kinds do not fit each other".to_owned()));
    }
    let (mut x, mut ends) = (x.shallow_clone(), ends.shallow_clone());
    let mut held: Vec<Tensor> = weights.iter().map(Tensor::shallow_clone).collect();
    let pointers: Vec<*mut c_void> = held.iter_mut().map(|weight| weight.as_mut_ptr().cast()).collect();
    made_tensor(|out, error, room| {
        let (x, ends) = (x.as_mut_ptr().cast(), ends.as_mut_ptr().cast());
        // SAFETY: the tensors and the list of them outlive the call.
        unsafe { grpo_experts(x, ends, pointers.as_ptr(), pointers.len(), out, error, room) }
    })
    .map_err(failed)
}
