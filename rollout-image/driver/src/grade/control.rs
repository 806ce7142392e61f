//! The control: grades the empty patch of a task, which tells a bad patch from a bad task or slow nodes.

use super::Grader;
use super::known::entry;
use super::losses::Losses;
use crate::fault::DriverError;
use crate::outcome::{self, Attempt, Control};
use crate::tasks::Task;
use grpo_records::VoidReason;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The answer of a control.
pub(super) struct Controlled {
    began: Instant,
    control: Control,
}

/// Why the control has no result.
pub(super) enum NoControl {
    /// The infrastructure lost every grader until patience ended.
    Lost {
        reason: VoidReason,
    },
    /// The official grader gave no answer: its node may be overloaded.
    NoWorker,
    Driver(DriverError),
}

impl From<DriverError> for NoControl {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl Grader {
    /// Whether the task is sound, by its empty patch. An answer counts for patches whose grading became doubtful
    /// `since`, and not for later ones: nodes that have become slow would make a correct patch a wrong one. Patches
    /// that are doubtful at the same time share one answer. Lost graders and an official grader without an answer say
    /// nothing about a task, so their results are not kept.
    pub(super) async fn control(&self, task: &Task, since: Instant) -> Result<Control, NoControl> {
        let slot = entry(&self.controls, self.graded(task).sha256()).await;
        let mut known = slot.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.began >= since) {
            return Ok(known.control);
        }
        let began = Instant::now();
        let control = self.ask_control(task).await?;
        *known = Some(Controlled { began, control });
        Ok(control)
    }

    async fn ask_control(&self, task: &Task) -> Result<Control, NoControl> {
        let mut attempts = Vec::new();
        let mut losses = Losses::new(self.patience, self.pauses, &task.instance);
        loop {
            let asked = self.controls_asked.fetch_add(1, Ordering::Relaxed);
            let lease = self.lease_id(&format!("control {} {asked}", task.instance));
            let tried = self.attempt(task, None, &lease).await?;
            tracing::info!(instance = %task.instance, attempt = ?tried.attempt, note = ?tried.note, "control");
            attempts.push(tried.attempt.clone());
            match outcome::after_control(&attempts) {
                Some(Control::Broken) if attempts.contains(&Attempt::WorkerFailed) => return Err(NoControl::NoWorker),
                Some(control) => return Ok(control),
                None => {}
            }
            match tried.attempt {
                Attempt::Lost { reason } => {
                    losses.another().await.map_err(|_| NoControl::Lost { reason })?;
                }
                _ => losses.end(),
            }
        }
    }
}
