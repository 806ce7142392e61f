//! One grading of a patch with a known outcome, for mode Validate.

use super::losses::Losses;
use super::{Grader, Tried};
use crate::fault::DriverError;
use crate::outcome::Attempt;
use crate::tasks::Task;
use bytes::Bytes;
use grpo_records::VoidReason;
use grpo_records::validation::{Trial, TrialEnd};
use std::time::{Duration, Instant};

/// The result of a trial.
pub enum Tested {
    Ended(Trial),
    /// The infrastructure lost every grader until patience ended: this says nothing about the task.
    Lost {
        message: String,
    },
}

impl Grader {
    /// Grades in a fresh sandbox; retries if the infrastructure loses it. `name`: the trial's, unique within the task.
    pub async fn trial(&self, task: &Task, patch: Option<&Bytes>, name: &str) -> Result<Tested, DriverError> {
        let mut losses = Losses::new(self.patience, self.pauses, &task.instance);
        for tries in 0.. {
            let began = Instant::now();
            let lease = self.lease_id(&format!("trial {} {name} {tries}", task.instance));
            let tried = self.attempt(task, patch, &lease).await?;
            if let Some(ended) = ended(&tried.attempt) {
                return Ok(Tested::Ended(trial(tried, ended, began.elapsed())));
            }
            let why = tried.note.clone().unwrap_or_default();
            tracing::warn!(instance = %task.instance, name, why, "a grader is lost; trying again");
            if losses.another().await.is_err() {
                // A task that no grader completes must not end the others.
                let patience = self.patience.total;
                if let Attempt::Lost { .. } = tried.attempt {
                    let message = format!("no grader gave an answer within {patience:?}: {why}");
                    return Ok(Tested::Lost { message });
                }
                // Graders were there. Each time its tests silenced the sandbox, or its log the official grader.
                let note = Some(format!("every grader failed for {patience:?}: {why}"));
                return Ok(Tested::Ended(trial(
                    Tried { note, ..tried },
                    TrialEnd::Ungradable,
                    began.elapsed(),
                )));
            }
        }
        Err(DriverError::Other(format!("{} was never graded", task.instance)))
    }
}

/// `None` if the attempt says nothing about the task.
fn ended(attempt: &Attempt) -> Option<TrialEnd> {
    Some(match attempt {
        Attempt::Judged { resolved: true } => TrialEnd::Resolved,
        Attempt::Judged { resolved: false } => TrialEnd::Unresolved,
        Attempt::PatchRefused => TrialEnd::PatchRefused,
        Attempt::TimedOut => TrialEnd::TimedOut,
        Attempt::NoReport | Attempt::Exhausted => TrialEnd::Ungradable,
        Attempt::Lost {
            reason: VoidReason::TaskBroken,
        } => TrialEnd::SetupFailed,
        Attempt::WorkerFailed | Attempt::Silent | Attempt::Lost { .. } => return None,
    })
}

fn trial(tried: Tried, ended: TrialEnd, took: Duration) -> Trial {
    let report = tried.report.as_ref();
    Trial {
        ended,
        fail_to_pass: report.map(|report| report.fail_to_pass).unwrap_or_default(),
        pass_to_pass: report.map(|report| report.pass_to_pass).unwrap_or_default(),
        millis: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        note: tried.note,
    }
}
