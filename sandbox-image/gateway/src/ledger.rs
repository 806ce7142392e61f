//! The durable record of leases: ConfigMaps (the ledger shards) with one key per lease. A shard is written by
//! compare-and-swap, one update per batch of changes.
//!
//! Group commit: changes that arrive during one update go into the next one. All leases of a batch go into one shard
//! that has room, so a batch is one write, independent of the number of shards. Only a long queue is written to several
//! shards at once. Removals are not urgent, because an entry whose pod is gone means nothing: an entry is removed with
//! the next update of its shard, or after [`REMOVED_WITHIN`].
//!
//! Fencing: a gateway that begins takes the first shard, and with it a term, one more than the last; then it marks the
//! other shards with both. A shard is never taken from a later term. If an update finds another gateway's mark, or
//! entries that it did not write, this gateway has been replaced and ends. Without writes it checks its mark at
//! intervals.
//!
//! Renewals are not written: the expiry of an entry is that of the first grant. A gateway that restores leases gives
//! their holders time to renew them.

mod shard;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use grpo_sandbox_protocol::{LedgerEntry, PoolReport};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use grpo_contracts::names::LEASES_PER_SHARD;
pub use shard::FencingCheck;
use shard::{Shard, key};

/// Maximum waiting changes.
const BACKLOG: usize = 16_384;
/// Number of waiting leases from which one more shard is written in parallel, up to [`WRITERS`].
const ANOTHER_WRITER: usize = 128;
/// Maximum shards written at one time.
const WRITERS: usize = 4;
/// Longest time that an unneeded entry stays.
const REMOVED_WITHIN: Duration = Duration::from_secs(1);
/// Pause between two checks of the mark when there are no writes.
const LOOK: Duration = Duration::from_secs(5);

/// One change.
pub enum Change {
    Put {
        entry: LedgerEntry,
        done: oneshot::Sender<()>,
    },
    /// A longer time for a lease in the ledger. Dropped unanswered if the lease has been removed meanwhile.
    Extend {
        entry: LedgerEntry,
        done: oneshot::Sender<()>,
    },
    /// The epoch keeps a late removal from removing a later lease of the same id.
    Remove { lease: String, epoch: u64 },
    /// The gateway's report on its pool. It goes with the next update of the first shard.
    Report(Box<PoolReport>),
    /// Answered when everything before it is written, removals too.
    Flush { done: oneshot::Sender<()> },
}

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("reading the ledger {name}: {source}; does the operator's ConfigMap exist?")]
    Read { name: String, source: kube::Error },
    #[error("taking hold of the ledger {name}: {source}")]
    Hold { name: String, source: kube::Error },
    #[error("another gateway writes the ledger {name}; this one ends")]
    Fenced { name: String },
    #[error("the pool has no ledger; give at least one with --ledger")]
    NoShard,
}

/// Counts of the ledger's work, for the metrics. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Updates that the API server accepted.
    pub writes: Counter,
    /// Leases that these updates made durable.
    pub leases: Counter,
    /// Failed updates that were retried.
    pub retries: Counter,
}

/// The ledger's view for the rest of the gateway.
#[derive(Clone, Default)]
pub struct Known {
    pub counters: Counters,
    /// The report of an earlier gateway.
    pub report: PoolReport,
    /// `None` if no other gateway can own the pool.
    pub fencing: Option<FencingCheck>,
}

type Written = Result<(Shard, Vec<oneshot::Sender<()>>), LedgerError>;

/// The ledger as last written.
pub struct Ledger {
    fencing: FencingCheck,
    idle: BTreeMap<usize, Shard>,
    /// The shard in which each lease is, or is being written, and its epoch.
    at: HashMap<String, (usize, u64)>,
    /// Leases to remove from each shard, and since when.
    removals: HashMap<usize, Removals>,
    /// Leases that wait to be written.
    backlog: VecDeque<(LedgerEntry, oneshot::Sender<()>)>,
    flushes: Vec<oneshot::Sender<()>>,
    /// The report to write, and since when.
    report: Option<(String, Instant)>,
    counters: Counters,
}

struct Removals {
    keys: HashSet<String>,
    since: Instant,
}

impl Ledger {
    /// Takes hold of the ledger and returns its leases. `holder` is this gateway's mark. The previous gateway ends at
    /// its next write.
    pub async fn open(
        api: Api<ConfigMap>,
        names: &[String],
        holder: &str,
    ) -> Result<(Self, Vec<LedgerEntry>, Known), LedgerError> {
        let first = names.first().ok_or(LedgerError::NoShard)?.clone();
        let (shard, mark) = Shard::take_first(&api, &first, holder).await?;
        let report = shard.report();
        let mut shards = vec![shard];
        let others = names.iter().skip(1).map(|name| Shard::take(&api, name, &mark));
        let mut others = futures::stream::iter(others).buffered(8);
        while let Some(shard) = others.next().await {
            shards.push(shard?);
        }
        drop(others);
        let mut ledger = Self {
            fencing: FencingCheck { api, first, mark },
            idle: BTreeMap::new(),
            at: HashMap::new(),
            removals: HashMap::new(),
            backlog: VecDeque::new(),
            flushes: Vec::new(),
            report: None,
            counters: Counters::default(),
        };
        let leases = ledger.take_up(shards);
        let known = Known {
            counters: ledger.counters.clone(),
            report,
            fencing: Some(ledger.fencing.clone()),
        };
        Ok((ledger, leases, known))
    }

