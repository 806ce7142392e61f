//! What the model says of trained tokens, and what the loss answers: the objective is computed outside of the graph.

use grpo_native::gpu_wait::wait_for;
use tch::{Device, Kind, Tensor};

use crate::error::TrainError;
use crate::micro_batch::MicroBatch;

/// A summed loss, and its derivatives by what the model says of each trained token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossGrad {
    pub loss: f64,
    /// By the logprobs, `[n]`.
    pub logprobs: Vec<f64>,
    /// By the entropies, `[n]`; empty where the loss does not look at them.
    pub entropies: Vec<f64>,
}

impl LossGrad {
    /// The sum of logprobs by these weights.
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

/// What the loss of some of a micro-batch's trained tokens is: takes their logprobs and entropies, `[n]` each and in
/// the order of [`MicroBatch::trained`]. It is computed outside of the graph, in double precision, by the objective's
/// own words.
pub type LossFn<'a> = dyn FnMut(&MicroBatch, &[f64], &[f64]) -> LossGrad + 'a;

/// Is told logprobs and entropies, `[n]` each, of some of a micro-batch's trained tokens; the micro-batch's number
/// comes first.
pub type NoteFn<'a> = dyn FnMut(usize, &MicroBatch, &[f64], &[f64]) + 'a;

/// Who is asked for logprobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// What is trained.
    Policy,
    /// What training began with: the frozen model beside an adapter, or what `Sharded::hold_base` has kept.
    Base,
}

/// What one call of a loss function is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossOver {
    /// A piece of a micro-batch: the loss is a sum over tokens. Logits are computed once.
    #[default]
    Tokens,
    /// A whole micro-batch: the loss looks at a row's tokens together. Logits are computed a second time for the
    /// gradient, where they are more than one piece.
    Batches,
}

/// As the objective takes them: one wait for the GPU.
pub(crate) fn numbers(tensor: &Tensor) -> Result<Vec<f64>, TrainError> {
    Ok(wait_for(tensor.device(), || {
        Vec::<f64>::try_from(tensor.to_kind(Kind::Double).to_device(Device::Cpu))
    })?)
}

/// Logprobs and entropies of the same tokens, `[n]` each: one wait for both.
pub(crate) fn both_numbers(logprobs: &Tensor, entropies: &Tensor) -> Result<[Vec<f64>; 2], TrainError> {
    let mut both = numbers(&Tensor::cat(&[logprobs, entropies], 0))?;
    let entropies = both.split_off(logprobs.numel());
    Ok([both, entropies])
}
