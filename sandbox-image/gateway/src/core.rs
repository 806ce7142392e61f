//! Carries out the decisions of the index: creates and deletes pods, commits leases, binds sandboxes, answers waiting
//! callers.

mod caller;
mod fencing;
mod grant;
mod packages;
mod pods;
pub mod prefetch;
pub mod probe;
mod relay;
mod release;
pub mod stuck;
mod watch;

pub use watch::Watched;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grpo_sandbox_protocol::{Activity, ErrorBody, ErrorCode, FaultOrigin, Lease, PoolReport, Room, StuckPod};
use hyper::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use rand::Rng;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

pub use crate::clock::now;
use crate::egress::Egress;
use crate::index::{Action, ActiveLease, Index};
use crate::ledger::{Change, FencingCheck, Known};
use crate::metrics::Metrics;
use crate::pod::Template;
use crate::prefetcher::ImagePrefetcher;
use crate::progress::Progress;
use crate::relay::Relays;
use crate::sandbox::{Holder, SandboxError, Sandboxes};
use crate::waiters::Waiters;

/// Maximum concurrent pod deletions: each call holds a connection to the API server. The index bounds the creations.
const DELETIONS: usize = 8;
/// Maximum concurrent fencing checks, so that a caller that asks for nonexistent leases cannot keep the API server
/// busy.
const FENCING_CHECKS: usize = 2;
/// Maximum memory for bodies on their way into sandboxes, in files of the maximum size.
const FILES_IN_MEMORY: usize = 2;
/// Deadline for sandboxd's answer about running work; it normally answers at once.
const ACTIVITY_WITHIN: Duration = Duration::from_secs(10);
/// Images in a report. The rest usually have the same cause.
const TROUBLES_REPORTED: usize = 8;
/// Longest pause between two rounds in milliseconds, even without events: the end of a command is not announced.
const LONGEST_SLEEP: i64 = 1_000;
/// After a longer plan the scheduler pauses for as long as the plan took, because a plan locks the index. The next plan
/// serves all callers that arrived meanwhile.
const QUICK_PLAN: Duration = Duration::from_millis(1);

/// The gateway's working parts. Shared by reference.
pub struct Core {
    index: Mutex<Index>,
    waiters: Waiters,
    changed: Notify,
    pods: Api<Pod>,
    deletions: Semaphore,
    /// Pods whose deletion is queued or not answered yet. A second order would only delay it.
    deleting: Mutex<HashSet<String>>,
    /// Released leases whose end is not certain yet.
    leaving: Mutex<HashMap<String, release::End>>,
    /// Pods that have had no address for long.
    stuck: Mutex<Vec<StuckPod>>,
    /// Consecutive refused creations.
    refusals: AtomicU32,
    /// Notified when the watch shows a pod of a later gateway.
    replaced: Notify,
    ledger: mpsc::Sender<Change>,
    fencing: Option<FencingCheck>,
    fencing_checks: Semaphore,
    began: Instant,
    /// When the ledger last confirmed that this gateway owns it.
    proven: tokio::sync::Mutex<Option<Instant>>,
    /// Leases on their way into the ledger.
    granting: AtomicU32,
    /// The watch has shown all existing pods.
    in_sync: AtomicBool,
    package_host: tokio::sync::Mutex<packages::Addresses>,
    pub sandboxes: Sandboxes,
    pub relays: Relays,
    pub egress: Egress,
    /// Images that are prefetched for later sandboxes.
    pub prefetcher: Mutex<ImagePrefetcher>,
    /// Memory for bodies on their way into sandboxes.
    pub room: Room,
    /// The scheduler's progress.
    pub progress: Progress,
    pub template: Template,
    pub metrics: Metrics,
}

impl Core {
    pub fn new(
        index: Index,
        pods: Api<Pod>,
        ledger: mpsc::Sender<Change>,
        sandboxes: Sandboxes,
        template: Template,
        known: Known,
    ) -> Arc<Self> {
        Arc::new(Self {
            index: Mutex::new(index),
            waiters: Waiters::default(),
            changed: Notify::new(),
            pods,
            deletions: Semaphore::new(DELETIONS),
            deleting: Mutex::default(),
            leaving: Mutex::default(),
            stuck: Mutex::default(),
            refusals: AtomicU32::new(0),
            replaced: Notify::new(),
            ledger,
            granting: AtomicU32::new(0),
            in_sync: AtomicBool::new(false),
            package_host: Default::default(),
            sandboxes,
            relays: Relays::default(),
            egress: Egress::restored(
                known.report.egress,
                known.report.limits,
                template.spec.allow_unenforced,
                now(),
            ),
            prefetcher: Mutex::new(ImagePrefetcher::new(template.spec.warm.images as usize)),
            fencing: known.fencing,
            fencing_checks: Semaphore::new(FENCING_CHECKS),
            began: Instant::now(),
            proven: tokio::sync::Mutex::default(),
            room: Room::of_files(FILES_IN_MEMORY),
            progress: Progress::default(),
            template,
            metrics: Metrics::new(known.counters),
        })
    }

    /// Whether callers may ask for leases: the pool's pods are known, and this gateway holds the ledger.
    pub fn is_ready(&self) -> bool {
        self.in_sync.load(Ordering::Relaxed) && !self.ledger.is_closed()
    }

    /// Returns when another gateway has taken over the pool.
    pub async fn replaced(&self) {
        self.replaced.notified().await;
    }

    /// Reads the index, or makes a change that needs no immediate plan.
    pub fn look<T>(&self, look: impl FnOnce(&mut Index) -> T) -> T {
        look(&mut self.lock())
    }

    /// Changes the index and wakes the scheduler.
    pub fn with<T>(&self, change: impl FnOnce(&mut Index) -> T) -> T {
        let answer = change(&mut self.lock());
        self.changed.notify_one();
        answer
    }

