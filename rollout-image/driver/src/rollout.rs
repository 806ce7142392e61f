//! Many episodes at once: bounded, with the gateway told what comes next, voids tried again within a budget.
//!
//! What was finished before a restart is found in the store and not done again. Voids that an earlier driver saw are
//! not counted: what caused them may be over.

use crate::episode::{EpisodePlan, Episodes};
use crate::fault::DriverError;
use crate::metrics::Metrics;
use crate::places::Places;
use crate::retry::Retry;
use crate::shared_journal::SharedJournal;
use futures::StreamExt;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use grpo_records::{EpisodeMeta, EpisodeScope, Event, Outcome, StoreError, VoidReason, paths};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Episodes at the same time when neither the run nor the pool says how many.
const DEFAULT_CONCURRENCY: usize = 8;
/// Attempts at one episode that are looked for in the store; beyond any budget.
const MOST_ATTEMPTS: u32 = 1000;
/// How long an episode that is not needed any more may take to give its sandbox back. One that is being graded does not
/// end by itself: its grader's lease runs out.
const STOPPING: Duration = Duration::from_secs(5);

/// How far a rollout is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub total: u32,
    pub done: u32,
    pub voids: u32,
}

/// What follows when a group has ended.
pub enum Next {
    More(Vec<EpisodePlan>),
    /// Episodes that still run are not needed.
    Enough,
}

/// Decides that, group by group.
pub trait Supply: Send {
    /// `members`: the final attempts of the group's episodes.
    fn ended<'a>(&'a mut self, group: u32, members: Vec<&'a EpisodeMeta>) -> BoxFuture<'a, Result<Next, DriverError>>;
}

/// What a pool has room for.
struct Room {
    /// Episodes at the same time.
    width: usize,
    /// The pool's `warm.ahead`.
    groups_ahead: Option<u32>,
}

/// Which sandboxes the episodes want whose turn has not come yet.
struct ToCome {
    /// Group and image of each episode, in the order in which they begin.
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

    /// How many sandboxes of which image, when the first `begun` episodes have begun: those of the next groups where
    /// the pool says how many groups, else those of as many episodes as run at the same time. Of a group that has begun
    /// the rest counts as a group.
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

/// Runs episodes for one run.
pub struct Rollouts {
    pub episodes: Arc<Episodes>,
    pub journal: Arc<SharedJournal>,
    pub metrics: Arc<Metrics>,
    pub places: Places,
}

impl Rollouts {
    /// Runs every plan to a verdict, or to a void that stays one; in the order of the plans. `supply` adds plans, and
    /// ends the rollout before its last episode: what was stopped is left out.
    pub async fn run(
        &self,
        scope: &EpisodeScope,
        plans: Vec<EpisodePlan>,
        tally: &watch::Sender<Tally>,
        mut supply: Option<&mut dyn Supply>,
    ) -> Result<Vec<EpisodeMeta>, DriverError> {
        let (_, there) = self.episodes.store.names_in(&paths::scope(scope)).await?;
        let there: HashSet<String> = there.into_iter().collect();
        tally.send_replace(Tally::default());
        let Room { width, groups_ahead } = self.room().await;
        self.places.resize(width);
        let to_come = ToCome::new(width, groups_ahead);
        let (started, demand) = watch::channel(0);
        let next = AtomicUsize::new(0);
        let (feed, fed) = mpsc::unbounded();
        let mut groups = Groups::default();
        let stop = plans.first().map(|plan| plan.stop.clone()).unwrap_or_default();
        let work = async {
            let mut running = fed
                .map(|(at, plan): (usize, EpisodePlan)| {
                    started.send_replace(next.fetch_add(1, Ordering::Relaxed) + 1);
                    let there = &there;
                    async move { (at, self.finish(&plan, there).await) }
                })
                .buffer_unordered(width);
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
            while let Some((at, meta)) = running.next().await {
                let Some(meta) = meta? else { continue };
                tally.send_modify(|tally| {
                    tally.done += 1;
                    tally.voids += u32::from(!meta.outcome.is_verdict());
                });
                let ended = groups.ended(at, meta);
                let Some((group, supply)) = ended.zip(supply.as_mut()).filter(|_| !stop.is_cancelled()) else {
                    continue;
                };
                match supply.ended(group, groups.members(group)).await? {
                    Next::More(plans) => add(&mut groups, plans),
                    Next::Enough => {
                        stop.cancel();
                        feed.close_channel();
                    }
                }
            }
            Ok::<(), DriverError>(())
        };
        let who = paths::scope(scope);
        let worked = tokio::select! {
            worked = work => worked,
            () = self.keep_demanding(&who, &to_come, demand) => Ok(()),
        };
        self.places.demand(&who, BTreeMap::new());
        worked?;
        Ok(groups.metas.into_iter().flatten().collect())
    }

