//! The driver's journal: numbered decisions, each a separate file, created once. The run's state is the fold of them.
//!
//! If a number is already taken, another driver writes this journal; the driver that finds this stops.

use crate::event::{Event, JournalEntry};
use crate::paths;
use crate::record::{SCHEMA, Writer};
use crate::state::RunState;
use crate::store::{Created, RunStore, StoreError};
use futures::StreamExt;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "journal entry {sequence} is already there: another driver writes this journal, so this one (epoch {epoch}) stops"
    )]
    Fenced { sequence: u64, epoch: u32 },
    #[error(
        "journal entry {sequence} is missing although {newest} exists; the store was changed by hand or lost files"
    )]
    Gap { sequence: u64, newest: u64 },
}

/// The open journal of a driver.
#[derive(Debug)]
pub struct Journal {
    store: RunStore,
    writer: Writer,
    next: u64,
    /// Another driver's entry was found at `next`. From then on nothing is written, even if that entry disappears: a
    /// waiting append would otherwise take the number of the driver that continues.
    fenced: bool,
}

impl Journal {
    /// Reads all entries and folds them. A torn entry (truncated JSON, as a broken disk leaves it) was never
    /// acknowledged and is skipped; any other unreadable entry is an error.
    pub async fn open(store: RunStore, writer: Writer) -> Result<(Self, RunState), JournalError> {
        let mut state = RunState::default();
        let (mut names, _) = store.names_in(paths::JOURNAL).await?;
        names.retain(|n| n.ends_with(".json"));
        let newest = names
            .last()
            .and_then(|n| n.trim_end_matches(".json").parse::<u64>().ok())
            .unwrap_or(0);
        let entries = store.read_each::<JournalEntry, _>((1..=newest).map(paths::journal_entry));
        let mut entries = std::pin::pin!(futures::stream::iter(1..=newest).zip(entries));
        while let Some((sequence, entry)) = entries.next().await {
            match entry {
                Ok(entry) => state.apply(&entry),
                Err(StoreError::Unreadable { source, .. }) if source.is_eof() => state.torn += 1,
                Err(StoreError::Missing { .. }) => return Err(JournalError::Gap { sequence, newest }),
                Err(error) => return Err(error.into()),
            }
        }
        let journal = Self {
            store,
            writer,
            next: newest + 1,
            fenced: false,
        };
        Ok((journal, state))
    }

    /// Writes the event durably, then folds it into the state.
    pub async fn append(&mut self, event: Event, state: &mut RunState) -> Result<(), JournalError> {
        if self.fenced {
            return Err(self.refusal());
        }
        let entry = JournalEntry {
            schema: SCHEMA,
            writer: self.writer.clone(),
            sequence: self.next,
            at: jiff::Timestamp::now().as_second(),
            event,
        };
        match self.store.create(&paths::journal_entry(self.next), &entry).await? {
            Created::Written { .. } => {
                self.next += 1;
                state.apply(&entry);
                Ok(())
            }
            Created::Existed => {
                self.fenced = true;
                Err(self.refusal())
            }
        }
    }

    fn refusal(&self) -> JournalError {
        JournalError::Fenced {
            sequence: self.next,
            epoch: self.writer.epoch,
        }
    }
}

#[cfg(test)]
mod tests;
