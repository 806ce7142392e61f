//! Which episode it is to be, of which task, sampled how.

use crate::tasks::Task;
use grpo_records::EpisodeKey;
use grpo_records::settings::Sampling;
use std::sync::Arc;
use tokio::sync::watch;

/// What an episode is to be.
#[derive(Clone, Debug)]
pub struct EpisodePlan {
    pub key: EpisodeKey,
    pub task: Arc<Task>,
    /// The run's seed, or the evaluated set's.
    pub seed: u64,
    /// As it was when the iteration or evaluation began.
    pub sampling: Sampling,
    /// The weights to sample from.
    pub weights: watch::Receiver<String>,
}
