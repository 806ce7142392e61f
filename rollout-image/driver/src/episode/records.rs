//! The records of an episode in the store: writes and reads them.
//!
//! While the agent works, each turn is a file. Its end is durable before the patch is taken. Then the rows are written,
//! with every id once, then the record, with every turn but no ids; then the files of the turns and of the end are
//! removed. In this order the store has all turns and the end at any moment.

use super::once;
use super::{Abort, EpisodePlan, Episodes, millis, now};
use crate::fault::DriverError;
use crate::grade::Graded;
use crate::trajectory::{GrowingRow, Trajectory};
use bytes::Bytes;
use grpo_records::store::sha256_hex;
use grpo_records::{
    AbortCause, AgentEndRecord, Created, EndedEpisode, EpisodeEnd, EpisodeMeta, EpisodeRecord, ProcessScores, RowsFile,
    SCHEMA, TokenRow, TurnRecord, paths, rows,
};

/// The rewards of an episode; empty for a void.
#[derive(Debug, Default)]
pub(super) struct Worth {
    /// By the verdict, shaped or not.
    pub verdict: Option<f32>,
    /// By the judge, if the run has one.
    pub scores: Option<ProcessScores>,
}

impl Episodes {
    /// Folds an attempt that has no record yet. Returns whether the end of its agent is durable, and its patch. An
    /// attempt that cannot continue is abandoned.
    pub(super) async fn read_work(
        &self,
        dir: &str,
        trajectory: &mut Trajectory,
    ) -> Result<(bool, Option<Bytes>), Abort> {
        self.read_turns(dir, trajectory).await?;
        let end_kept = self.read_end(dir, trajectory).await?;
        let patch = self.stored_patch(dir).await?;
        // Rows without an end: their driver was about to abort the attempt, and more turns would not agree with them.
        // A patch without an end: an older driver kept no ends. Perhaps a limit ended the agent; a guess would be
        // trained on, and another attempt is not.
        let no_end = trajectory.end.is_none() && (patch.is_some() || self.store.exists(&paths::rows(dir)).await?);
        // No turn names the sandbox from which the patch is to be taken.
        let needs_patch = patch.is_none() && trajectory.end != Some(EpisodeEnd::SandboxExhausted);
        let no_sandbox = needs_patch && end_kept && trajectory.turns.is_empty();
        match no_end || no_sandbox {
            true => Err(Abort::Abandoned),
            false => Ok((end_kept, patch)),
        }
    }

    /// Folds the turns of an attempt whose agent was still at work.
    async fn read_turns(&self, dir: &str, trajectory: &mut Trajectory) -> Result<(), Abort> {
        let (files, _) = self.store.names_in(&paths::turns(dir)).await?;
        for number in 0..files.len() as u32 {
            let record: TurnRecord = self.store.read(&paths::turn(dir, number)).await?;
            trajectory.push(&record)?;
        }
        Ok(())
    }

    /// Takes over the end of the agent, if an earlier driver saw it. False if no driver did.
    async fn read_end(&self, dir: &str, trajectory: &mut Trajectory) -> Result<bool, Abort> {
        let path = paths::agent_end(dir);
        let Some(record) = self.store.read_if_there::<AgentEndRecord>(&path).await? else {
            return Ok(false);
        };
        trajectory.end = Some(record.end);
        trajectory.process = record.process;
        Ok(true)
    }

    /// Makes the end of the agent durable.
    pub(super) async fn write_end(
        &self,
        dir: &str,
        end: EpisodeEnd,
        trajectory: &Trajectory,
    ) -> Result<(), DriverError> {
        let record = AgentEndRecord {
            schema: SCHEMA,
            writer: self.writer.clone(),
            end,
            process: trajectory.process.clone(),
        };
        once::create(&self.store, &self.writer, &paths::agent_end(dir), &record).await
    }

    /// Folds an attempt whose agent is done, and returns its record.
    pub(super) async fn read_ended(
        &self,
        dir: &str,
        trajectory: &mut Trajectory,
    ) -> Result<Option<EpisodeRecord>, Abort> {
        let Some(record) = self
            .store
            .read_if_there::<EpisodeRecord>(&paths::trajectory(dir))
            .await?
        else {
            return Ok(None);
        };
        let rows = match &record.rows {
            Some(_) => self.store.bytes(&paths::rows(dir)).await?,
            None => Bytes::new(),
        };
        let unusable = |error| DriverError::Other(format!("the episode in {dir}: {error}"));
        let ended = EndedEpisode::of(record, &rows).map_err(unusable)?;
        for turn in ended.turns().map_err(unusable)? {
            trajectory.push(&turn)?;
        }
        trajectory.end = Some(ended.record.end);
        trajectory.patch_too_large = ended.record.patch_too_large;
        self.remove_work(dir).await?;
        Ok(Some(ended.record))
    }

    /// The patch an earlier driver stored.
    pub(super) async fn stored_patch(&self, dir: &str) -> Result<Option<Bytes>, DriverError> {
        match self.store.exists(&paths::patch(dir)).await? {
            true => Ok(Some(self.store.bytes(&paths::patch(dir)).await?)),
            false => Ok(None),
        }
    }

