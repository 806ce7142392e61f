//! Dropout (Srivastava et al., JMLR 2014) whose mask is a function of each row's key, a salt, and the column.
//! Differentiable.
//!
//! There is no random generator, so a recomputation, also in another order, on another rank or device, drops the same
//! values; backward keeps only the keys.

use std::ffi::{c_char, c_int, c_void};

use tch::{Kind, Tensor};

use crate::call::made_tensor;
use crate::fused::FusedError;
use crate::generic::is_generic;

unsafe extern "C" {
    fn grpo_dropout(
        x: *mut c_void,
        keys: *mut c_void,
        salt: i64,
        below: u32,
        scale: f64,
        generic: c_int,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
}

/// `x: [.., columns]` with the share `rate` of its values at zero and the others divided by `1 - rate`;
/// `keys: [rows of x]` int64.
pub fn dropout(x: &Tensor, keys: &Tensor, salt: u64, rate: f64) -> Result<Tensor, FusedError> {
    let shapes = vec![x.size(), keys.size()];
    let failed = |message: String| FusedError {
        operation: "dropout",
        shapes: shapes.clone(),
        message,
    };
    let columns = x.size().last().copied().unwrap_or(0);
    if keys.kind() != Kind::Int64
        || keys.dim() != 1
        || columns == 0
        || keys.numel() as i64 * columns != x.numel() as i64
    {
        return Err(failed("a key, int64, is wanted of each row".to_owned()));
    }
    if !(0.0..1.0).contains(&rate) {
        return Err(failed(format!("a share of {rate} cannot be dropped")));
    }
    let below = (rate * 2f64.powi(32)) as u32;
    let (mut x, mut keys) = (x.shallow_clone(), keys.shallow_clone());
    made_tensor(|out, error, room| {
        let (x, keys) = (x.as_mut_ptr(), keys.as_mut_ptr());
        // SAFETY: the tensors outlive the call.
        unsafe {
            grpo_dropout(
                x.cast(),
                keys.cast(),
                salt.cast_signed(),
                below,
                1.0 / (1.0 - rate),
                is_generic(),
                out,
                error,
                room,
            )
        }
    })
    .map_err(failed)
}
