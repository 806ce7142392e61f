//! A checked request on its way to the engine loop, and the answer on its way back.

use crate::sampling::Sampling;
use grpo_engine_protocol::{ErrorBody, FinishReason};
use tokio::sync::oneshot;

/// A checked request: `samples` continuations of each prompt.
pub struct Job {
    pub prompts: Vec<Vec<u32>>,
    pub samples: u32,
    pub max_tokens: usize,
    pub sampling: Sampling,
    pub stop_tokens: Vec<u32>,
    pub ignore_eos: bool,
    /// The version from which the answer must be sampled.
    pub wanted: Option<String>,
    pub reply: oneshot::Sender<Result<Answer, ErrorBody>>,
}

/// Every row of a job, in order.
pub struct Answer {
    pub version: String,
    pub rows: Vec<AnswerRow>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct AnswerRow {
    pub tokens: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub finish: FinishReason,
    pub stop_token: Option<u32>,
}

/// Receives a job's answer.
pub type Reply = oneshot::Receiver<Result<Answer, ErrorBody>>;