    /// If a lease is in two shards, the later entry counts: the previous gateway was about to remove the other.
    fn take_up(&mut self, shards: Vec<Shard>) -> Vec<LedgerEntry> {
        let mut leases: HashMap<String, LedgerEntry> = HashMap::new();
        for (number, shard) in shards.into_iter().enumerate() {
            for entry in shard.leases() {
                let rank = |entry: &LedgerEntry| (entry.epoch, entry.ttl_millis);
                match leases.get(&entry.lease) {
                    Some(known) if rank(known) >= rank(&entry) => self.remove(number, &entry.lease),
                    _ => {
                        if let Some((other, _)) = self.at.insert(entry.lease.clone(), (number, entry.epoch)) {
                            self.remove(other, &entry.lease);
                        }
                        leases.insert(entry.lease.clone(), entry);
                    }
                }
            }
            self.idle.insert(number, shard);
        }
        leases.into_values().collect()
    }

    /// The term in which this gateway holds the ledger; later gateways have higher terms.
    pub fn term(&self) -> u64 {
        self.fencing.mark.term
    }

    /// Commits changes until the channel closes.
    pub async fn run(mut self, mut changes: mpsc::Receiver<Change>) -> Result<(), LedgerError> {
        let mut writing: FuturesUnordered<BoxFuture<'static, Written>> = FuturesUnordered::new();
        let (mut batch, mut is_open) = (Vec::new(), true);
        let mut look_at = Instant::now() + LOOK;
        while is_open || !writing.is_empty() || !self.is_settled() {
            if !is_open {
                self.hurry();
            }
            self.write(&mut writing);
            let wake = self.next_removal().unwrap_or(look_at).min(look_at);
            tokio::select! {
                count = changes.recv_many(&mut batch, BACKLOG), if is_open && self.backlog.len() < BACKLOG => {
                    is_open = count > 0;
                    batch.drain(..).for_each(|change| self.take(change));
                    // Other decisions of the same moment go into the same update.
                    tokio::task::yield_now().await;
                }
                Some(written) = writing.next() => {
                    let (shard, waiting) = written?;
                    tell(waiting);
                    self.idle.insert(shard.number(), shard);
                    look_at = Instant::now() + LOOK;
                }
                () = tokio::time::sleep_until(wake), if is_open => {
                    if Instant::now() >= look_at {
                        // An API server that does not answer proves nothing.
                        if let Err(fenced @ LedgerError::Fenced { .. }) = self.fencing.is_ours().await {
                            return Err(fenced);
                        }
                        look_at = Instant::now() + LOOK;
                    }
                }
            }
            if writing.is_empty() && self.is_settled() {
                tell(self.flushes.drain(..));
            }
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        self.backlog.is_empty() && self.removals.is_empty() && self.report.is_none()
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::Put { entry, done } => self.backlog.push_back((entry, done)),
            Change::Extend { entry, done } => {
                if self
                    .at
                    .get(&entry.lease)
                    .is_some_and(|(_, epoch)| *epoch == entry.epoch)
                {
                    self.backlog.push_back((entry, done));
                }
            }
            Change::Remove { lease, epoch } => {
                // Released before it was written, or while an extension waits. If the extension were written after this
                // removal, it would bring the lease back.
                let is_it = |entry: &LedgerEntry| entry.lease == lease && entry.epoch == epoch;
                self.backlog.retain(|(entry, _)| !is_it(entry));
                if let Some((number, _)) = self.at.get(&lease).copied().filter(|(_, at)| *at == epoch) {
                    self.at.remove(&lease);
                    self.remove(number, &lease);
                }
            }
            Change::Report(report) => {
                if let Ok(text) = serde_json::to_string(&report) {
                    let since = self.report.take().map_or_else(Instant::now, |(_, since)| since);
                    self.report = Some((text, since));
                }
            }
            Change::Flush { done } => {
                self.flushes.push(done);
                self.hurry();
            }
        }
    }

    fn remove(&mut self, number: usize, lease: &str) {
        let removals = self.removals.entry(number).or_insert_with(|| Removals {
            keys: HashSet::new(),
            since: Instant::now(),
        });
        removals.keys.insert(key(lease));
    }

    /// Makes every removal due.
    fn hurry(&mut self) {
        let long_ago = Instant::now() - REMOVED_WITHIN;
        for removals in self.removals.values_mut() {
            removals.since = removals.since.min(long_ago);
        }
        if let Some((_, since)) = &mut self.report {
            *since = long_ago.min(*since);
        }
    }

