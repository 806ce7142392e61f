//! From an agent's end to the record of the episode (`meta.json`): grade, rewards, record. Or the record of a void.

use super::abort::Abort;
use super::grading::Grading;
use super::judging::Judging;
use super::records::Worth;
use super::rewarding::GradedAttempt;
use super::{EpisodePlan, Episodes};
use crate::fault::DriverError;
use crate::grade::Graded;
use crate::traces::step;
use crate::trajectory::Trajectory;
use bytes::Bytes;
use grpo_records::reward::Ended;
use grpo_records::{AbortCause, EpisodeEnd, EpisodeMeta, Outcome, paths};
use std::time::Duration;
use tracing::Instrument;

impl Episodes {
    /// Grades the patch, and writes the record with the rewards.
    pub(super) async fn conclude(
        &self,
        plan: &EpisodePlan,
        dir: &str,
        attempt: u32,
        trajectory: &Trajectory,
        patch: Option<Bytes>,
        judging: Judging,
    ) -> Result<EpisodeMeta, DriverError> {
        let end = trajectory.end.unwrap_or(EpisodeEnd::Aborted);
        let grading = Grading::begin(&self.grading);
        let mut graded = self
            .graded(plan, dir, end, patch.as_ref())
            .instrument(step!("grade"))
            .await?;
        if let Some(record) = graded.record.as_mut().filter(|_| trajectory.patch_too_large) {
            record.status = "PatchTooLarge".to_owned();
        }
        drop(grading);
        // Only a void still has one. A driver that found it before the void's record would judge it.
        let log = graded.log.take();
        let worth = self.settings.reward.rule.reward(Ended {
            outcome: &graded.outcome,
            grade: graded.record.as_ref(),
            turns: &trajectory.turns,
            patch: patch.as_deref().unwrap_or_default(),
        });
        let worth = match worth {
            Some(by_rule) => {
                let graded = GradedAttempt {
                    plan,
                    dir,
                    trajectory,
                    graded: &graded,
                    patch: patch.as_ref(),
                };
                self.worth(graded, by_rule, judging).instrument(step!("reward")).await
            }
            None => Ok(Worth::default()),
        };
        match worth {
            Ok(worth) => {
                let meta = self
                    .write_meta(plan, dir, attempt, trajectory, patch.as_ref(), graded, worth)
                    .await?;
                if let Some(log) = log.filter(|_| meta.writer == self.writer) {
                    self.store.create_bytes(&paths::grade_log(dir), log).await?;
                }
                Ok(meta)
            }
            Err(Abort::Void { reason, message }) => {
                let cause = AbortCause { reason, message };
                self.conclude_void(plan, dir, attempt, trajectory, cause).await
            }
            Err(Abort::Driver(error)) => Err(error),
            Err(Abort::Abandoned) => Err(DriverError::Other(format!("what {dir} is worth was given up"))),
        }
    }

    /// The rewards of a verdict for which the rule gives `by_rule`.
    async fn worth(&self, graded: GradedAttempt<'_>, by_rule: f32, judging: Judging) -> Result<Worth, Abort> {
        let verdict = match &self.rewards {
            None => by_rule,
            Some(service) => {
                let question = graded.question(&self.settings, by_rule)?;
                let unresolved = self.settings.reward.rule.unresolved;
                service.worth(&self.store, &self.writer, &question, unresolved).await?
            }
        };
        let scores = judging.scores(&graded.trajectory.turns, verdict).await?;
        Ok(Worth {
            verdict: Some(verdict),
            scores,
        })
    }

    /// Writes the record of a void.
    pub(super) async fn conclude_void(
        &self,
        plan: &EpisodePlan,
        dir: &str,
        attempt: u32,
        trajectory: &Trajectory,
        cause: AbortCause,
    ) -> Result<EpisodeMeta, DriverError> {
        let graded = Graded {
            outcome: Outcome::void(cause.reason),
            record: None,
            log: None,
            message: Some(cause.message),
            took: Duration::ZERO,
            task: Some(self.grader.graded(&plan.task)),
        };
        self.write_meta(plan, dir, attempt, trajectory, None, graded, Worth::default())
            .await
    }
}
