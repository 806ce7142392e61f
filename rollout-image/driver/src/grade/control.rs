//! The control: grades the empty patch of a task, which tells a bad patch from a bad task.

use super::Grader;
use super::known::entry;
use crate::fault::DriverError;
use crate::outcome::{self, Attempt, Control};
use crate::retry::Retry;
use crate::tasks::Task;
use grpo_records::VoidReason;
use std::sync::atomic::Ordering;

/// Why the control has no result.
pub(super) enum NoControl {
    /// The infrastructure lost every grader until patience ended.
    Lost {
        reason: VoidReason,
    },
    Driver(DriverError),
}

impl From<DriverError> for NoControl {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl Grader {
    /// Whether the task is sound, by its empty patch; graded once per task. Lost graders say nothing about a task, so
    /// their results are not kept.
    pub(super) async fn control(&self, task: &Task) -> Result<Control, NoControl> {
        let cell = entry(&self.controls, self.graded(task).sha256()).await;
        let control = cell
            .get_or_try_init(|| async {
                let mut attempts = Vec::new();
                let mut retry = Retry::new(self.patience.total, self.pauses).with_jitter(&task.instance);
                loop {
                    let asked = self.controls_asked.fetch_add(1, Ordering::Relaxed);
                    let lease = self.lease_id(&format!("control {} {asked}", task.instance));
                    let tried = self.attempt(task, None, &lease).await?;
                    tracing::info!(instance = %task.instance, attempt = ?tried.attempt, note = ?tried.note, "control");
                    attempts.push(tried.attempt.clone());
                    if let Some(control) = outcome::after_control(&attempts) {
                        return Ok::<_, NoControl>(control);
                    }
                    if let Attempt::Lost { reason } = tried.attempt {
                        retry.pause().await.map_err(|_| NoControl::Lost { reason })?;
                    }
                }
            })
            .await?;
        Ok(*control)
    }
}
