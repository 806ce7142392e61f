//! AdamW (arXiv 1711.05101) in place: one pass over values, gradient and moments by libtorch's fused kernel.

use std::ffi::{c_char, c_int, c_void};

use tch::Tensor;

use crate::call::{call, made_tensor};

unsafe extern "C" {
    fn grpo_adamw(
        values: *mut c_void,
        gradient: *mut c_void,
        first: *mut c_void,
        second: *mut c_void,
        steps: f64,
        rate: f64,
        beta1: f64,
        beta2: f64,
        decay: f64,
        epsilon: f64,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn grpo_square_sum(x: *mut c_void, out: *mut *mut c_void, error: *mut c_char, room: usize) -> c_int;
}

/// Parameters of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Steps taken, including this one: the exponent of the bias corrections.
    pub steps: u64,
    pub rate: f64,
    pub betas: [f64; 2],
    pub weight_decay: f64,
    pub epsilon: f64,
}

/// The optimizer's step could not be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the optimizer, over {numel} values: {message}")]
pub struct OptimizerError {
    pub numel: usize,
    pub message: String,
}

/// Changes `values` and both moments, all `[n]` and contiguous, by one step along `gradient: [n]`.
pub fn adamw(
    values: &mut Tensor,
    gradient: &Tensor,
    moments: [&mut Tensor; 2],
    step: &AdamStep,
) -> Result<(), OptimizerError> {
    let numel = values.numel();
    let failed = |message: String| OptimizerError { numel, message };
    let [first, second] = moments;
    let all = [&*values, gradient, &*first, &*second];
    if all
        .iter()
        .any(|x| x.size() != values.size() || x.kind() != values.kind() || !x.is_contiguous())
    {
        return Err(failed(
            "shapes or kinds differ, or a tensor is not contiguous".to_owned(),
        ));
    }
    let mut gradient = gradient.shallow_clone();
    call(|error, room| {
        let (v, g) = (values.as_mut_ptr(), gradient.as_mut_ptr());
        let (m1, m2) = (first.as_mut_ptr(), second.as_mut_ptr());
        // SAFETY: four live tensors of one size and kind.
        unsafe {
            grpo_adamw(
                v.cast(),
                g.cast(),
                m1.cast(),
                m2.cast(),
                step.steps.min(1 << 24) as f64,
                step.rate,
                step.betas[0],
                step.betas[1],
                step.weight_decay,
                step.epsilon,
                error,
                room,
            )
        }
    })
    .map_err(failed)
}

/// The sum of a tensor's squares in double precision, `[1]`, on the tensor's device. The order of the sum depends on
/// the shape only.
pub fn square_sum(x: &Tensor) -> Result<Tensor, OptimizerError> {
    let mut values = x.shallow_clone();
    // SAFETY: the tensor outlives the call.
    made_tensor(|out, error, room| unsafe { grpo_square_sum(values.as_mut_ptr().cast(), out, error, room) }).map_err(
        |message| OptimizerError {
            numel: x.numel(),
            message,
        },
    )
}
