//! The run's curves at experiment trackers (`spec.trackers`): [`mlflow`], and [`wandb`] as a file and by upload.
//!
//! A tracker reads the journal as it grows, because an entry is written after the metrics that it is about:
//! [`points::of`] makes points of an entry. The time of a point is that of its entry. So a point that is sent again,
//! after a lost answer or by the next driver, is the same point.
//!
//! Trackers are a convenience: each works in a task of its own, tries again for as long as the driver works, and a run
//! neither waits for one nor fails with one. The store has all numbers.

mod http;
pub mod mlflow;
pub mod points;
pub mod wandb;

use crate::retry::{Pauses, Retry};
use futures::future::BoxFuture;
use grpo_contracts::RunConfig;
use grpo_records::look::entries::EntriesOf;
use grpo_records::look::{Records, Refusal};
use grpo_records::store::StoreError;
use grpo_records::{Event, JournalEntry, RunStore, paths};
use points::Point;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How often the journal is read.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long the end of the driver waits for the last points.
const LAST_POINTS: Duration = Duration::from_secs(15);
const PAUSES: Pauses = Pauses::doubling(Duration::from_secs(2), Duration::from_secs(60));
/// Longer than any driver works.
const ALWAYS: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Why a tracker does not have the newest points yet.
#[derive(Debug, thiserror::Error)]
pub enum TrackerError {
    #[error("reading the run's store: {0}")]
    Store(#[from] StoreError),
    #[error("reading the run's journal: {0}")]
    Journal(#[from] Refusal),
    #[error("reading the token or key {path}: {source}")]
    Token { path: String, source: std::io::Error },
    #[error("{doing}: {source}")]
    Unreachable { doing: String, source: reqwest::Error },
    #[error("{doing}: the server answers {status}: {says}")]
    Refused {
        doing: String,
        status: u16,
        says: String,
        /// The pause that the server asks for.
        wait: Duration,
    },
    #[error("{doing}: the server answers {status}: {says}; {advice}")]
    Unauthorized {
        doing: String,
        status: u16,
        says: String,
        /// What to check.
        advice: &'static str,
    },
    #[error("{doing}: the answer has more than {most} bytes, which no answer of a tracker has; check the url")]
    TooLong { doing: String, most: usize },
    #[error("{doing}: the server refuses it: {says}")]
    Declined { doing: String, says: String },
    #[error("{doing}: the answer is not {whose}; check the url: {says}")]
    Foreign {
        doing: String,
        whose: &'static str,
        says: String,
    },
    #[error("the task that reads the store ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl TrackerError {
    /// The pause that the server asks for, beyond the usual one.
    fn wait(&self) -> Duration {
        match self {
            Self::Refused { wait, .. } => *wait,
            _ => Duration::ZERO,
        }
    }
}

/// How the run stands by the newest entry of its journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Also after a failure from which it was resumed.
    #[default]
    Working,
    Ended {
        succeeded: bool,
    },
}

/// A place that shows curves. A failed call is repeated with the same content.
pub trait Tracker: Send {
    fn name(&self) -> &'static str;

    /// Finds or makes the run there. `began`: the time of its first entry, in seconds since 1970. Returns the number of
    /// the last journal entry whose points it has; 0: none.
    fn begin(&mut self, began: i64) -> BoxFuture<'_, Result<u64, TrackerError>>;

    /// Adds points, those of the journal up to the entry `upto`.
    fn add<'a>(&'a mut self, upto: u64, points: &'a [Point]) -> BoxFuture<'a, Result<(), TrackerError>>;

