//! Carries out what the index decides: creates and deletes pods, commits leases, binds sandboxes, answers those who
//! wait.

mod fencing;
mod release;
mod watch;

pub use watch::Watched;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use grpo_crds::sandbox_pool::Reset;
use grpo_sandbox_protocol::{
    Activity, ErrorBody, ErrorCode, FaultOrigin, Lease, LeaseRequest, PoolReport, Room, SandboxCause,
};
use hyper::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use rand::Rng;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use crate::egress::Egress;
use crate::index::{Action, ActiveLease, Index};
use crate::ledger::{Change, FencingCheck, Known};
use crate::metrics::Metrics;
use crate::pod::{self, Template};
use crate::prefetcher::ImagePrefetcher;
use crate::relay::Relays;
use crate::sandbox::{Holder, SandboxError, Sandboxes};
use crate::waiters::{Place, Waiters};

/// Pods deleted at one time: each call holds a connection to the API server. How many are created at one time the index
/// decides.
const DELETIONS: usize = 8;
/// Fencing checks under way at one time: a caller that asks for leases that do not exist shall not keep the API server
/// busy.
const FENCING_CHECKS: usize = 2;
/// After a refused creation: a quota or an admission rule will refuse the next one too. It doubles while nothing else
/// is answered.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// Before a creation is tried again to which there was no answer; it doubles.
const UNANSWERED_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_UNANSWERED_PAUSE: Duration = Duration::from_secs(5);
/// Bodies on their way into sandboxes may take as much memory together as so many of the largest files.
const FILES_IN_MEMORY: usize = 2;
/// sandboxd says at once whether something runs.
const ACTIVITY_WITHIN: Duration = Duration::from_secs(10);
/// Images in a report: the rest have the same cause more often than not.
const TROUBLES_REPORTED: usize = 8;
/// Looks are this far apart at most, though nothing happens: a command's end is not announced.
const LONGEST_SLEEP: i64 = 1_000;
/// A plan that took longer is followed by a pause as long as itself: the index is locked meanwhile, and whoever came is
/// planned for together.
const QUICK_PLAN: Duration = Duration::from_millis(1);

/// The gateway's working parts. Shared by reference.
pub struct Core {
    index: Mutex<Index>,
    waiters: Waiters,
    changed: Notify,
    pods: Api<Pod>,
    deletions: Semaphore,
    /// Pods whose deletion waits for its turn or for an answer: to order it again would only make that longer.
    deleting: Mutex<HashSet<String>>,
    /// Creations that were refused since one was not.
    refusals: AtomicU32,
    /// A pod of a later gateway was seen.
    replaced: Notify,
    ledger: mpsc::Sender<Change>,
    fencing: Option<FencingCheck>,
    fencing_checks: Semaphore,
    began: Instant,
    /// When the ledger was last asked whose it is, and said ours.
    proven: tokio::sync::Mutex<Option<Instant>>,
    /// Leases on their way into the ledger.
    granting: AtomicU32,
    /// The watch has shown every pod there is.
    in_sync: AtomicBool,
    pub sandboxes: Sandboxes,
    pub relays: Relays,
    pub egress: Egress,
    /// Images that are prefetched for sandboxes to come.
    pub prefetcher: Mutex<ImagePrefetcher>,
    /// For bodies on their way into sandboxes.
    pub room: Room,
    pub template: Template,
    pub metrics: Metrics,
}