    fn next_removal(&self) -> Option<Instant> {
        // Removals of a shard that is being written wait for that write.
        let idle = self
            .removals
            .iter()
            .filter(|(number, _)| self.idle.contains_key(number));
        let report = self.report.iter().filter(|_| self.idle.contains_key(&0));
        let due = idle.map(|(_, removals)| removals.since);
        due.chain(report.map(|(_, since)| *since))
            .min()
            .map(|since| since + REMOVED_WITHIN)
    }

    /// Begins the updates that are due and possible now.
    fn write(&mut self, writing: &mut FuturesUnordered<BoxFuture<'static, Written>>) {
        while !self.backlog.is_empty() {
            let is_worth_it = writing.is_empty() || self.backlog.len() >= ANOTHER_WRITER;
            if !is_worth_it || writing.len() >= WRITERS {
                break;
            }
            let Some(number) = self.shard_with_room().or_else(|| self.shard_of_the_first()) else {
                break;
            };
            writing.extend(self.update(number));
        }
        let due = |removals: &Removals| removals.since + REMOVED_WITHIN <= Instant::now();
        let mut due: Vec<usize> = self.removals.iter().filter(|(_, r)| due(r)).map(|(n, _)| *n).collect();
        let report_is_due = |(_, since): &(String, Instant)| *since + REMOVED_WITHIN <= Instant::now();
        if self.report.as_ref().is_some_and(report_is_due) && !due.contains(&0) {
            due.push(0);
        }
        for number in due {
            if writing.len() < WRITERS {
                writing.extend(self.update(number));
            }
        }
    }

    /// The shard's room after its pending removals.
    fn room(&self, number: usize, shard: &Shard) -> usize {
        let going = self.removals.get(&number).map_or(0, |removals| removals.keys.len());
        (LEASES_PER_SHARD + going).saturating_sub(shard.len())
    }

    /// The shard for the next leases: the one with the most pending removals, because they go into the same write.
    fn shard_with_room(&self) -> Option<usize> {
        let going = |number: &usize| self.removals.get(number).map_or(0, |removals| removals.keys.len());
        let shards = self
            .idle
            .iter()
            .filter(|(number, shard)| self.room(**number, shard) > 0);
        shards
            .map(|(number, _)| *number)
            .max_by_key(|number| (going(number), std::cmp::Reverse(*number)))
    }

    /// The shard of the lease whose longer time is the first to be written: it takes no room.
    fn shard_of_the_first(&self) -> Option<usize> {
        let (entry, _) = self.backlog.front()?;
        let (number, _) = self.at.get(&entry.lease)?;
        self.idle.contains_key(number).then_some(*number)
    }

    /// One update of a shard that is not being written: its pending removals, and as many waiting leases as fit.
    fn update(&mut self, number: usize) -> Option<BoxFuture<'static, Written>> {
        let mut shard = self.idle.remove(&number)?;
        let room = self.room(number, &shard);
        let mut wanted = shard.entries().clone();
        for key in self
            .removals
            .remove(&number)
            .into_iter()
            .flat_map(|removals| removals.keys)
        {
            wanted.remove(&key);
        }
        let is_told = number == 0 && self.report.take().is_some_and(|(report, _)| shard.tell(report));
        let (mut waiting, mut added) = (Vec::new(), 0);
        while let Some((entry, _)) = self.backlog.front() {
            // A longer time replaces its own entry.
            let replaces = wanted.contains_key(&key(&entry.lease));
            if !replaces && added >= room {
                break;
            }
            added += usize::from(!replaces);
            let Some((entry, done)) = self.backlog.pop_front() else {
                break;
            };
            let Ok(text) = serde_json::to_string(&entry) else {
                continue;
            };
            wanted.insert(key(&entry.lease), text);
            waiting.push(done);
            match self.at.insert(entry.lease.clone(), (number, entry.epoch)) {
                Some((other, _)) if other != number => self.remove(other, &entry.lease),
                _ => {}
            }
        }
        let (FencingCheck { api, mark, .. }, counters) = (self.fencing.clone(), self.counters.clone());
        Some(Box::pin(async move {
            if is_told || wanted != *shard.entries() {
                shard.write(&api, &mark, wanted, &counters).await?;
            }
            counters.leases.inc_by(waiting.len() as u64);
            Ok((shard.numbered(number), waiting))
        }))
    }
}

/// Ignores receivers that have been dropped.
fn tell(waiting: impl IntoIterator<Item = oneshot::Sender<()>>) {
    for done in waiting {
        let _ = done.send(());
    }
}

/// The channel for changes: its sender, and its receiver for [`Ledger::run`].
pub fn channel() -> (mpsc::Sender<Change>, mpsc::Receiver<Change>) {
    mpsc::channel(BACKLOG)
}
