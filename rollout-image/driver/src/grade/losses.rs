//! Graders that the infrastructure loses in a row.

use crate::retry::{Budget, Exhausted, Pauses, Retry};

/// Fewest losses in a row that end the wait for a grader. One evaluation may take longer than the patience.
const FEWEST: u32 = 3;

/// The losses since the last grader that came to a result.
pub(super) struct Losses {
    retry: Retry,
    in_a_row: u32,
}

impl Losses {
    /// `name`: spreads the pauses of gradings that began together.
    pub fn new(patience: Budget, pauses: Pauses, name: &str) -> Self {
        Self {
            retry: Retry::new(patience.total, pauses).with_jitter(name),
            in_a_row: 0,
        }
    }

    /// A grader came to a result.
    pub fn end(&mut self) {
        self.in_a_row = 0;
        self.retry.progress();
    }

    /// Waits after another loss. An error if graders have been lost for too long.
    pub async fn another(&mut self) -> Result<(), Exhausted> {
        self.in_a_row += 1;
        let paused = self.retry.pause().await;
        paused.or_else(|over| (self.in_a_row < FEWEST).then_some(()).ok_or(over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn losses_end_the_wait_by_their_time_and_not_before_the_third_in_a_row() {
        let patience = Budget {
            request: Duration::ZERO,
            total: Duration::from_secs(60),
        };
        let pauses = Pauses::doubling(Duration::from_secs(1), Duration::from_secs(1));
        let mut losses = Losses::new(patience, pauses, "a");
        // Each after an evaluation of an hour.
        for _ in 0..2 {
            tokio::time::advance(Duration::from_secs(3600)).await;
            losses.another().await.unwrap();
            losses.end();
        }
        for _ in 0..2 {
            tokio::time::advance(Duration::from_secs(3600)).await;
            losses.another().await.unwrap();
        }
        losses.another().await.unwrap_err();
        losses.end();
        let mut quick = 0;
        while losses.another().await.is_ok() {
            quick += 1;
        }
        assert!((30..=60).contains(&quick), "{quick} losses in a minute");
    }
}
