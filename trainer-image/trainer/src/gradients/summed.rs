//! Gradients of a gathered unit, summed over micro-batches.

use tch::Tensor;

use super::vjp::summing;

/// A gathered unit, and its gradient so far.
pub(super) struct Summed {
    pub(super) tensors: Vec<Tensor>,
    /// The sum for each tensor that has a gradient: a single one in its own kind, a sum in the kind of [`summing`].
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
                *sum = Some(match sum.take() {
                    Some(sum) => {
                        let mut sum = sum.to_kind(summing(gradient.kind()));
                        sum += gradient;
                        sum
                    }
                    None => gradient,
                });
            }
        });
    }

    /// Gradients of the tensors after the frozen ones; zeros for a tensor without a gradient (a rank without
    /// micro-batches, an expert without tokens). Those of a single micro-batch have the tensors' kind.
    pub(super) fn gradients(self, frozen: usize) -> Vec<Tensor> {
        let zero = |tensor: &Tensor| tensor.zeros_like();
        let each = self.sums.into_iter().zip(&self.tensors).skip(frozen);
        each.map(|(sum, tensor)| sum.unwrap_or_else(|| zero(tensor))).collect()
    }
}
