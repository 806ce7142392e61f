//! Runs many episodes at once: within a limit, with demand reports to the gateway, and with retries of voids within a
//! budget.
//!
//! Episodes that finished before a restart are read from the store and not repeated. Voids of an earlier driver do not
//! count, because their cause may be over, unless it made the batch without them.

use crate::episode::{EpisodePlan, Episodes};
use crate::fault::DriverError;
use crate::metrics::Metrics;
use crate::places::{Demanding, Places};
use crate::retry::Retry;
use crate::shared_journal::SharedJournal;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use grpo_records::{EpisodeMeta, EpisodeScope, Event, Outcome, StoreError, VoidReason, paths};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Episodes at one time if neither the run nor the pool sets a number.
const DEFAULT_CONCURRENCY: usize = 8;
/// Most attempts at one episode in the store; beyond any budget.
const MOST_ATTEMPTS: u32 = 1000;
/// How long a stopped episode may take to release its sandbox. An episode in grading does not stop by itself: its
/// grader's lease expires.
const STOPPING: Duration = Duration::from_secs(5);

/// Progress of a rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub total: u32,
    pub done: u32,
    pub voids: u32,
}

/// The next action when a group has ended.
pub enum Next {
    More(Vec<EpisodePlan>),
    /// The running episodes are not needed.
    Enough,
}

/// Decides the next action, group by group.
pub trait Supply: Send {
    /// `members`: the final attempts of the group's episodes.
    fn ended<'a>(&'a mut self, group: u32, members: Vec<&'a EpisodeMeta>) -> BoxFuture<'a, Result<Next, DriverError>>;
}

/// The capacity of a pool.
struct Room {
    /// Episodes at one time.
    width: usize,
    /// The pool's `warm.ahead`.
    groups_ahead: Option<u32>,
}

/// The sandboxes that waiting episodes will want.
struct ToCome {
    /// Group and image of each episode, in the order of their start.
    episodes: Mutex<Vec<(u32, String)>>,
    width: usize,
    groups_ahead: Option<u32>,
}

impl ToCome {
    fn new(width: usize, groups_ahead: Option<u32>) -> Self {
        Self {
            episodes: Mutex::default(),
            width,
            groups_ahead,
        }
    }

    fn add(&self, plans: &[EpisodePlan]) {
        let of = |plan: &EpisodePlan| (plan.key.group, plan.task.image.clone());
        let mut episodes = self.episodes.lock().unwrap_or_else(PoisonError::into_inner);
        episodes.extend(plans.iter().map(of));
    }

    /// Sandboxes by image, after the first `begun` episodes have begun: for the next groups if the pool sets how many
    /// groups, else for as many episodes as run at one time. The rest of a group that has begun counts as a group.
    fn images(&self, begun: usize) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        let (mut groups, mut last) = (0, None);
        let episodes = self.episodes.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, (group, image)) in episodes.iter().skip(begun).enumerate() {
            groups += u32::from(last != Some(*group));
            last = Some(*group);
            if self.groups_ahead.map_or(at >= self.width, |ahead| groups > ahead) {
                break;
            }
            *counts.entry(image.clone()).or_default() += 1;
        }
        counts
    }
}

/// The attempts that earlier drivers began.
struct Earlier {
    /// The last attempt with a folder, by the episode's name. An attempt that was given up before its first record has
    /// none.
    last: HashMap<String, u32>,
    /// One of these drivers made the batch of the episodes, and died before its journal entry. A void that becomes a
    /// verdict now would belong to a group that the batch does not describe.
    batch_made: bool,
}

impl Earlier {
    /// `folders`: the names of the attempts' folders.
    fn of(folders: &[String], batch_made: bool) -> Self {
        let mut last: HashMap<String, u32> = HashMap::new();
        for folder in folders {
            let later = folder.rsplit_once("__t");
            let later = later.and_then(|(name, attempt)| Some((name, attempt.parse::<u32>().ok()?)));
            let (name, attempt) = later.unwrap_or((folder.as_str(), 1));
            let known = last.entry(name.to_owned()).or_default();
            *known = attempt.max(*known);
        }
        Self { last, batch_made }
    }