    /// Says how the run stands, after the points of the whole journal. Called again and again.
    fn stand(&mut self, standing: Standing) -> BoxFuture<'_, Result<(), TrackerError>>;
}

/// What people compare runs by. Not the whole spec: variables of processes may be secret.
fn parameters(config: &RunConfig) -> Vec<(&'static str, Value)> {
    let spec = serde_json::to_value(&config.spec).unwrap_or_default();
    let paths = [
        ("mode", "/mode"),
        ("seed", "/seed"),
        ("model", "/model"),
        ("learningRate", "/algorithm/learningRate"),
        ("advantage", "/algorithm/advantage"),
        ("clip", "/algorithm/clip"),
        ("aggregation", "/algorithm/aggregation"),
        ("prompts", "/rollout/prompts"),
        ("samples", "/rollout/samples"),
        ("iterations", "/rollout/iterations"),
        ("sampling", "/rollout/sampling"),
    ];
    let given = paths
        .into_iter()
        .filter_map(|(name, path)| Some((name, spec.pointer(path)?.clone())));
    given.filter(|(_, value)| !value.is_null()).collect()
}

/// The trackers of a driver.
pub struct Trackers {
    ending: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Trackers {
    /// Starts those that the run names. `attempt`: the driver's.
    pub fn start(config: &RunConfig, store: &RunStore, attempt: u32) -> Self {
        let mut trackers: Vec<Box<dyn Tracker>> = Vec::new();
        let wanted = config.spec.trackers.clone().unwrap_or_default();
        if let Some(wanted) = &wanted.mlflow {
            trackers.push(Box::new(mlflow::Mlflow::of(wanted, config)));
        }
        if let Some(wanted) = &wanted.wandb {
            trackers.push(Box::new(wandb::Wandb::of(wanted, config, store.clone(), attempt)));
            // A tracker of its own: the file is written while the server is away.
            if let Some(upload) = &wanted.upload {
                trackers.push(Box::new(wandb::live::Live::of(wanted, upload, config)));
            }
        }
        let (ending, told) = watch::channel(false);
        let tasks = trackers
            .into_iter()
            .map(|tracker| tokio::spawn(follow(tracker, store.clone(), told.clone())))
            .collect();
        Self { ending, tasks }
    }

    /// Lets each tracker have the last points, for a limited time.
    pub async fn end(self) {
        let _ = self.ending.send(true);
        let all = futures::future::join_all(self.tasks);
        if tokio::time::timeout(LAST_POINTS, all).await.is_err() {
            tracing::warn!("a tracker does not have the last points yet; the store has them");
        }
    }
}

/// Sends points until the driver ends.
async fn follow(mut tracker: Box<dyn Tracker>, store: RunStore, mut ending: watch::Receiver<bool>) {
    let mut reader = Reader::new(store.clone());
    let mut retry = Retry::new(ALWAYS, PAUSES);
    let mut works = None;
    loop {
        let is_last = *ending.borrow_and_update();
        let sent = advance(&mut *tracker, &mut reader).await;
        let (is_well, name) = (sent.is_ok(), tracker.name());
        let asked = sent.as_ref().err().map_or(Duration::ZERO, TrackerError::wait);
        // Once for each outage.
        match &sent {
            Err(error) if works != Some(false) => {
                tracing::warn!(%error, tracker = name, "the tracker has no new points; this is tried again");
            }
            Ok(()) if works != Some(true) => tracing::info!(tracker = name, "the tracker has the newest points"),
            _ => {}
        }
        works = Some(is_well);
        match is_well {
            true if is_last => return,
            true => retry.progress(),
            // The tracker is asked again what it has.
            false => reader = Reader::new(store.clone()),
        }
        let pause = async {
            match is_well {
                true => tokio::time::sleep(LOOK_AGAIN).await,
                false => {
                    let _ = retry.pause_after(asked).await;
                }
            }
        };
        tokio::select! {
            () = pause => {}
            changed = ending.changed() => match changed {
                // The last tries come soon after each other.
                Ok(()) => retry.progress(),
                Err(_) => return,
            },
        }
    }
}

/// The journal, and how far a tracker has it.
struct Reader {
    records: Records,
    store: RunStore,
    /// Before the tracker was asked what it has: `None`.
    place: Option<Place>,
}

#[derive(Clone, Copy)]
struct Place {
    /// The number of the last entry that was read.
    after: u64,
    /// The tracker has the points of entries up to this one.
    has: u64,
    standing: Standing,
}

impl Reader {
    fn new(store: RunStore) -> Self {
        Self {
            records: Records::of(store.clone()),
            store,
            place: None,
        }
    }

    /// The next entries; the number of the last one that was read; whether there are more now.
    async fn entries(&self, after: u64) -> Result<(Vec<JournalEntry>, u64, bool), TrackerError> {
        let records = self.records.clone();
        let page = tokio::task::spawn_blocking(move || records.entries(&EntriesOf { after })).await??;
        Ok((page.entries, page.after, page.more))
    }

    /// When the first entry was written; `None` before that.
    async fn began(&self) -> Result<Option<i64>, TrackerError> {
        match self.store.read_json::<JournalEntry>(&paths::journal_entry(1)).await {
            Ok(entry) => Ok(Some(entry.at)),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sends everything that is in the journal now.
async fn advance(tracker: &mut dyn Tracker, reader: &mut Reader) -> Result<(), TrackerError> {
    let mut place = match reader.place {
        Some(place) => place,
        None => {
            let Some(began) = reader.began().await? else {
                return Ok(());
            };
            let has = tracker.begin(began).await?;
            // The last entry once more: perhaps the run ended with it, and the tracker was not told.
            Place {
                after: has.saturating_sub(1),
                has,
                standing: Standing::default(),
            }
        }
    };
    loop {
        let (entries, upto, more) = reader.entries(place.after).await?;
        let mut points = Vec::new();
        for entry in &entries {
            if entry.sequence > place.has {
                points.extend(points::of(&reader.store, entry).await?);
            }
            place.standing = match entry.event {
                Event::RunFinished { succeeded, .. } => Standing::Ended { succeeded },
                _ => Standing::Working,
            };
        }
        if !points.is_empty() {
            tracker.add(upto, &points).await?;
        }
        (place.after, place.has) = (upto, place.has.max(upto));
        reader.place = Some(place);
        if !more {
            return tracker.stand(place.standing).await;
        }
    }
}

#[cfg(test)]
mod tests;
