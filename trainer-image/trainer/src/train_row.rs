//! A row to train on: its tokens, and the objective's data on them.

use grpo_records::ExpertsSpan;

/// One row as the model sees it. Position i predicts `tokens[i + 1]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainRow {
    pub tokens: Vec<u32>,
    /// Weight of token i's loss, 0 if it is not trained on. Same length as `tokens`.
    pub weights: Vec<f32>,
    /// Logprob of token i when it was sampled.
    pub rollout_logprobs: Vec<f32>,
    /// Logprobs of the trainer under the weights from which the batch's first optimizer step starts. Empty if the
    /// trainer still has those weights.
    pub old_logprobs: Vec<f64>,
    /// Logprobs under the base model. Empty if the algorithm does not need them.
    pub reference: Vec<f64>,
    pub advantage: f64,
    /// Number of the row in its batch.
    pub number: usize,
    /// Number of its sequence in its mini-batch: rows of a sequence share ratio and denominator.
    pub sequence: usize,
    pub temperature: f32,
    /// A mixture's experts that the engine chose for its tokens.
    pub experts: Vec<ExpertsSpan>,
}

impl TrainRow {
    /// Indices of the trained tokens. Nothing predicts a row's first token.
    pub fn trained(&self) -> impl Iterator<Item = usize> + '_ {
        let weights = self.weights.iter().enumerate().skip(1);
        weights.filter(|(_, weight)| **weight != 0.0).map(|(at, _)| at)
    }
}
