//! The plan of an episode: its key, task, sampling and weights.

use crate::tasks::Task;
use grpo_crds::grpo_run::OnSync;
use grpo_records::EpisodeKey;
use grpo_records::settings::Sampling;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The plan of one episode.
#[derive(Clone, Debug)]
pub struct EpisodePlan {
    pub key: EpisodeKey,
    pub task: Arc<Task>,
    /// The run's seed, or the evaluated set's.
    pub seed: u64,
    /// The settings at the start of the iteration or evaluation.
    pub sampling: Sampling,
    /// The weights to sample from.
    pub weights: watch::Receiver<String>,
    /// What happens to the episode when `weights` changes.
    pub on_sync: OnSync,
    /// Cancelled when the episode is not needed any more.
    pub stop: CancellationToken,
}

impl EpisodePlan {
    /// Returns when the weights change, if the episode must then be sampled again (`Abort`). Otherwise never.
    pub async fn outdated(&self) {
        if self.on_sync == OnSync::Abort {
            let mut weights = self.weights.clone();
            let first = weights.borrow_and_update().clone();
            if weights.wait_for(|now| *now != first).await.is_ok() {
                return;
            }
        }
        std::future::pending().await
    }
}
