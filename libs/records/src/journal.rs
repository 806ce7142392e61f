//! The driver's journal: numbered decisions, each a file of its own, created once. The state of a run is their fold.
//!
//! A number that is already taken means that another driver writes this journal; the one who finds that out stops.

use crate::event::{Event, JournalEntry};
use crate::paths;
use crate::record::{SCHEMA, Writer};
use crate::state::RunState;
use crate::store::{Created, RunStore, StoreError};

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
}

impl Journal {
    /// Reads everything and folds it. A torn entry (cut off in the middle of its JSON, as a broken disk leaves it) was
    /// never acknowledged and is passed over; any other unreadable entry is an error.
    pub async fn open(store: RunStore, writer: Writer) -> Result<(Self, RunState), JournalError> {
        let mut state = RunState::default();
        let (mut names, _) = store.names_in(paths::JOURNAL).await?;
        names.retain(|n| n.ends_with(".json"));
        let newest = names
            .last()
            .and_then(|n| n.trim_end_matches(".json").parse::<u64>().ok())
            .unwrap_or(0);
        for sequence in 1..=newest {
            match store.read::<JournalEntry>(&paths::journal_entry(sequence)).await {
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
        };
        Ok((journal, state))
    }

    /// Writes the event durably, then folds it into the state.
    pub async fn append(&mut self, event: Event, state: &mut RunState) -> Result<(), JournalError> {
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
            Created::Existed => Err(JournalError::Fenced {
                sequence: self.next,
                epoch: self.writer.epoch,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promoted(step: u32) -> Event {
        Event::Promoted {
            weights: format!("a-v{step}"),
            manifest_sha256: "00".into(),
            step,
        }
    }

    #[tokio::test]
    async fn the_state_after_a_restart_is_the_state_before_it() {
        let mount = tempfile::tempdir().unwrap();
        let store = RunStore::open(mount.path(), "ns/run").unwrap();
        let (mut journal, mut state) = Journal::open(store.clone(), Writer::driver(1)).await.unwrap();
        for step in 0..3 {
            journal.append(promoted(step), &mut state).await.unwrap();
        }
        let (_, again) = Journal::open(store, Writer::driver(2)).await.unwrap();
        assert_eq!(again, state);
        assert_eq!(again.promoted.unwrap().weights, "a-v2");
    }

    #[tokio::test]
    async fn a_second_driver_fences_the_first() {
        let mount = tempfile::tempdir().unwrap();
        let store = RunStore::open(mount.path(), "ns/run").unwrap();
        let (mut old, mut old_state) = Journal::open(store.clone(), Writer::driver(1)).await.unwrap();
        let (mut new, mut new_state) = Journal::open(store, Writer::driver(2)).await.unwrap();
        new.append(promoted(0), &mut new_state).await.unwrap();
        let refused = old.append(promoted(7), &mut old_state).await;
        assert!(matches!(refused, Err(JournalError::Fenced { sequence: 1, epoch: 1 })));
        assert_eq!(old_state.promoted, None);
    }

    #[tokio::test]
    async fn a_torn_tail_is_passed_over_and_the_journal_goes_on_behind_it() {
        let mount = tempfile::tempdir().unwrap();
        let store = RunStore::open(mount.path(), "ns/run").unwrap();
        let (mut journal, mut state) = Journal::open(store.clone(), Writer::driver(1)).await.unwrap();
        journal.append(promoted(0), &mut state).await.unwrap();
        std::fs::write(
            mount.path().join("ns/run/journal/0000000002.json"),
            "{\"schema\":2,\"wri",
        )
        .unwrap();
        let (mut journal, mut state) = Journal::open(store.clone(), Writer::driver(2)).await.unwrap();
        assert_eq!((state.torn, state.promoted.clone().unwrap().step), (1, 0));
        journal.append(promoted(1), &mut state).await.unwrap();
        let (_, state) = Journal::open(store, Writer::driver(3)).await.unwrap();
        assert_eq!(state.promoted.unwrap().step, 1);
    }

    #[tokio::test]
    async fn a_missing_entry_in_the_middle_is_an_error() {
        let mount = tempfile::tempdir().unwrap();
        let store = RunStore::open(mount.path(), "ns/run").unwrap();
        let (mut journal, mut state) = Journal::open(store.clone(), Writer::driver(1)).await.unwrap();
        for step in 0..3 {
            journal.append(promoted(step), &mut state).await.unwrap();
        }
        std::fs::remove_file(mount.path().join("ns/run/journal/0000000002.json")).unwrap();
        let refused = Journal::open(store, Writer::driver(2)).await;
        assert!(matches!(refused, Err(JournalError::Gap { sequence: 2, newest: 3 })));
    }
}
