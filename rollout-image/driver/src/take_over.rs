//! Takes over a run's store: refuses one that holds something else, then fences the drivers of earlier epochs.

use crate::config::Inputs;
use crate::fault::{DriverError, TerminalFault};
use crate::shared_journal::SharedJournal;
use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::Resume;
use grpo_records::settings::Sampling;
use grpo_records::{Event, JournalError, RunState, RunStore, Writer};
use std::sync::Arc;

/// Entries of earlier drivers that may arrive while this driver takes over. A driver that ended leaves at most one; one
/// that still works may write a few.
const LATE_ENTRIES: u32 = 10;

/// The run that takes over a store, and its rows.
#[derive(Clone, Copy)]
pub struct Owner<'a> {
    pub uid: &'a str,
    pub resume: Resume,
    pub store_path: &'a str,
    /// Of all rows in order.
    pub tasks_sha256: &'a str,
    /// Of the rows and their sets, if the run has sets.
    pub sets_sha256: Option<&'a str>,
    /// In mode Evaluate.
    pub measured: Option<Measured<'a>>,
    /// Words for the message if the store began with other rows.
    pub selected: &'a str,
}

/// What an evaluation measures, apart from its tasks: it takes over results of the same only.
#[derive(Clone, Copy)]
pub struct Measured<'a> {
    /// As in [`Event::RunStarted`].
    pub inputs: &'a Inputs,
    pub sampling: Sampling,
}

impl Measured<'_> {
    /// What an earlier run in the store measured differently. Nothing is known of a store without the checksum.
    fn differs(&self, earlier: &RunState) -> Option<&'static str> {
        let inputs = earlier.inputs_sha256.as_deref()?;
        if inputs != self.inputs.sha256 && inputs != self.inputs.earlier {
            return Some(
                "another model, another agent, another pool, other samples, rows read in another way or another reward.gradeTimeout",
            );
        }
        let sampling = earlier.settings.as_ref().map(|settings| settings.sampling);
        sampling
            .is_some_and(|sampling| sampling != self.sampling)
            .then_some("another rollout.sampling")
    }
}

/// Opens the journal, takes up the store and fences earlier drivers.
///
/// The last entry of an earlier driver may arrive after its process ended: a bucket or a network volume completes the
/// request. That is no second driver, so the entry is read and the takeover begins again.
pub async fn take_over(
    store: &RunStore,
    writer: &Writer,
    owner: Owner<'_>,
    started: Event,
) -> Result<Arc<SharedJournal>, DriverError> {
    let mut late = 0;
    loop {
        let journal = SharedJournal::open(store.clone(), writer.clone()).await?;
        let taken = match take_up_store(owner, &journal, started.clone()).await {
            Ok(()) => fence_earlier_drivers(&journal, writer.epoch).await,
            refused => refused,
        };
        match taken {
            Ok(()) => return Ok(Arc::new(journal)),
            Err(DriverError::Journal(JournalError::Fenced { sequence, .. })) if late < LATE_ENTRIES => {
                late += 1;
                tracing::info!(
                    sequence,
                    "an earlier driver's journal entry arrived late; reading the journal again"
                );
            }
            Err(error) => return Err(error),
        }
    }
}

/// Continues in a store that this run began, or a run of the same name and tasks; refuses any other store.
async fn take_up_store(owner: Owner<'_>, journal: &SharedJournal, started: Event) -> Result<(), DriverError> {
    let of = |state: &RunState| {
        let differs = owner.measured.and_then(|measured| measured.differs(state));
        let is_same = |known: &Option<String>, now: Option<&str>| match (known.as_deref(), now) {
            (Some(known), Some(now)) => known == now,
            _ => true,
        };
        let same_tasks =
            is_same(&state.tasks_sha256, Some(owner.tasks_sha256)) && is_same(&state.sets_sha256, owner.sets_sha256);
        (state.run.clone(), same_tasks, differs)
    };
    let (known, same_tasks, differs) = journal.read(of).await;
    let ours = known.as_deref() == Some(owner.uid);
    let path = owner.store_path;
    if known.is_some() && !ours && owner.resume == Resume::Never {
        let message = format!(
            "the store at {path} holds the run {}; with resume: Never this run needs another store.path or an empty volume",
            known.unwrap_or_default()
        );
        return Err(TerminalFault::new(Reason::StoreNotEmpty, message).into());
    }
    if !same_tasks {
        let message = format!(
            "the store at {path} was begun with {} now; give this run another store.path",
            owner.selected
        );
        return Err(TerminalFault::new(Reason::TasksChanged, message).into());
    }
    // A run of its own may change its sampling, and nothing else of this.
    if let Some(what) = differs.filter(|_| !ours) {
        let message = format!(
            "the store at {path} holds the results of an evaluation with {what}; give this run another name or store.path"
        );
        return Err(TerminalFault::new(Reason::TasksChanged, message).into());
    }
    match ours {
        true => Ok(()),
        false => journal.record(started).await,
    }
}

/// Fences drivers of earlier epochs: they record no more decisions, and one that starts late does not begin.
async fn fence_earlier_drivers(journal: &SharedJournal, epoch: u32) -> Result<(), DriverError> {
    let started = journal
        .record_if(|state| (state.driver <= epoch).then_some(Event::DriverStarted { epoch }))
        .await?;
    match started {
        true => Ok(()),
        false => {
            let newer = journal.read(|state| state.driver).await;
            Err(DriverError::Superseded { epoch, newer })
        }
    }
}

#[cfg(test)]
mod tests;