    pub(super) async fn write_trajectory(
        &self,
        plan: &EpisodePlan,
        dir: &str,
        attempt: u32,
        trajectory: &Trajectory,
        aborted: Option<AbortCause>,
    ) -> Result<(), DriverError> {
        let end = trajectory.end.unwrap_or(EpisodeEnd::Aborted);
        let sampling = &plan.sampling;
        let turns = trajectory.whole_turns();
        let turns = turns.map_err(|error| DriverError::Other(error.to_string()))?;
        let record = EpisodeRecord {
            schema: SCHEMA,
            writer: self.writer.clone(),
            run: self.settings.uid.clone(),
            key: plan.key.clone(),
            attempt,
            task: plan.task.index,
            image: plan.task.image.clone(),
            end,
            aborted,
            patch_too_large: trajectory.patch_too_large,
            turns: turns.into_owned(),
            process: trajectory.process.clone(),
            rows: self.write_rows(dir, trajectory).await?,
            temperature: sampling.temperature as f32,
            top_p: sampling.top_p as f32,
            top_k: sampling.top_k,
            truncated: end.is_truncation(),
            started_at: trajectory.turns.first().map_or_else(now, |turn| turn.at),
            finished_at: now(),
        };
        once::create(&self.store, &self.writer, &paths::trajectory(dir), &record).await?;
        self.remove_work(dir).await
    }

    async fn write_rows(&self, dir: &str, trajectory: &Trajectory) -> Result<Option<RowsFile>, DriverError> {
        if trajectory.rows.is_empty() {
            return Ok(None);
        }
        let stored: Vec<TokenRow> = trajectory.rows.iter().map(GrowingRow::stored).collect();
        let bytes: Bytes = rows::encode(&stored)
            .map_err(|error| DriverError::Other(format!("writing the rows of {dir}: {error}")))?
            .into();
        let file = RowsFile {
            sha256: sha256_hex(&bytes),
            rows: trajectory.rows.len(),
            tokens: trajectory.tokens(),
        };
        once::create_bytes(&self.store, &self.writer, &paths::rows(dir), bytes).await?;
        Ok(Some(file))
    }

    /// Removes the files of an agent at work, once the record has their contents.
    async fn remove_work(&self, dir: &str) -> Result<(), DriverError> {
        let folder = paths::turns(dir);
        let (files, _) = self.store.names_in(&folder).await?;
        for file in files {
            self.store.delete(&format!("{folder}/{file}")).await?;
        }
        self.store.delete(&paths::agent_end(dir)).await?;
        self.store.delete_folder(&paths::starts(dir)).await?;
        Ok(self.store.delete_folder(&paths::intents(dir)).await?)
    }

    #[expect(clippy::too_many_arguments, reason = "each is another part of the record")]
    pub(super) async fn write_meta(
        &self,
        plan: &EpisodePlan,
        dir: &str,
        attempt: u32,
        trajectory: &Trajectory,
        patch: Option<&Bytes>,
        graded: Graded,
        worth: Worth,
    ) -> Result<EpisodeMeta, DriverError> {
        let end = trajectory.end.unwrap_or(EpisodeEnd::Aborted);
        let weight = self.judge.as_ref().map_or(0.0, |judge| judge.rule().coefficient);
        let Worth { verdict, scores } = worth;
        let meta = EpisodeMeta {
            schema: SCHEMA,
            writer: self.writer.clone(),
            run: self.settings.uid.clone(),
            key: plan.key.clone(),
            attempt,
            reward: scores.as_ref().map(|scores| scores.reward(weight)).or(verdict),
            process: scores,
            outcome: graded.outcome,
            end,
            turns: trajectory.next_turn(),
            tokens: trajectory.tokens(),
            sampled_tokens: trajectory.sampled(),
            format_errors: trajectory.format_errors(),
            truncated: end.is_truncation(),
            weights: trajectory.versions(),
            untrainable: trajectory.turns.iter().any(TurnRecord::is_text_only),
            patch_bytes: patch.map_or(0, Bytes::len),
            patch_sha256: patch.map(|p| sha256_hex(p)),
            graded: graded.task,
            grade: graded.record,
            message: graded.message,
            agent_millis: trajectory.sample_millis + trajectory.exec_millis,
            grade_millis: millis(graded.took),
            waited_millis: trajectory.waited_millis,
            at: now(),
        };
        let meta = match self.store.create(&paths::meta(dir), &meta).await? {
            Created::Written { .. } => meta,
            // Another driver was first: an attempt has one verdict, and theirs stands.
            Created::Existed => self.store.read(&paths::meta(dir)).await?,
        };
        self.remove_verdict(dir, &meta).await;
        Ok(meta)
    }

    /// Removes the file of a verdict that `meta` contains. A void contains none, and another episode may have taken
    /// over that of its attempt.
    pub async fn remove_verdict(&self, dir: &str, meta: &EpisodeMeta) {
        if meta.outcome.is_verdict()
            && let Err(error) = self.store.delete(&paths::verdict(dir)).await
        {
            tracing::warn!("{dir} keeps its verdict beside its record: {error}");
        }
    }
}
