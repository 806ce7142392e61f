//! The open journal and the state it folds to, shared by everything in the driver that decides something.

use crate::fault::DriverError;
use grpo_records::{Event, Journal, RunState, RunStore, Writer};
use tokio::sync::Mutex;

pub struct SharedJournal {
    inner: Mutex<(Journal, RunState)>,
}

impl SharedJournal {
    pub async fn open(store: RunStore, writer: Writer) -> Result<Self, DriverError> {
        let (journal, state) = Journal::open(store, writer).await?;
        Ok(Self {
            inner: Mutex::new((journal, state)),
        })
    }

    /// Durable when this returns.
    pub async fn record(&self, event: Event) -> Result<(), DriverError> {
        let mut inner = self.inner.lock().await;
        let (journal, state) = &mut *inner;
        Ok(journal.append(event, state).await?)
    }

    /// Records the event that `decide` makes of the state as it is, if it makes one; nobody decides in between.
    pub async fn record_if(&self, decide: impl FnOnce(&RunState) -> Option<Event>) -> Result<bool, DriverError> {
        let mut inner = self.inner.lock().await;
        let (journal, state) = &mut *inner;
        match decide(state) {
            Some(event) => journal.append(event, state).await.map(|()| true).map_err(Into::into),
            None => Ok(false),
        }
    }

    /// Looks something up.
    pub async fn read<T>(&self, look: impl FnOnce(&RunState) -> T) -> T {
        look(&self.inner.lock().await.1)
    }
}
