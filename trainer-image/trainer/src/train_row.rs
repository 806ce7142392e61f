//! A row that is trained on: its tokens, and what the objective knows of them.

use grpo_records::ExpertsSpan;

/// One row as the model sees it. Position i predicts `tokens[i + 1]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainRow {
    pub tokens: Vec<u32>,
    /// Weight of token i's loss, 0 where it is not trained on. Same length as `tokens`.
    pub weights: Vec<f32>,
    /// Logprob of token i when it was sampled.
    pub rollout_logprobs: Vec<f32>,
    /// Logprobs of the trainer, under the weights that the batch's first step starts from. Empty where the trainer is
    /// at those weights.
    pub old_logprobs: Vec<f64>,
    /// Logprobs under the base model. Empty where the algorithm does not need them.
    pub reference: Vec<f64>,
    pub advantage: f64,
    /// Of the rows that step together: whose ratio and denominator it shares.
    pub sequence: usize,
    pub temperature: f32,
    /// Experts of a mixture that an engine has sent its tokens through.
    pub experts: Vec<ExpertsSpan>,
}

impl TrainRow {
    /// Indices of the tokens that are trained on. The first of a row is predicted by nothing.
    pub fn trained(&self) -> impl Iterator<Item = usize> + '_ {
        let weights = self.weights.iter().enumerate().skip(1);
        weights.filter(|(_, weight)| **weight != 0.0).map(|(at, _)| at)
    }
}
