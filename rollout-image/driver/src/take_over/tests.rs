use super::*;
use async_trait::async_trait;
use bytes::Bytes;
use grpo_records::{Created, Journal, Store, StoreError};
use object_store::ObjectStore;
use std::collections::VecDeque;
use std::sync::Mutex;

/// A store whose earlier drivers' entries arrive just before entries of this one.
#[derive(Debug)]
struct Late {
    inner: RunStore,
    /// The next one arrives at each write of an entry: the epoch of its driver, and its event.
    entries: Mutex<VecDeque<(u32, Event)>>,
}

#[async_trait]
impl Store for Late {
    fn objects(&self) -> &dyn ObjectStore {
        self.inner.objects()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    async fn create_bytes(&self, path: &str, bytes: Bytes) -> Result<Created, StoreError> {
        let late = self.entries.lock().unwrap().pop_front();
        if let Some((epoch, event)) = late {
            write(&self.inner, epoch, event).await;
        }
        self.inner.create_bytes(path, bytes).await
    }
}

async fn write(store: &RunStore, epoch: u32, event: Event) {
    let (mut journal, mut state) = Journal::open(store.clone(), Writer::driver(epoch)).await.unwrap();
    journal.append(event, &mut state).await.unwrap();
}

fn started(run: &str) -> Event {
    Event::RunStarted {
        run: run.into(),
        namespace: "ns".into(),
        name: "run".into(),
        seed: 7,
        tasks_sha256: "tasks".into(),
        tasks: 1,
        agent: Default::default(),
        rows_per_turn: false,
        process: None,
        reward: None,
        sets_sha256: None,
        inputs_sha256: None,
    }
}

fn batch_written(step: u32) -> Event {
    Event::BatchWritten {
        iteration: step,
        step,
        sha256: "batch".into(),
        rows: 1,
    }
}

/// The second driver takes over a store, while these entries arrive. Returns what it got, and the state of the store.
async fn with_late(
    known: Vec<Event>,
    late: Vec<(u32, Event)>,
    resume: Resume,
) -> (Result<Arc<SharedJournal>, DriverError>, RunState) {
    let mount = tempfile::tempdir().unwrap();
    let inner = RunStore::open(mount.path(), "ns/run").unwrap();
    for event in known {
        write(&inner, 1, event).await;
    }
    let store: Arc<dyn Store> = Arc::new(Late {
        inner: inner.clone(),
        entries: Mutex::new(late.into()),
    });
    let owner = Owner {
        uid: "ours",
        resume,
        store_path: "ns/run",
        tasks_sha256: "tasks",
        sets_sha256: None,
        measured: None,
        selected: "other tasks",
    };
    let taken = take_over(&RunStore::from(store), &Writer::driver(2), owner, started("ours")).await;
    let (_, state) = Journal::open(inner, Writer::driver(9)).await.unwrap();
    (taken, state)
}

#[tokio::test]
async fn an_entry_of_an_earlier_driver_that_arrives_late_is_read_and_fences_no_later_driver() {
    for entries in [1, LATE_ENTRIES] {
        let late = (1..=entries).map(|step| (1, batch_written(step))).collect();
        let (taken, state) = with_late(vec![started("ours")], late, Resume::default()).await;
        let journal = taken.unwrap();
        assert_eq!(state.driver, 2);
        let known = journal.read(|state| state.iterations.len() as u32).await;
        assert_eq!(known, entries, "it knows every batch that the earlier driver decided");
        journal.record(batch_written(entries + 1)).await.unwrap();
    }
}

#[tokio::test]
async fn a_store_that_another_run_begins_meanwhile_is_checked_again() {
    let late = vec![(1, started("another"))];
    let (taken, state) = with_late(Vec::new(), late, Resume::Never).await;
    let refused = taken.map(|_| ()).unwrap_err();
    assert!(
        matches!(&refused, DriverError::Terminal(fault) if fault.reason == Reason::StoreNotEmpty),
        "{refused}"
    );
    assert_eq!(state.run.as_deref(), Some("another"));
}

#[tokio::test]
async fn a_driver_that_starts_beside_a_later_one_is_superseded() {
    let late = vec![(3, Event::DriverStarted { epoch: 3 })];
    let (taken, state) = with_late(vec![started("ours")], late, Resume::default()).await;
    let refused = taken.map(|_| ()).unwrap_err();
    assert!(
        matches!(refused, DriverError::Superseded { epoch: 2, newer: 3 }),
        "{refused}"
    );
    assert_eq!(state.driver, 3);
}

#[tokio::test]
async fn a_driver_gives_up_on_a_journal_that_another_one_keeps_writing() {
    let late = (0..=LATE_ENTRIES).map(|step| (1, batch_written(step + 1))).collect();
    let (taken, _) = with_late(vec![started("ours")], late, Resume::default()).await;
    let refused = taken.map(|_| ()).unwrap_err();
    assert!(
        matches!(refused, DriverError::Journal(JournalError::Fenced { epoch: 2, .. })),
        "{refused}"
    );
}
