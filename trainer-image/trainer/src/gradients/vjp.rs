//! Backward passes through parts of the graph.

use grpo_native::linear::backward;
use tch::{Kind, Tensor};

/// The kind in which gradients of this kind are summed: 32 bits at least.
pub(super) fn summing(kind: Kind) -> Kind {
    match kind {
        Kind::BFloat16 => Kind::Float,
        kind => kind,
    }
}

/// Vector-Jacobian product: runs backward through `y` with the gradient `above`, as the gradient of <y, above>.
pub(super) fn vjp(y: &Tensor, above: &Tensor) {
    // Shapes that do not fit panic, as they do in every other operation on tensors.
    backward(y, above).unwrap_or_else(|error| panic!("{error}"));
}

/// The gradient, or zeros.
pub(super) fn grad_of(tensor: &Tensor) -> Tensor {
    let grad = tensor.grad();
    if grad.defined() { grad } else { tensor.zeros_like() }
}