    /// Changes the index and carries out the resulting actions.
    pub fn apply(self: &Arc<Self>, change: impl FnOnce(&mut Index) -> Vec<Action>) {
        let actions = self.with(change);
        drop(self.carry_out(actions));
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans after every change and at every deadline.
    pub async fn schedule(self: Arc<Self>) {
        let mut told = (Vec::new(), Vec::new());
        loop {
            self.progress.beat();
            let prefix = self.template.pool.clone();
            let began = Instant::now();
            let (actions, next, troubles, refusing) = {
                let (mut index, now) = (self.lock(), now());
                let actions = index.plan(now, || {
                    format!("{prefix}-sbx-{:010x}", rand::rng().random::<u64>() >> 24)
                });
                let refusing = index.refusing_nodes(now).into_iter().map(|stuck| stuck.node);
                let refusing: Vec<String> = refusing.collect();
                (actions, index.next_deadline(now), index.troubles(now), refusing)
            };
            let took = began.elapsed();
            drop(self.carry_out(actions));
            // Not the refused pods: they change with each try, and every report is a write.
            let news = (troubles, refusing);
            if news != told {
                told = news;
                self.report();
            }
            let until = next.map_or(LONGEST_SLEEP, |at| (at - now()).clamp(10, LONGEST_SLEEP));
            let sleep = Duration::from_millis(until.unsigned_abs());
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(sleep) => {}
            }
            match took > QUICK_PLAN {
                true => tokio::time::sleep(took).await,
                // Other events of the same moment join this plan.
                false => tokio::task::yield_now().await,
            }
        }
    }

    /// Starts an action without waiting for it. Returns the receiver that reports when the end of a sandbox is certain,
    /// if that was asked for.
    fn act(self: &Arc<Self>, action: Action) -> Option<oneshot::Receiver<()>> {
        let (core, (tell, told)) = (self.clone(), oneshot::channel());
        match action {
            Action::Create { name, image, slot } => {
                tokio::spawn(async move { core.create(name, image, slot).await });
            }
            Action::Delete { name } => {
                tokio::spawn(async move { core.end(name, tell).await });
                return Some(told);
            }
            Action::Reset { name, ip, lease, epoch } => {
                tokio::spawn(async move { core.reset(name, &ip, &lease, epoch, tell).await });
                return Some(told);
            }
            Action::Grant { lease } => drop(tokio::spawn(async move { core.grant(lease).await })),
            Action::Forget { lease, epoch, cause } => {
                cause.inspect(|cause| self.metrics.lost(*cause));
                tokio::spawn(async move {
                    let _ = core.ledger.send(Change::Remove { lease, epoch }).await;
                });
            }
            Action::Refuse { lease, error } => self.waiters.answer(&lease, Err(error)),
            Action::Ask { lease, epoch } => {
                drop(tokio::spawn(async move { core.ask_whether_idle(&lease, epoch).await }))
            }
        }
        None
    }

    /// The holder has made no call for a long time, but its background processes may still run.
    async fn ask_whether_idle(self: Arc<Self>, lease: &str, epoch: u64) {
        let Some(held) = self.look(|index| index.leases.get(lease).cloned()) else {
            return;
        };
        let asked = self.sandboxes.send(
            Holder::of(&held),
            Method::GET,
            "/activity",
            Default::default(),
            ACTIVITY_WITHIN,
        );
        let activity = asked.await.ok().filter(|(status, _)| status.is_success());
        let activity = activity.and_then(|(_, body)| serde_json::from_slice::<Activity>(&body).ok());
        let is_at_work = activity.is_some_and(|activity| activity.running > 0);
        self.apply(|index| index.told_whether_idle(lease, epoch, is_at_work, now()));
    }

    /// Writes the state of the pool to the ledger; the operator shows it from there.
    pub fn report(self: &Arc<Self>) {
        let (troubles, refusing) = self.look(|index| (index.troubles(now()), index.refusing_nodes(now())));
        let troubles = troubles.into_iter().take(TROUBLES_REPORTED).collect();
        let stuck = refusing.into_iter().chain(self.stuck());
        let report = PoolReport {
            egress: self.egress.report(),
            limits: self.egress.limits(),
            troubles,
            stuck: stuck.take(TROUBLES_REPORTED).collect(),
        };
        let core = self.clone();
        tokio::spawn(async move {
            let _ = core.ledger.send(Change::Report(Box::new(report))).await;
        });
    }

    /// Why sandboxd did not do its work: its own error, or the end of its pod if that is known.
    pub fn why_unreachable(&self, lease: &str, error: &SandboxError) -> ErrorBody {
        if let Some(answer) = &error.answer {
            return (**answer).clone();
        }
        self.look(|index| match index.cause_of(lease) {
            Some(cause) => ErrorBody::lost(lease, cause),
            // The watch may lag by a moment: the caller retries with the same id and then gets the cause.
            None => ErrorBody::new(
                ErrorCode::SandboxUnreachable,
                FaultOrigin::Infrastructure,
                error.to_string(),
            ),
        })
    }

    /// Waits until the ledger has every decision. Called before the process ends.
    pub async fn settle(&self) {
        let (done, settled) = oneshot::channel();
        if self.ledger.send(Change::Flush { done }).await.is_ok() {
            let _ = settled.await;
        }
    }
}

/// The lease as its holder sees it.
pub fn lease(held: &ActiveLease) -> Lease {
    Lease {
        id: held.entry.lease.clone(),
        epoch: held.entry.epoch,
        sandbox: held.entry.sandbox.clone(),
        image: held.entry.image.clone(),
        node: held.node.clone(),
        expires_at: held.entry.expires_at,
    }
}

#[cfg(test)]
mod tests;