    /// How many sandboxes are asked for at one time.
    pub async fn width(&self) -> usize {
        self.room().await.width
    }

    /// What the pool has room for: no more episodes at the same time than the agents' share of it.
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
            _ => Room {
                width: given.unwrap_or(DEFAULT_CONCURRENCY),
                groups_ahead: None,
            },
        }
    }

    /// Tells the gateway, whenever episodes have begun, which sandboxes the next ones want. Never ends by itself.
    async fn keep_demanding(&self, who: &str, to_come: &ToCome, mut started: watch::Receiver<usize>) {
        loop {
            let counts = to_come.images(*started.borrow_and_update());
            if let Err(error) = self.episodes.gateway.demand(self.places.demand(who, counts)).await {
                tracing::debug!(%error, "demand");
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            if started.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// One episode, over as many attempts as it takes and the budget allows. Nothing for one that was stopped.
    async fn finish(&self, plan: &EpisodePlan, there: &HashSet<String>) -> Result<Option<EpisodeMeta>, DriverError> {
        tokio::select! {
            biased;
            finished = self.attempts(plan, there) => finished,
            () = stopped(&plan.stop) => Ok(None),
        }
    }

    async fn attempts(&self, plan: &EpisodePlan, there: &HashSet<String>) -> Result<Option<EpisodeMeta>, DriverError> {
        let patience = self.episodes.settings.patience;
        let mut retry = Retry::new(Duration::MAX, patience.pauses).with_jitter(&plan.key.dir(1));
        let mut voids = 0;
        for attempt in 1..=MOST_ATTEMPTS {
            let dir = plan.key.dir(attempt);
            let begun = there.contains(dir.rsplit('/').next().unwrap_or_default());
            let stored = self.stored(&dir, begun).await?;
            if stored.as_ref().is_some_and(|meta| !meta.outcome.is_verdict()) {
                continue;
            }
            let meta = match stored {
                Some(meta) => Some(meta),
                // It has not begun.
                None if plan.stop.is_cancelled() => return Ok(None),
                None => {
                    let _place = tokio::select! {
                        place = self.places.take() => place,
                        () = plan.stop.cancelled() => return Ok(None),
                    };
                    self.episodes.attempt(plan, attempt, begun).await?
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
        match begun {
            true => self.episodes.store.read_if_there(&paths::meta(dir)).await,
            false => Ok(None),
        }
    }

    /// One entry per verdict, also when the driver died between `meta.json` and the journal.
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

    async fn note_void(&self, dir: &str, meta: &EpisodeMeta, reason: VoidReason) -> Result<(), DriverError> {
        let message = meta.message.clone().unwrap_or_default();
        tracing::warn!(episode = dir, ?reason, %message, "void");
        self.metrics.void(reason);
        self.journal
            .record(Event::EpisodeVoided {
                episode: dir.to_owned(),
                reason,
                turns: meta.turns,
                tokens: meta.tokens,
                message,
            })
            .await
    }
}

/// Episodes of a rollout as they end, group by group.
#[derive(Default)]
struct Groups {
    /// In the order in which they were planned.
    metas: Vec<Option<EpisodeMeta>>,
    /// Of each group, its episodes by their places above.
    members: BTreeMap<u32, Vec<usize>>,
}

impl Groups {
    /// The place of another episode of a group.
    fn add(&mut self, group: u32) -> usize {
        self.metas.push(None);
        let at = self.metas.len() - 1;
        self.members.entry(group).or_default().push(at);
        at
    }

    /// Its group, where this was the last episode of one.
    fn ended(&mut self, at: usize, meta: EpisodeMeta) -> Option<u32> {
        let group = meta.key.group;
        self.metas[at] = Some(meta);
        let members = self.members.get(&group)?;
        members.iter().all(|at| self.metas[*at].is_some()).then_some(group)
    }

    fn members(&self, group: u32) -> Vec<&EpisodeMeta> {
        let members = self.members.get(&group).into_iter().flatten();
        members.filter_map(|at| self.metas[*at].as_ref()).collect()
    }
}

/// Some time after the episode was stopped.
async fn stopped(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(STOPPING).await;
}

#[cfg(test)]
mod tests;
