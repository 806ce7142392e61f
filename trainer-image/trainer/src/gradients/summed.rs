//! Gradients of a gathered unit, summed over micro-batches.

use tch::Tensor;

use super::vjp::summing;

/// A gathered unit, and its gradient so far.
pub(super) struct Summed {
    pub(super) tensors: Vec<Tensor>,
    /// The sum for each tensor that has a gradient, in the kind of [`summing`].
    sums: Vec<Option<Tensor>>,
}

impl Summed {
    pub(super) fn of(tensors: Vec<Tensor>) -> Self {
        let sums = tensors.iter().map(|_| None).collect();
        Self { tensors, sums }
    }

    /// Adds the gradients of `leaves`, one micro-batch's copies of the tensors.
    pub(super) fn add(&mut self, leaves: &[Tensor]) {
        tch::no_grad(|| {
            for (sum, leaf) in self.sums.iter_mut().zip(leaves) {
                let gradient = leaf.grad();
                if !gradient.defined() {
                    continue;
                }
                match sum {
                    Some(sum) => *sum += gradient,
                    None => *sum = Some(gradient.to_kind(summing(gradient.kind()))),
                }
            }
        });
    }

    /// Gradients of the tensors after the frozen ones; zeros for a tensor without a gradient (a rank without
    /// micro-batches, an expert without tokens).
    pub(super) fn gradients(self, frozen: usize) -> Vec<Tensor> {
        let zero = |tensor: &Tensor| Tensor::zeros(tensor.size(), (summing(tensor.kind()), tensor.device()));
        let each = self.sums.into_iter().zip(&self.tensors).skip(frozen);
        each.map(|(sum, tensor)| sum.unwrap_or_else(|| zero(tensor))).collect()
    }
}
