//! A mixture's tokens on their way to their experts and back. Differentiable, with the same bits every time.

use std::ffi::{c_char, c_int, c_void};

use tch::{Kind, Tensor};

use crate::call::{call, made_tensor};
use crate::fused::FusedError;

unsafe extern "C" {
    fn grpo_route(
        experts: *mut c_void,
        count: i64,
        order: *mut *mut c_void,
        back: *mut *mut c_void,
        ends: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn grpo_dispatch(
        x: *mut c_void,
        order: *mut c_void,
        back: *mut c_void,
        per_token: i64,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn grpo_combine(
        parts: *mut c_void,
        shares: *mut c_void,
        order: *mut c_void,
        back: *mut c_void,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
}

/// Where each token's parts go, one part for each of its experts.
pub struct Routing {
    /// The end of each expert's parts, `[experts]` int32.
    pub ends: Tensor,
    /// The part at each sorted place, `[tokens * per_token]` int64.
    order: Tensor,
    /// The sorted place of each part: the inverse of `order`.
    back: Tensor,
    per_token: i64,
}

impl Routing {
    /// By the experts of each token, `[tokens, per_token]` int64 below `count`. Tokens of one expert keep their order.
    pub fn of(experts: &Tensor, count: usize) -> Result<Self, FusedError> {
        let mut from = experts.shallow_clone();
        let mut made = [std::ptr::null_mut(); 3];
        let [order, back, ends] = &mut made;
        call(|error, room| {
            // SAFETY: the tensor and the places outlive the call.
            unsafe { grpo_route(from.as_mut_ptr().cast(), count as i64, order, back, ends, error, room) }
        })
        .map_err(|message| FusedError {
            operation: "the order of a mixture's tokens",
            shapes: vec![experts.size()],
            message,
        })?;
        // SAFETY: the call has left three new tensors, and only these handles free them.
        let [order, back, ends] = made.map(|tensor| unsafe { Tensor::from_ptr(tensor.cast()) });
        Ok(Self {
            ends,
            order,
            back,
            per_token: experts.size().last().copied().unwrap_or(1),
        })
    }

    /// A copy of each token for each of its experts, in the order of the experts: `x: [tokens, h]` to
    /// `[tokens * per_token, h]`.
    pub fn dispatch(&self, x: &Tensor) -> Result<Tensor, FusedError> {
        let failed = |message: String| self.failed("dispatch to experts", x, message);
        if x.dim() != 2 || x.size()[0] * self.per_token != self.order.size()[0] {
            return Err(failed("there is no expert for each token".to_owned()));
        }
        let [mut x, mut order, mut back] = [x, &self.order, &self.back].map(Tensor::shallow_clone);
        made_tensor(|out, error, room| {
            let [x, order, back] = [&mut x, &mut order, &mut back].map(|tensor| tensor.as_mut_ptr().cast());
            // SAFETY: the tensors outlive the call.
            unsafe { grpo_dispatch(x, order, back, self.per_token, out, error, room) }
        })
        .map_err(|message| self.failed("dispatch to experts", &x, message))
    }

    /// The sum of each token's parts, `[tokens * per_token, h]` in the order of the experts, by their
    /// `shares: [tokens, per_token]`, in fp32 or, if the parts are, in fp64: `[tokens, h]`.
    pub fn combine(&self, parts: &Tensor, shares: &Tensor) -> Result<Tensor, FusedError> {
        let failed = |message: String| self.failed("the sum of a token's experts", parts, message);
        let kind = match parts.kind() {
            Kind::Double => Kind::Double,
            _ => Kind::Float,
        };
        let tokens = self.order.size()[0] / self.per_token;
        if parts.dim() != 2
            || parts.size()[0] != self.order.size()[0]
            || shares.size() != [tokens, self.per_token]
            || shares.kind() != kind
        {
            return Err(failed("the shapes or kinds do not fit each other".to_owned()));
        }
        let [mut parts, mut shares, mut order, mut back] =
            [parts, shares, &self.order, &self.back].map(Tensor::shallow_clone);
        made_tensor(|out, error, room| {
            let [parts, shares, order, back] =
                [&mut parts, &mut shares, &mut order, &mut back].map(|tensor| tensor.as_mut_ptr().cast());
            // SAFETY: the tensors outlive the call.
            unsafe { grpo_combine(parts, shares, order, back, out, error, room) }
        })
        .map_err(|message| self.failed("the sum of a token's experts", &parts, message))
    }

    fn failed(&self, operation: &'static str, x: &Tensor, message: String) -> FusedError {
        FusedError {
            operation,
            shapes: vec![x.size(), self.order.size()],
            message,
        }
    }
}
