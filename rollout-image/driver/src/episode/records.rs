//! What an episode leaves in the store, and reading it again.

use super::{Abort, EpisodePlan, Episodes, millis, now};
use crate::fault::DriverError;
use crate::grade::Graded;
use crate::reward;
use crate::trajectory::Trajectory;
use bytes::Bytes;
use grpo_records::store::sha256_hex;
use grpo_records::{EpisodeEnd, EpisodeMeta, EpisodeRecord, SCHEMA, TurnRecord, paths};

impl Episodes {
    pub(super) async fn read_turns(&self, dir: &str, trajectory: &mut Trajectory) -> Result<(), Abort> {
        let (files, _) = self.store.names_in(&paths::turns(dir)).await?;
        for number in 0..files.len() as u32 {
            let record: TurnRecord = self.store.read(&paths::turn(dir, number)).await?;
            trajectory.push(&record)?;
        }
        Ok(())
    }

    /// The patch an earlier driver stored; the inner option as [`AgentResult`] has it.
    pub(super) async fn stored_patch(&self, dir: &str) -> Result<Option<Option<Bytes>>, DriverError> {
        let there = self.store.exists(&paths::patch(dir)).await?;
        if there {
            return Ok(Some(Some(self.store.bytes(&paths::patch(dir)).await?)));
        }
        // A trajectory is written behind its patch: where it stands alone there was none to take.
        Ok(self.store.exists(&paths::trajectory(dir)).await?.then_some(None))
    }

    pub(super) async fn write_trajectory(
        &self,
        plan: &EpisodePlan,
        dir: &str,
        attempt: u32,
        trajectory: &Trajectory,
    ) -> Result<(), DriverError> {
        let end = trajectory.end.unwrap_or(EpisodeEnd::Aborted);
        let sampling = &plan.sampling;
        let record = EpisodeRecord {
            schema: SCHEMA,
            writer: self.writer.clone(),
            run: self.settings.uid.clone(),
            key: plan.key.clone(),
            attempt,
            task: plan.task.index,
            image: plan.task.image.clone(),
            end,
            turns: trajectory.turns,
            messages: trajectory.messages.clone(),
            temperature: sampling.temperature as f32,
            top_p: sampling.top_p as f32,
            top_k: sampling.top_k,
            prompt_length: trajectory.prompt_length,
            tokens: trajectory.tokens.clone(),
            mask: trajectory.mask.clone(),
            logprobs: trajectory.logprobs.clone(),
            weights: trajectory.weights.clone(),
            experts: trajectory.experts.clone(),
            truncated: end.is_truncation(),
            started_at: trajectory.started_at.unwrap_or_else(now),
            finished_at: now(),
        };
        self.store.create(&paths::trajectory(dir), &record).await?;
        Ok(())
    }

    pub(super) async fn write_meta(
        &self,
        plan: &EpisodePlan,
        dir: &str,
        attempt: u32,
        trajectory: &Trajectory,
        patch: Option<&Bytes>,
        graded: Graded,
    ) -> Result<EpisodeMeta, DriverError> {
        let end = trajectory.end.unwrap_or(EpisodeEnd::Aborted);
        let meta = EpisodeMeta {
            schema: SCHEMA,
            writer: self.writer.clone(),
            run: self.settings.uid.clone(),
            key: plan.key.clone(),
            attempt,
            reward: reward::of_outcome(&self.settings.reward, &graded.outcome),
            outcome: graded.outcome,
            end,
            turns: trajectory.turns,
            tokens: trajectory.tokens.len(),
            sampled_tokens: trajectory.sampled(),
            format_errors: trajectory.format_errors,
            truncated: end.is_truncation(),
            weights: trajectory.versions(),
            patch_bytes: patch.map_or(0, Bytes::len),
            patch_sha256: patch.map(|p| sha256_hex(p)),
            grade: graded.record,
            message: graded.message,
            agent_millis: trajectory.sample_millis + trajectory.exec_millis,
            grade_millis: millis(graded.took),
            waited_millis: trajectory.waited_millis,
            at: now(),
        };
        match self.store.create(&paths::meta(dir), &meta).await? {
            grpo_records::Created::Written { .. } => Ok(meta),
            // Somebody was faster: there is one verdict per episode, and that is theirs.
            grpo_records::Created::Existed => Ok(self.store.read(&paths::meta(dir)).await?),
        }
    }
}