pub fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map(|since| since.as_millis() as i64)
        .unwrap_or(0)
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
            refusals: AtomicU32::new(0),
            replaced: Notify::new(),
            ledger,
            granting: AtomicU32::new(0),
            in_sync: AtomicBool::new(false),
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
            template,
            metrics: Metrics::new(known.counters),
        })
    }

    /// Whether leases may be asked for: the pool's pods are known, and the ledger is held by this gateway.
    pub fn is_ready(&self) -> bool {
        self.in_sync.load(Ordering::Relaxed) && !self.ledger.is_closed()
    }

    /// Returns when another gateway has taken the pool over.
    pub async fn replaced(&self) {
        self.replaced.notified().await;
    }

    /// Looks at the index, or changes something of which nothing follows at once.
    pub fn look<T>(&self, look: impl FnOnce(&mut Index) -> T) -> T {
        look(&mut self.lock())
    }

    /// Changes the index; what follows from it is done at once.
    pub fn with<T>(&self, change: impl FnOnce(&mut Index) -> T) -> T {
        let answer = change(&mut self.lock());
        self.changed.notify_one();
        answer
    }

    /// Changes the index and carries out what it answers.
    pub fn apply(self: &Arc<Self>, change: impl FnOnce(&mut Index) -> Vec<Action>) {
        let actions = self.with(change);
        drop(self.carry_out(actions));
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases a sandbox, waiting in the queue as long as the request says.
    pub async fn lease(self: &Arc<Self>, request: LeaseRequest) -> Result<Lease, ErrorBody> {
        let wait = Duration::from_secs(request.wait_seconds);
        let id = request.id.clone();
        let deadline = now() + wait.as_millis() as i64;
        let (mut place, actions) = {
            let mut index = self.lock();
            if let Some(held) = index.leases.get(&id).filter(|held| held.granted) {
                return Ok(lease(held));
            }
            let actions = index.wait(request, now())?;
            (self.waiters.join(&id), actions)
        };
        self.changed.notify_one();
        drop(self.carry_out(actions));
        match place.answer(wait).await {
            Some(answer) => answer,
            None => Err(self.not_in_time(&id, deadline, place)),
        }
    }

    fn not_in_time(&self, id: &str, deadline: i64, place: Place) -> ErrorBody {
        let mut index = self.lock();
        let (position, waiting) = index.place(id);
        // Another caller with the same id may be more patient.
        if place.leave() {
            index.give_up(id);
        }
        let state = index.state();
        let message = format!(
            "no sandbox was free in time: {} of {} leased, {} starting, place {position} of {waiting}; raise the pool's max or wait longer",
            state.leased, state.max, state.pending
        );
        ErrorBody {
            position: Some(position),
            waiting: Some(waiting),
            deadline: Some(deadline),
            ..ErrorBody::new(ErrorCode::QueueDeadline, FaultOrigin::Infrastructure, message)
        }
    }

    /// Plans whenever something changed, or a deadline passed.
    pub async fn schedule(self: Arc<Self>) {
        let mut told = Vec::new();
        loop {
            let prefix = self.template.pool.clone();
            let began = Instant::now();
            let (actions, next, troubles) = {
                let (mut index, now) = (self.lock(), now());
                let actions = index.plan(now, || {
                    format!("{prefix}-sbx-{:010x}", rand::rng().random::<u64>() >> 24)
                });
                (actions, index.next_deadline(now), index.troubles(now))
            };
            let took = began.elapsed();
            drop(self.carry_out(actions));
            if troubles != told {
                told = troubles;
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
                // Others that came at the same moment are planned for at the same time.
                false => tokio::task::yield_now().await,
            }
        }
    }

    /// Starts what an action asks for; nothing here waits for it. Answers who tells when the end of a sandbox is
    /// certain, if that was asked for.
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

    /// Nobody has called for a long time, but what was started in the background may still run.
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

    /// Puts what is known of the pool to the ledger, from where the operator shows it.
    pub fn report(self: &Arc<Self>) {
        let troubles = self.look(|index| index.troubles(now()));
        let troubles = troubles.into_iter().take(TROUBLES_REPORTED).collect();
        let report = PoolReport {
            egress: self.egress.report(),
            limits: self.egress.limits(),
            troubles,
        };
        let core = self.clone();
        tokio::spawn(async move {
            let _ = core.ledger.send(Change::Report(Box::new(report))).await;
        });
    }

    /// Why sandboxd did not answer: its pod's end, if that is known.
    pub fn why_unreachable(&self, lease: &str, error: &SandboxError) -> ErrorBody {
        self.look(|index| match index.cause_of(lease) {
            Some(cause) => ErrorBody::lost(lease, cause),
            // The watch may be a moment behind: the caller asks again with the same id and then hears the cause.
            None => ErrorBody::new(
                ErrorCode::SandboxUnreachable,
                FaultOrigin::Infrastructure,
                error.to_string(),
            ),
        })
    }

    async fn create(self: Arc<Self>, name: String, image: String, slot: Option<u32>) {
        if !self.may_make_pods().await {
            self.with(|index| index.refused(&name));
            return;
        }
        let near = self
            .prefetcher
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .node_of(&image);
        let made = match pod::sandbox(&self.template_now(), &name, &image, slot, near.as_deref()) {
            Ok(pod) => self.ask_for(&pod, &name).await,
            Err(error) => Err(kube::Error::SerdeError(error)),
        };
        match made {
            Ok(uid) => {
                self.refusals.store(0, Ordering::Relaxed);
                self.apply(|index| index.answered(&name, &uid, now()));
            }
            Err(error) if pod::is_refused_for_its_rule(&error) && self.look(|index| index.resets) => {
                tracing::warn!(%error, "this cluster cannot restart containers as `reset` asks (Kubernetes 1.36 can): pods are deleted instead");
                self.with(|index| {
                    index.resets = false;
                    index.refused(&name);
                });
            }
            Err(error) => {
                tracing::warn!(%error, name, image, "creating a sandbox pod");
                self.metrics.api_refused();
                let before = self.refusals.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep((REFUSED_PAUSE * (1 << before.min(8))).min(LONGEST_REFUSED_PAUSE)).await;
                self.with(|index| index.refused(&name));
            }
        }
    }

    /// What pods are made from, without what this cluster was found not to know.
    fn template_now(&self) -> Template {
        let mut template = self.template.clone();
        if !self.look(|index| index.resets) {
            template.spec.reset = Reset::Never;
        }
        template
    }

    /// Asks until the API server says yes or no. What it did not answer it may have done all the same, so the same pod
    /// is asked for again: a second one would be one too many. Answers its uid, if that can be had.
    async fn ask_for(&self, pod: &Pod, name: &str) -> Result<String, kube::Error> {
        let mut pause = UNANSWERED_PAUSE;
        loop {
            let error = match self.pods.create(&PostParams::default(), pod).await {
                Ok(made) => {
                    self.metrics.wrote("create");
                    return Ok(made.metadata.uid.unwrap_or_default());
                }
                // An earlier try was heard.
                Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
                    let found = self.pods.get(name).await;
                    return Ok(found.ok().and_then(|pod| pod.metadata.uid).unwrap_or_default());
                }
                Err(error) => error,
            };
            let wait = match &error {
                kube::Error::Api(status) if status.code == 429 || status.code >= 500 => {
                    let asked = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                    pause.max(Duration::from_secs(asked.into()))
                }
                kube::Error::Api(_) | kube::Error::SerdeError(_) => return Err(error),
                _ => pause,
            };
            tracing::debug!(%error, name, "creating a sandbox pod; it will be tried again");
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(LONGEST_UNANSWERED_PAUSE);
        }
    }

    /// Once: the index orders it again until the pod is seen to be gone. Answers whether the API server has taken the
    /// order.
    async fn delete(self: Arc<Self>, name: String) -> bool {
        let deleting = || self.deleting.lock().unwrap_or_else(PoisonError::into_inner);
        if !deleting().insert(name.clone()) {
            return false;
        }
        let is_taken = self.delete_now(&name).await;
        deleting().remove(&name);
        is_taken
    }

    async fn delete_now(&self, name: &str) -> bool {
        let Ok(_permit) = self.deletions.acquire().await else {
            return false;
        };
        match self.pods.delete(name, &DeleteParams::default().grace_period(0)).await {
            Ok(_) => {
                self.metrics.wrote("delete");
                self.with(|index| index.deleting(name));
                true
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.with(|index| index.absent(name));
                true
            }
            Err(error) => {
                tracing::warn!(%error, name, "deleting a sandbox pod; it will be tried again");
                false
            }
        }
    }

    /// Has a container restart; tells when sandboxd has ended what was there. A sandboxd that does not say that it
    /// will end is not waited for.
    async fn reset(self: Arc<Self>, name: String, ip: &str, lease: &str, epoch: u64, ended: oneshot::Sender<()>) {
        match self.sandboxes.reset(Holder { ip, lease, epoch }).await {
            Ok(()) => {
                // A caller that has gone does not want to know.
                let _ = ended.send(());
                if let Some(ip) = self.look(|index| index.restarting(&name, epoch)) {
                    self.await_answer(name, ip).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, name, "resetting a sandbox; it is thrown away");
                let actions = self.with(|index| index.discard(&name, SandboxCause::Unknown, now()));
                if self.carry_out(actions).await.is_ok() {
                    let _ = ended.send(());
                }
            }
        }
    }

    /// Durable first, then bound, then granted.
    async fn grant(self: Arc<Self>, id: String) {
        let Some(held) = self.lock().leases.get(&id).cloned() else {
            return;
        };
        let decided = Instant::now();
        if self.granting.fetch_add(1, Ordering::Relaxed) == 0 {
            // Nobody else waits for the processor: the way there is made while the ledger is written.
            let (core, ip) = (self.clone(), held.ip.clone());
            tokio::spawn(async move { core.sandboxes.greet(&ip).await });
        }
        let is_durable = self.is_durable(&held).await;
        self.granting.fetch_sub(1, Ordering::Relaxed);
        if !is_durable {
            return;
        }
        self.metrics.committed(decided.elapsed());
        let durable = Instant::now();
        let epoch = held.entry.epoch;
        let is_still = |index: &mut Index| index.leases.get(&id).is_some_and(|held| held.entry.epoch == epoch);
        if !self.look(is_still) {
            // Given back meanwhile, perhaps before it was written.
            let (lease, cause) = (id, None);
            self.act(Action::Forget { lease, epoch, cause });
            return;
        }
        let holder = Holder::of(&held);
        let ttl = ((held.entry.expires_at - now()).max(1000) / 1000) as u64;
        match self.sandboxes.bind(holder, ttl + 60).await {
            Ok(()) => {
                self.metrics.bound(durable.elapsed());
                self.granted(&id, epoch);
            }
            Err(error) => {
                let sandbox = &held.entry.sandbox;
                tracing::warn!(%error, lease = id, sandbox, "binding a sandbox; it is thrown away");
                self.apply(|index| index.discard(sandbox, SandboxCause::Unknown, now()));
            }
        }
    }

    /// Puts a lease into the ledger. False when the ledger's writer has ended, and with it soon this process.
    async fn is_durable(&self, held: &ActiveLease) -> bool {
        let (done, committed) = oneshot::channel();
        let entry = held.entry.clone();
        self.ledger.send(Change::Put { entry, done }).await.is_ok() && committed.await.is_ok()
    }

    fn granted(&self, id: &str, epoch: u64) {
        let Some(held) = self.with(|index| index.grant(id, epoch)) else {
            return;
        };
        let waited = (now() - held.asked_at).max(0).unsigned_abs();
        self.metrics.leased(&held, Duration::from_millis(waited));
        self.waiters.answer(id, Ok(lease(&held)));
    }

    /// Extends a lease; answers it as it then is. Only a longer time than ever before goes into the ledger, first.
    pub async fn renew(&self, id: &str, ttl_millis: i64) -> Option<ActiveLease> {
        let (held, is_longer) = self.look(|index| index.renew(id, ttl_millis, now()))?;
        if is_longer && !self.is_durable(&held).await {
            return None;
        }
        Some(held)
    }

    /// Waits until the ledger has everything that was decided. Called before the process ends.
    pub async fn settle(&self) {
        let (done, settled) = oneshot::channel();
        if self.ledger.send(Change::Flush { done }).await.is_ok() {
            let _ = settled.await;
        }
    }
}

/// What a holder is told.
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
