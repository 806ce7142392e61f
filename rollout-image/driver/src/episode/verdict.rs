//! The verdict on an episode: from the store, if an earlier driver left it or its log there, or from a grader. A new
//! one is durable before anything follows from it.

use super::{EpisodePlan, Episodes, now};
use crate::fault::DriverError;
use crate::grade::Graded;
use bytes::Bytes;
use grpo_records::store::sha256_hex;
use grpo_records::{Created, EpisodeEnd, EpisodeMeta, RewardAnswer, SCHEMA, VerdictRecord, paths};
use std::time::Duration;

impl Episodes {
    pub(super) async fn graded(
        &self,
        plan: &EpisodePlan,
        dir: &str,
        end: EpisodeEnd,
        patch: Option<&Bytes>,
    ) -> Result<Graded, DriverError> {
        if let Some(kept) = self.store.read_if_there::<VerdictRecord>(&paths::verdict(dir)).await? {
            if let Some(patch) = patch {
                let (task, sha256) = (&kept.graded, sha256_hex(patch));
                self.grader.reuse(task, &sha256, dir, &kept.outcome, &kept.grade).await;
            }
            return Ok(kept.into());
        }
        if self.rewards.is_some()
            && let Some(known) = self.store.read_if_there::<RewardAnswer>(&paths::reward(dir)).await?
        {
            // The outcome in the question to the reward service stands: a second grading of a flaky test could differ.
            return Ok(Graded {
                outcome: known.outcome,
                record: known.grade,
                log: None,
                message: None,
                took: Duration::ZERO,
                task: None,
            });
        }
        if let Some(patch) = patch {
            let file = paths::grade_log(dir);
            if self.store.exists(&file).await? {
                let log = self.store.bytes(&file).await?;
                let again = self
                    .grader
                    .judge_again(&plan.task, patch, &String::from_utf8_lossy(&log))
                    .await?;
                if let Some(graded) = again {
                    return Ok(graded);
                }
                // It shows no result; the next one may.
                self.store.delete(&file).await?;
            }
        }
        let keep = |graded| self.keep_verdict(dir, graded);
        self.grader.grade(&plan.task, dir, end, patch, keep).await
    }

    /// Makes a verdict and its log durable; returns the one that counts.
    async fn keep_verdict(&self, dir: &str, graded: Graded) -> Result<Graded, DriverError> {
        let (Some(record), Some(task)) = (&graded.record, &graded.task) else {
            return Ok(graded);
        };
        if let Some(log) = &graded.log {
            self.store.create_bytes(&paths::grade_log(dir), log.clone()).await?;
        }
        let file = paths::verdict(dir);
        let kept = VerdictRecord {
            schema: SCHEMA,
            writer: self.writer.clone(),
            outcome: graded.outcome.clone(),
            grade: record.clone(),
            graded: task.clone(),
            at: now(),
        };
        match self.store.create(&file, &kept).await? {
            Created::Written { .. } => match self.store.read_if_there::<EpisodeMeta>(&paths::meta(dir)).await? {
                None => Ok(Graded { log: None, ..graded }),
                // Another driver has written the record already, and removed its verdict's file.
                Some(meta) => {
                    self.store.delete(&file).await?;
                    Ok(Graded {
                        outcome: meta.outcome,
                        record: meta.grade,
                        log: None,
                        message: meta.message,
                        took: Duration::ZERO,
                        task: meta.graded,
                    })
                }
            },
            // Another driver was first.
            Created::Existed => Ok(self.store.read::<VerdictRecord>(&file).await?.into()),
        }
    }
}
