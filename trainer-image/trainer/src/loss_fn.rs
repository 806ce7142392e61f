//! The interface between model and loss: logprobs and entropies of trained tokens in, their gradients out. The
//! objective is computed outside of the graph.

use grpo_native::gpu_wait::wait_for;
use tch::{Device, Kind, Tensor};

use crate::error::TrainError;
use crate::micro_batch::MicroBatch;

/// A summed loss, and its derivatives by each trained token's logprob and entropy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossGrad {
    pub loss: f64,
    /// Derivatives by the logprobs, `[n]`.
    pub logprobs: Vec<f64>,
    /// Derivatives by the entropies, `[n]`; empty if the loss does not use them.
    pub entropies: Vec<f64>,
}

impl LossGrad {
    /// The weighted sum of logprobs.
    pub fn weighted(weights: Vec<f64>, logprobs: &[f64]) -> Self {
        Self {
            loss: weights
                .iter()
                .zip(logprobs)
                .map(|(weight, logprob)| weight * logprob)
                .sum(),
            logprobs: weights,
            entropies: Vec::new(),
        }
    }
}

/// The loss of some of a micro-batch's trained tokens: takes their logprobs and entropies, `[n]` each and in the order
/// of [`MicroBatch::trained`]. It is computed outside of the graph, in double precision, by the objective's own
/// formulas.
pub type LossFn<'a> = dyn FnMut(&MicroBatch, &[f64], &[f64]) -> LossGrad + 'a;

/// Receives logprobs and entropies, `[n]` each, of some of a micro-batch's trained tokens; the first argument is the
/// micro-batch's number.
pub type NoteFn<'a> = dyn FnMut(usize, &MicroBatch, &[f64], &[f64]) + 'a;

/// The model that computes logprobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// The trained model.
    Policy,
    /// The model that training began with: the frozen model of an adapter, or the copy of `Sharded::hold_base`.
    Base,
}

/// The tokens that one call of a loss function gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossOver {
    /// A piece of a micro-batch: the loss is a sum over tokens. Logits are computed once.
    #[default]
    Tokens,
    /// A whole micro-batch: the loss depends on a row's tokens together. If they are more than one piece, logits are
    /// computed a second time for the gradient.
    Batches,
}

/// A tensor as the objective's numbers, with one wait for the GPU.
pub(crate) fn numbers(tensor: &Tensor) -> Result<Vec<f64>, TrainError> {
    Ok(wait_for(tensor.device(), || {
        Vec::<f64>::try_from(tensor.to_kind(Kind::Double).to_device(Device::Cpu))
    })?)
}

/// Logprobs and entropies of the same tokens, `[n]` each, with one wait for both.
pub(crate) fn both_numbers(logprobs: &Tensor, entropies: &Tensor) -> Result<[Vec<f64>; 2], TrainError> {
    let mut both = numbers(&Tensor::cat(&[logprobs, entropies], 0))?;
    let entropies = both.split_off(logprobs.numel());
    Ok([both, entropies])
}
