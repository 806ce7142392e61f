//! The batch of a step: made from an iteration's episodes, written once, recorded in the journal.

use super::Run;
use crate::batches::{self, Heading};
use crate::dynamic::Chosen;
use crate::fault::{DriverError, TerminalFault};
use grpo_contracts::reason::Reason;
use grpo_records::store::sha256_hex;
use grpo_records::trainer::StepRequest;
use grpo_records::{Created, DropReason, EpisodeMeta, Event, IterationRecord, Outcome, paths};

impl Run {
    /// The heading of the batch of iteration `k`.
    pub(super) fn heading(&self, k: u32) -> Heading {
        Heading {
            writer: self.writer.clone(),
            run: self.settings.uid.clone(),
            iteration: k,
            step: k,
            max_staleness: self.settings.max_staleness,
            rows: self.settings.row_rule(),
            chosen: None,
        }
    }

    /// Writes the batch, the entries of dropped groups and the metrics record; then records the batch in the journal.
    /// The batch is first: once it exists, a later driver lets voids stand ([`crate::rollout`]), so that entries and
    /// record are about its groups.
    pub(super) async fn write_batch(
        &self,
        k: u32,
        metas: &[EpisodeMeta],
        chosen: Option<Chosen>,
    ) -> Result<StepRequest, DriverError> {
        let heading = Heading {
            chosen: chosen.map(|chosen| chosen.groups),
            ..self.heading(k)
        };
        let made = batches::make(&self.store, heading, metas)
            .await
            .map_err(|error| DriverError::Other(format!("making the batch of step {k}: {error}")))?;
        if made.batch.rows.is_empty() {
            return Err(no_valid_episodes(k, metas).into());
        }
        let path = paths::batch(k);
        let sha256 = match self.store.create(&path, &made.batch).await? {
            Created::Written { sha256 } => sha256,
            // An earlier driver wrote it and crashed before the journal entry.
            Created::Existed => sha256_hex(&self.store.bytes(&path).await?),
        };
        let weights = self
            .journal
            .read(|s| s.iterations.get(&k).map(|one| one.weights.clone()))
            .await;
        let without_signal = |event: &&Event| {
            let alike = DropReason::NoSignal;
            matches!(event, Event::GroupDropped { reason, .. } if *reason == alike)
        };
        let record = IterationRecord {
            groups_dropped: made.dropped.len() as u32,
            groups_without_signal: made.dropped.iter().filter(without_signal).count() as u32,
            groups_constant: made.constant,
            staleness_max: made.staleness_max,
            ..IterationRecord::of(self.writer.clone(), k, weights.unwrap_or_default(), metas)
        };
        for event in made.dropped {
            self.record_drop_once(event).await?;
        }
        self.store.create(&paths::driver_metrics(k), &record).await?;
        self.journal
            .record(Event::BatchWritten {
                iteration: k,
                step: k,
                sha256: sha256.clone(),
                rows: made.batch.rows.len() as u32,
            })
            .await?;
        tracing::info!(
            iteration = k,
            resolved = record.resolved,
            episodes = record.episodes,
            voids = record.voids,
            "batch written"
        );
        self.board.change(|progress| {
            progress.resolved_rate = Some(record.resolved_rate);
            progress.reward = Some(record.reward_mean);
            progress.staleness = Some(record.staleness_max);
        });
        Ok(StepRequest {
            batch: path,
            sha256,
            checkpoint: None,
            iterations: None,
        })
    }

    pub(super) async fn record_drop_once(&self, event: Event) -> Result<(), DriverError> {
        let Event::GroupDropped {
            iteration,
            group,
            reason,
            ..
        } = event
        else {
            return Ok(());
        };
        let noted = self.journal.record_if(|state| {
            let known = state
                .iterations
                .get(&iteration)
                .is_some_and(|one| one.dropped.contains_key(&group));
            (!known).then(|| event.clone())
        });
        if noted.await? {
            self.metrics.dropped(reason);
        }
        Ok(())
    }
}

fn no_valid_episodes(k: u32, metas: &[EpisodeMeta]) -> TerminalFault {
    TerminalFault::new(
        Reason::NoValidEpisodes,
        format!(
            "no group of iteration {k} has two valid episodes, {} of {} are void; for example {}",
            metas.iter().filter(|meta| !meta.outcome.is_verdict()).count(),
            metas.len(),
            example_of_void(metas)
        ),
    )
}

pub(super) fn example_of_void(metas: &[EpisodeMeta]) -> String {
    let example = metas.iter().find_map(|meta| match &meta.outcome {
        Outcome::Void { reason } => Some(format!("{reason:?}: {}", meta.message.clone().unwrap_or_default())),
        _ => None,
    });
    let unanswered = || {
        let meta = metas.iter().find(|meta| meta.turns == 0)?;
        let folder = meta.key.dir(meta.attempt);
        Some(format!("{folder} ended with {:?} before its first answer", meta.end))
    };
    example
        .or_else(unanswered)
        .unwrap_or_else(|| "their tokens are too stale".into())
}
