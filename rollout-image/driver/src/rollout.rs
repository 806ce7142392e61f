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
use grpo_records::{EpisodeMeta, EpisodeScope, Event, Outcome, StoreError, VoidReason, paths};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Episodes at the same time when neither the run nor the pool says how many.
const DEFAULT_CONCURRENCY: usize = 8;
/// Attempts at one episode that are looked for in the store; beyond any budget.
const MOST_ATTEMPTS: u32 = 1000;

/// How far a rollout is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub total: u32,
    pub done: u32,
    pub voids: u32,
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
    episodes: Vec<(u32, String)>,
    width: usize,
    groups_ahead: Option<u32>,
}

impl ToCome {
    fn of(plans: &[EpisodePlan], width: usize, groups_ahead: Option<u32>) -> Self {
        let episodes = plans.iter().map(|plan| (plan.key.group, plan.task.image.clone()));
        Self {
            episodes: episodes.collect(),
            width,
            groups_ahead,
        }
    }

    /// How many sandboxes of which image, when the first `begun` episodes have begun: those of the next groups where
    /// the pool says how many groups, else those of as many episodes as run at the same time. Of a group that has begun
    /// the rest counts as a group.
    fn images(&self, begun: usize) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        let (mut groups, mut last) = (0, None);
        for (at, (group, image)) in self.episodes.iter().skip(begun).enumerate() {
            groups += u32::from(last != Some(group));
            last = Some(group);
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
    /// Runs every plan to a verdict, or to a void that stays one; in the order of the plans.
    pub async fn run(
        &self,
        scope: &EpisodeScope,
        plans: Vec<EpisodePlan>,
        tally: &watch::Sender<Tally>,
    ) -> Result<Vec<EpisodeMeta>, DriverError> {
        let (_, there) = self.episodes.store.names_in(&paths::scope(scope)).await?;
        let there: HashSet<String> = there.into_iter().collect();
        tally.send_replace(Tally {
            total: plans.len() as u32,
            ..Tally::default()
        });
        let Room { width, groups_ahead } = self.room().await;
        self.places.resize(width);
        let to_come = ToCome::of(&plans, width, groups_ahead);
        let (started, demand) = watch::channel(0);
        let next = AtomicUsize::new(0);
        let mut metas: Vec<Option<EpisodeMeta>> = vec![None; plans.len()];
        let work = async {
            let mut running = futures::stream::iter(plans.iter().enumerate())
                .map(|(at, plan)| {
                    started.send_replace(next.fetch_add(1, Ordering::Relaxed) + 1);
                    let there = &there;
                    async move { (at, self.finish(plan, there).await) }
                })
                .buffer_unordered(width);
            while let Some((at, meta)) = running.next().await {
                let meta = meta?;
                tally.send_modify(|tally| {
                    tally.done += 1;
                    tally.voids += u32::from(!meta.outcome.is_verdict());
                });
                metas[at] = Some(meta);
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
        Ok(metas.into_iter().flatten().collect())
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

    /// One episode, over as many attempts as it takes and the budget allows.
    async fn finish(&self, plan: &EpisodePlan, there: &HashSet<String>) -> Result<EpisodeMeta, DriverError> {
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
                None => {
                    let _place = self.places.take().await;
                    self.episodes.attempt(plan, attempt, begun).await?
                }
            };
            let Some(meta) = meta else {
                tracing::info!(episode = %dir, "its sandbox is gone with an earlier driver; trying again");
                continue;
            };
            match meta.outcome.clone() {
                Outcome::Void { reason } => {
                    voids += 1;
                    self.note_void(&dir, &meta, reason).await?;
                    if voids > patience.void_retries || retry.pause().await.is_err() {
                        return Ok(meta);
                    }
                }
                outcome => {
                    self.note_verdict(&dir, &meta, outcome).await?;
                    return Ok(meta);
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

#[cfg(test)]
mod tests;
