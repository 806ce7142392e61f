//! The open journal and its folded state, shared by all parts of the driver that make decisions.

use crate::fault::DriverError;
use grpo_records::{Event, Journal, RunState, RunStore, Writer};
use std::sync::Arc;
use tokio::sync::Mutex;

pub struct SharedJournal {
    inner: Arc<Mutex<(Journal, RunState)>>,
}

impl SharedJournal {
    pub async fn open(store: RunStore, writer: Writer) -> Result<Self, DriverError> {
        let (journal, state) = Journal::open(store, writer).await?;
        Ok(Self {
            inner: Arc::new(Mutex::new((journal, state))),
        })
    }

    /// Durable when this returns.
    pub async fn record(&self, event: Event) -> Result<(), DriverError> {
        self.record_if(|_| Some(event)).await.map(|_| ())
    }

    /// Records the event that `decide` derives from the current state, if any; no other entry comes in between. An
    /// append that began completes even if the caller is dropped: half an entry would fence the next one.
    pub async fn record_if(&self, decide: impl FnOnce(&RunState) -> Option<Event>) -> Result<bool, DriverError> {
        let mut inner = self.inner.clone().lock_owned().await;
        let Some(event) = decide(&inner.1) else {
            return Ok(false);
        };
        let append = tokio::spawn(async move {
            let (journal, state) = &mut *inner;
            journal.append(event, state).await
        });
        match append.await {
            Ok(appended) => appended.map(|()| true).map_err(Into::into),
            Err(error) => Err(DriverError::Other(format!("writing the journal: {error}"))),
        }
    }

    /// Records the success of the run, once.
    pub async fn succeeded(&self) -> Result<(), DriverError> {
        let recorded = self.record_if(|state| {
            let done = state.finished.as_ref().is_some_and(|finished| finished.succeeded);
            (!done).then_some(Event::RunFinished {
                succeeded: true,
                reason: None,
                message: None,
            })
        });
        recorded.await.map(|_| ())
    }

    /// Reads the state.
    pub async fn read<T>(&self, look: impl FnOnce(&RunState) -> T) -> T {
        look(&self.inner.lock().await.1)
    }
}
