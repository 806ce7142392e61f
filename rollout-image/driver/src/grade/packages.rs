//! Scripts that install packages: a verdict counts only if the pool's package index still answers after the grading.
//!
//! An unavailable index makes the installation fail, and then the tests: that says nothing about the patch. The gateway
//! checks the index, not the sandbox, so that a patch cannot make its own grading void.

use super::{Grader, Tried};
use crate::outcome::Attempt;
use crate::sandbox::Blame;
use crate::tasks::Task;
use grpo_records::VoidReason;

impl Grader {
    /// Returns the attempt, or a lost one if its packages may have been missing.
    pub(super) async fn unless_packages_were_missing(&self, task: &Task, tried: Tried) -> Tried {
        let Some(command) = task.installs.as_ref().filter(|_| may_be_for_packages(&tried.attempt)) else {
            return tried;
        };
        let why = match self.gateway.package_index().await {
            Ok(state) => state.unreachable,
            Err(error) if error.blame() == Blame::Infrastructure => Some(error.to_string()),
            Err(error) => {
                tracing::warn!(%error, "the gateway does not say whether the package index answers");
                None
            }
        };
        match why {
            None => tried,
            Some(why) => Tried {
                attempt: Attempt::Lost {
                    reason: VoidReason::SandboxUnavailable,
                },
                report: None,
                log: None,
                note: Some(format!(
                    "the script installs packages ({command}), and the package index does not answer: {why}"
                )),
            },
        }
    }
}

/// Whether a failed installation can explain the attempt.
fn may_be_for_packages(attempt: &Attempt) -> bool {
    match attempt {
        Attempt::Judged { resolved } => !resolved,
        Attempt::NoReport | Attempt::TimedOut => true,
        Attempt::PatchRefused | Attempt::Exhausted | Attempt::WorkerFailed | Attempt::Silent | Attempt::Lost { .. } => {
            false
        }
    }
}