    /// The last attempt at an episode; 0 before the first.
    fn last_of(&self, name: &str) -> u32 {
        self.last.get(name).copied().unwrap_or_default()
    }
}

/// Runs the episodes of one run.
pub struct Rollouts {
    pub episodes: Arc<Episodes>,
    pub journal: Arc<SharedJournal>,
    pub metrics: Arc<Metrics>,
    pub places: Places,
}

impl Rollouts {
    /// Runs every plan to a verdict or a final void; returns them in the order of the plans. `supply` adds plans, and
    /// may end the rollout early: stopped episodes are left out.
    pub async fn run(
        &self,
        scope: &EpisodeScope,
        plans: Vec<EpisodePlan>,
        tally: &watch::Sender<Tally>,
        mut supply: Option<&mut dyn Supply>,
    ) -> Result<Vec<EpisodeMeta>, DriverError> {
        let earlier = self.earlier(scope).await?;
        tally.send_replace(Tally::default());
        let Room { width, groups_ahead } = self.room().await;
        self.places.resize(width);
        let to_come = ToCome::new(width, groups_ahead);
        let (started, demand) = watch::channel(0);
        let next = AtomicUsize::new(0);
        let (feed, fed) = mpsc::unbounded();
        let mut groups = Groups::default();
        let stop = plans.first().map(|plan| plan.stop.clone()).unwrap_or_default();
        let add = |groups: &mut Groups, plans: Vec<EpisodePlan>| {
            to_come.add(&plans);
            tally.send_modify(|tally| tally.total += plans.len() as u32);
            for plan in plans {
                // The receiver is in `running`.
                let _ = feed.unbounded_send((groups.add(plan.key.group), plan));
            }
        };
        add(&mut groups, plans);
        if supply.is_none() || groups.metas.is_empty() {
            feed.close_channel();
        }
        let running = fed
            .map(|(at, plan): (usize, EpisodePlan)| {
                started.send_replace(next.fetch_add(1, Ordering::Relaxed) + 1);
                let earlier = &earlier;
                async move { (at, self.finish(&plan, earlier).await) }
            })
            .buffer_unordered(width);
        let (under_way, stop, feed) = (&mut groups, &stop, &feed);
        let work = decide_beside(running, |mut ended| async move {
            while let Some((at, meta)) = ended.next().await {
                let Some(meta): Option<EpisodeMeta> = meta? else {
                    continue;
                };
                tally.send_modify(|tally| {
                    tally.done += 1;
                    tally.voids += u32::from(!meta.outcome.is_verdict());
                });
                let ended = under_way.ended(at, meta);
                let Some((group, supply)) = ended.zip(supply.as_mut()).filter(|_| !stop.is_cancelled()) else {
                    continue;
                };
                match supply.ended(group, under_way.members(group)).await? {
                    Next::More(plans) => add(under_way, plans),
                    Next::Enough => {
                        stop.cancel();
                        feed.close_channel();
                    }
                }
            }
            Ok::<(), DriverError>(())
        });
        let demanding = self.places.demanding(paths::scope(scope));
        let worked = tokio::select! {
            worked = work => worked,
            () = self.keep_demanding(&demanding, &to_come, demand) => Ok(()),
        };
        worked?;
        Ok(groups.metas.into_iter().flatten().map(|meta| *meta).collect())
    }

    async fn earlier(&self, scope: &EpisodeScope) -> Result<Earlier, StoreError> {
        let store = &self.episodes.store;
        let (_, folders) = store.names_in(&paths::scope(scope)).await?;
        let batch_made = match scope {
            EpisodeScope::Iteration { iteration } if !folders.is_empty() => {
                store.exists(&paths::batch(*iteration)).await?
            }
            _ => false,
        };
        Ok(Earlier::of(&folders, batch_made))
    }

    /// The limit of sandboxes in use at one time.
    pub async fn width(&self) -> usize {
        self.room().await.width
    }

