//! Which episode it is to be, of which task, sampled how.

use crate::tasks::Task;
use grpo_crds::grpo_run::OnSync;
use grpo_records::EpisodeKey;
use grpo_records::settings::Sampling;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

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
    /// What becomes of it when these change.
    pub on_sync: OnSync,
    /// Cancelled where the episode is not needed any more.
    pub stop: CancellationToken,
}

impl EpisodePlan {
    /// Ends when the weights change, of an episode that is to be sampled again then.
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
