//! Carries out what the index decides: creates and deletes pods, commits leases, binds sandboxes, answers those who wait.

mod watch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, Fault, Lease, LeaseRequest, SandboxCause};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use rand::Rng;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use crate::index::{Action, Held, Index};
use crate::ledger::Change;
use crate::metrics::Metrics;
use crate::pod::{self, Template};
use crate::sandbox::{Holder, Sandboxes};
use crate::waiters::{Place, Waiters};

/// Pods created, and pods deleted, at one time: each call holds a connection to the API server.
const PARALLEL: usize = 8;
/// After a refused creation: a quota or an admission rule will refuse the next one too.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);

/// The gateway's working parts. Shared by reference.
pub struct Core {
    index: Mutex<Index>,
    waiters: Waiters,
    changed: Notify,
    pods: Api<Pod>,
    creations: Semaphore,
    /// Apart from creations: nothing waits for a removal.
    deletions: Semaphore,
    ledger: mpsc::Sender<Change>,
    /// The watch has shown every pod there is.
    in_sync: AtomicBool,
    pub sandboxes: Sandboxes,
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
    ) -> Arc<Self> {
        Arc::new(Self {
            index: Mutex::new(index),
            waiters: Waiters::default(),
            changed: Notify::new(),
            pods,
            creations: Semaphore::new(PARALLEL),
            deletions: Semaphore::new(PARALLEL),
            ledger,
            in_sync: AtomicBool::new(false),
            sandboxes,
            template,
            metrics: Metrics::default(),
        })
    }

    /// Whether leases may be asked for: the pool's pods are known, and the ledger is held by this gateway.
    pub fn is_ready(&self) -> bool {
        self.in_sync.load(Ordering::Relaxed) && !self.ledger.is_closed()
    }

    /// Looks at or changes the index; what follows from it is done at once.
    pub fn with<T>(&self, look: impl FnOnce(&mut Index) -> T) -> T {
        let answer = look(&mut self.lock());
        self.changed.notify_one();
        answer
    }

    /// Changes the index and carries out what it answers.
    pub fn apply(self: &Arc<Self>, change: impl FnOnce(&mut Index) -> Vec<Action>) {
        for action in self.with(change) {
            self.act(action);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases a sandbox, waiting in the queue as long as the request says.
    pub async fn lease(self: &Arc<Self>, request: LeaseRequest) -> Result<Lease, ErrorBody> {
        let wait = Duration::from_secs(request.wait_seconds);
        let id = request.id.clone();
        let mut place = {
            let mut index = self.lock();
            if let Some(held) = index.leases.get(&id).filter(|held| held.promised) {
                return Ok(lease(held));
            }
            index.wait(request, now())?;
            self.waiters.join(&id)
        };
        self.changed.notify_one();
        match place.answer(wait).await {
            Some(answer) => answer,
            None => Err(self.not_in_time(&id, place)),
        }
    }

    fn not_in_time(&self, id: &str, place: Place) -> ErrorBody {
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
            ..ErrorBody::new(ErrorCode::QueueDeadline, Fault::Infrastructure, message)
        }
    }

    /// Plans whenever something changed, or a deadline passed.
    pub async fn schedule(self: Arc<Self>) {
        loop {
            let prefix = self.template.pool.clone();
            let (actions, next) = {
                let (mut index, now) = (self.lock(), now());
                let actions = index.plan(now, || {
                    format!("{prefix}-sbx-{:010x}", rand::rng().random::<u64>() >> 24)
                });
                (actions, index.next_deadline(now))
            };
            for action in actions {
                self.act(action);
            }
            let sleep = next.map_or(Duration::from_secs(60), |at| {
                Duration::from_millis((at - now()).clamp(10, 60_000) as u64)
            });
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Starts what an action asks for; nothing here waits for it.
    fn act(self: &Arc<Self>, action: Action) {
        let core = self.clone();
        match action {
            Action::Create { name, image, slot } => {
                tokio::spawn(async move { core.create(name, image, slot).await });
            }
            Action::Delete { name } => drop(tokio::spawn(async move { core.delete(name).await })),
            Action::Promise { lease } => drop(tokio::spawn(async move { core.promise(lease).await })),
            Action::Forget { lease, cause } => {
                cause.inspect(|cause| self.metrics.lost(*cause));
                tokio::spawn(async move {
                    let _ = core.ledger.send(Change::Remove { lease }).await;
                });
            }
            Action::Refuse { lease, error } => self.waiters.answer(&lease, Err(error)),
        }
    }

    async fn create(self: Arc<Self>, name: String, image: String, slot: Option<u32>) {
        let Ok(_permit) = self.creations.acquire().await else {
            return;
        };
        let made = match pod::sandbox(&self.template, &name, &image, slot) {
            Ok(pod) => self.pods.create(&PostParams::default(), &pod).await.map(drop),
            Err(error) => Err(kube::Error::SerdeError(error)),
        };
        match made {
            Ok(()) => self.apply(|index| index.created(&name, now())),
            Err(error) => {
                tracing::warn!(%error, name, image, "creating a sandbox pod");
                tokio::time::sleep(REFUSED_PAUSE).await;
                self.apply(|index| index.gone(&name, SandboxCause::Unknown));
            }
        }
    }

    /// Once: the index orders it again until the pod is seen to be gone.
    async fn delete(self: Arc<Self>, name: String) {
        let Ok(_permit) = self.deletions.acquire().await else {
            return;
        };
        match self.pods.delete(&name, &DeleteParams::default().grace_period(0)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => self.with(|index| index.absent(&name)),
            Err(error) => tracing::warn!(%error, name, "deleting a sandbox pod; it will be tried again"),
        }
    }

    /// Durable first, then bound, then promised.
    async fn promise(self: Arc<Self>, id: String) {
        let Some(held) = self.lock().leases.get(&id).cloned() else {
            return;
        };
        if !self.is_durable(&held).await {
            return;
        }
        if !self.lock().leases.contains_key(&id) {
            // Given back meanwhile, perhaps before it was written.
            self.act(Action::Forget { lease: id, cause: None });
            return;
        }
        let holder = Holder {
            ip: &held.ip,
            lease: &id,
            epoch: held.entry.epoch,
        };
        let ttl = ((held.entry.expires_at - now()).max(1000) / 1000) as u64;
        match self.sandboxes.bind(holder, ttl + 60).await {
            Ok(()) => self.promised(&id),
            Err(error) => {
                let sandbox = &held.entry.sandbox;
                tracing::warn!(%error, lease = id, sandbox, "binding a sandbox; it is thrown away");
                self.apply(|index| index.discard(sandbox, SandboxCause::Unknown, now()));
            }
        }
    }

    /// Puts a lease into the ledger. False when the ledger's writer has ended, and with it soon this process.
    async fn is_durable(&self, held: &Held) -> bool {
        let (done, committed) = oneshot::channel();
        let entry = held.entry.clone();
        self.ledger.send(Change::Put { entry, done }).await.is_ok() && committed.await.is_ok()
    }

    fn promised(&self, id: &str) {
        let held = self.with(|index| {
            index.promise(id);
            index.leases.get(id).cloned()
        });
        if let Some(held) = held {
            let waited = (now() - held.asked_at).max(0).unsigned_abs();
            self.metrics.leased(held.warm, Duration::from_millis(waited));
            self.waiters.answer(id, Ok(lease(&held)));
        }
    }

    /// The pool's pods as they are now. Called once, before leases are restored.
    pub async fn list(pods: &Api<Pod>, pool: &str) -> Result<Vec<Pod>, kube::Error> {
        let of_the_pool = ListParams::default().labels(&pod::selector(pool));
        Ok(pods.list(&of_the_pool).await?.items)
    }
}

/// What a holder is told.
pub fn lease(held: &Held) -> Lease {
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