    /// The capacity of the pool: no more episodes at one time than the agents' share of it.
    async fn room(&self) -> Room {
        let given = self.episodes.settings.concurrency.map(|given| given as usize);
        match self.episodes.gateway.pool().await {
            Ok(pool) if pool.max > 0 => {
                let share = pool.agents() as usize;
                Room {
                    width: given.map_or(share, |given| given.min(share)),
                    groups_ahead: pool.warm_ahead,
                }
            }
            unknown => {
                let width = given.unwrap_or(DEFAULT_CONCURRENCY);
                tracing::warn!(width, ?unknown, "the pool's size is unknown");
                Room {
                    width,
                    groups_ahead: None,
                }
            }
        }
    }

    /// Reports to the gateway, whenever episodes have begun, which sandboxes the next ones want. Never returns.
    async fn keep_demanding(&self, own: &Demanding<'_>, to_come: &ToCome, mut started: watch::Receiver<usize>) {
        loop {
            let counts = to_come.images(*started.borrow_and_update());
            if let Err(error) = self.episodes.gateway.demand(own.replace(counts)).await {
                tracing::debug!(%error, "demand");
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            if started.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// One episode, with as many attempts as it takes and the budget allows. `None` if it was stopped.
    async fn finish(&self, plan: &EpisodePlan, earlier: &Earlier) -> Result<Option<EpisodeMeta>, DriverError> {
        tokio::select! {
            biased;
            finished = self.attempts(plan, earlier) => finished,
            () = stopped(&plan.stop) => Ok(None),
        }
    }

    async fn attempts(&self, plan: &EpisodePlan, earlier: &Earlier) -> Result<Option<EpisodeMeta>, DriverError> {
        let patience = self.episodes.settings.patience;
        let mut retry = Retry::new(Duration::MAX, patience.pauses).with_jitter(&plan.key.dir(1));
        let mut voids = 0;
        let last = earlier.last_of(&plan.key.name());
        for attempt in 1..=MOST_ATTEMPTS {
            let dir = plan.key.dir(attempt);
            let stored = self.stored(&dir, attempt <= last).await?;
            let void = stored
                .as_ref()
                .and_then(|meta| Some((meta, meta.outcome.void_reason()?)));
            if let Some((meta, reason)) = void {
                self.note_void(&dir, meta, reason).await?;
            }
            let is_void = void.is_some();
            if is_void && attempt == last && earlier.batch_made {
                return Ok(stored);
            }
            // A later attempt follows only one that was lost or given up.
            if is_void || (stored.is_none() && attempt < last) {
                continue;
            }
            let meta = match stored {
                Some(meta) => Some(meta),
                // The episode has not begun.
                None if plan.stop.is_cancelled() => return Ok(None),
                None => {
                    let _place = tokio::select! {
                        place = self.places.take() => place,
                        () = plan.stop.cancelled() => return Ok(None),
                    };
                    self.episodes.attempt(plan, attempt, attempt == last).await?
                }
            };
            let Some(meta) = meta else {
                if plan.stop.is_cancelled() {
                    return Ok(None);
                }
                tracing::info!(episode = %dir, "it cannot go on where it stands; trying again");
                self.metrics.attempts_left.inc();
                continue;
            };
            match meta.outcome.clone() {
                Outcome::Void { reason } => {
                    voids += 1;
                    self.note_void(&dir, &meta, reason).await?;
                    if voids > patience.void_retries || retry.pause().await.is_err() {
                        return Ok(Some(meta));
                    }
                }
                outcome => {
                    self.note_verdict(&dir, &meta, outcome).await?;
                    return Ok(Some(meta));
                }
            }
        }
        Err(DriverError::Other(format!(
            "{} was begun {MOST_ATTEMPTS} times and never finished",
            plan.key.name()
        )))
    }

    async fn stored(&self, dir: &str, begun: bool) -> Result<Option<EpisodeMeta>, StoreError> {
        if !begun {
            return Ok(None);
        }
        let meta: Option<EpisodeMeta> = self.episodes.store.read_if_there(&paths::meta(dir)).await?;
        if let Some(meta) = &meta
            && !self.journal.read(|state| state.verdicts.contains_key(dir)).await
        {
            // An earlier driver died between the record and its journal entry: maybe before it removed the verdict.
            self.episodes.remove_verdict(dir, meta).await;
        }
        Ok(meta)
    }

    /// Records one entry per verdict, even if the driver died between `meta.json` and the journal.
    async fn note_verdict(&self, dir: &str, meta: &EpisodeMeta, outcome: Outcome) -> Result<(), DriverError> {
        let noted = self
            .journal
            .record_if(|state| {
                (!state.verdicts.contains_key(dir)).then(|| Event::Verdict {
                    episode: dir.to_owned(),
                    outcome: outcome.clone(),
                    reward: meta.reward.unwrap_or_default(),
                })
            })
            .await?;
        if noted {
            tracing::info!(episode = dir, %outcome, end = ?meta.end, turns = meta.turns, tokens = meta.tokens, "verdict");
            self.metrics.verdict(meta);
        }
        Ok(())
    }

    /// Records one entry per void, even if the driver died between `meta.json` and the journal.
    async fn note_void(&self, dir: &str, meta: &EpisodeMeta, reason: VoidReason) -> Result<(), DriverError> {
        let message = meta.message.clone().unwrap_or_default();
        let noted = self
            .journal
            .record_if(|state| {
                (!state.voided.contains(dir)).then(|| Event::EpisodeVoided {
                    episode: dir.to_owned(),
                    reason,
                    turns: meta.turns,
                    tokens: meta.tokens,
                    message: message.clone(),
                })
            })
            .await?;
        if noted {
            tracing::warn!(episode = dir, ?reason, %message, "void");
            self.metrics.void(reason);
        }
        Ok(())
    }
}

/// Gives `decide` the results of `running`, in the order of the ends, and polls `running` while it decides.
///
/// Without that, a decision could wait for ever: the journal's lock is fair, and its next owner can be an episode in
/// `running`, which must be polled to use the lock and to release it.
async fn decide_beside<T, E, F>(
    running: impl Stream<Item = T>,
    decide: impl FnOnce(mpsc::UnboundedReceiver<T>) -> F,
) -> Result<(), E>
where
    F: Future<Output = Result<(), E>>,
{
    let (give, ended) = mpsc::unbounded();
    let runs = async move {
        let mut running = std::pin::pin!(running);
        while let Some(one) = running.next().await {
            // The receiver is in `decide`, which ends before only with an error; that ends this too.
            let _ = give.unbounded_send(one);
        }
        Ok(())
    };
    futures::try_join!(runs, decide(ended)).map(|_| ())
}

/// The ended episodes of a rollout, by group.
#[derive(Default)]
struct Groups {
    /// In the order of the plans. Boxed: an evaluation plans many more episodes than run at one time.
    metas: Vec<Option<Box<EpisodeMeta>>>,
    /// Indices into `metas`, by group.
    members: BTreeMap<u32, Vec<usize>>,
}

impl Groups {
    /// Adds an episode of a group; returns its index.
    fn add(&mut self, group: u32) -> usize {
        self.metas.push(None);
        let at = self.metas.len() - 1;
        self.members.entry(group).or_default().push(at);
        at
    }

    /// Stores an ended episode; returns its group if that has ended.
    fn ended(&mut self, at: usize, meta: EpisodeMeta) -> Option<u32> {
        let group = meta.key.group;
        self.metas[at] = Some(Box::new(meta));
        let members = self.members.get(&group)?;
        members.iter().all(|at| self.metas[*at].is_some()).then_some(group)
    }

    fn members(&self, group: u32) -> Vec<&EpisodeMeta> {
        let members = self.members.get(&group).into_iter().flatten();
        members.filter_map(|at| self.metas[*at].as_deref()).collect()
    }
}

/// Returns [`STOPPING`] after the episode was stopped.
async fn stopped(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(STOPPING).await;
}

#[cfg(test)]
mod tests;
