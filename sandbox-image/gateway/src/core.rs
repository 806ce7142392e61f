//! Carries out what the index decides: creates and deletes pods, commits leases, binds sandboxes, answers those who wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::TryStreamExt;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, Fault, Lease, LeaseRequest, SandboxCause};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use rand::Rng;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use crate::cause::cause;
use crate::index::{Action, Held, Index, Stage};
use crate::ledger::Change;
use crate::pod::{self, IMAGE_ANNOTATION, Template};
use crate::sandbox::{Holder, Sandboxes};

/// Pods created or deleted at one time: each call holds a connection to the API server.
const PARALLEL: usize = 8;
/// Pause between two looks whether sandboxd answers.
const LOOK: Duration = Duration::from_millis(20);
/// A pod that runs but does not answer for so long is of no use.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

type Waiting = HashMap<String, Vec<oneshot::Sender<Result<Lease, ErrorBody>>>>;

/// The gateway's working parts. Shared by reference.
pub struct Core {
    index: Mutex<Index>,
    waiting: Mutex<Waiting>,
    changed: Notify,
    pods: Api<Pod>,
    calls: Semaphore,
    ledger: mpsc::Sender<Change>,
    pub sandboxes: Sandboxes,
    pub template: Template,
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
            waiting: Mutex::default(),
            changed: Notify::new(),
            pods,
            calls: Semaphore::new(PARALLEL),
            ledger,
            sandboxes,
            template,
        })
    }

    /// Looks at or changes the index; what follows from it is done at once.
    pub fn with<T>(&self, look: impl FnOnce(&mut Index) -> T) -> T {
        let answer = look(&mut self.lock());
        self.changed.notify_one();
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Leases a sandbox, waiting in the queue as long as the request says.
    pub async fn lease(self: &Arc<Self>, request: LeaseRequest) -> Result<Lease, ErrorBody> {
        let id = request.id.clone();
        let wait = Duration::from_secs(request.wait_seconds);
        let (tell, told) = oneshot::channel();
        {
            let mut index = self.lock();
            if let Some(held) = index.leases.get(&id).filter(|held| held.promised) {
                return Ok(lease(held));
            }
            index.wait(request, now())?;
            self.waiting().entry(id.clone()).or_default().push(tell);
        }
        self.changed.notify_one();
        match tokio::time::timeout(wait, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(self.not_in_time(&id)),
        }
    }

    fn not_in_time(&self, id: &str) -> ErrorBody {
        let mut index = self.lock();
        let (position, waiting) = index.place(id);
        index.give_up(id);
        self.waiting().remove(id);
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

    fn answer(&self, lease: &str, answer: Result<Lease, ErrorBody>) {
        for tell in self.waiting().remove(lease).unwrap_or_default() {
            let _ = tell.send(answer.clone());
        }
    }

    /// Plans whenever something changed, or a deadline passed.
    pub async fn schedule(self: Arc<Self>) {
        loop {
            let prefix = self.template.pool.clone();
            let (actions, next) = {
                let mut index = self.lock();
                let actions = index.plan(now(), || {
                    format!("{prefix}-sbx-{:010x}", rand::rng().random::<u64>() >> 24)
                });
                (actions, index.next_deadline())
            };
            for action in actions {
                self.clone().act(action);
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
    pub fn act(self: Arc<Self>, action: Action) {
        match action {
            Action::Create { name, image } => drop(tokio::spawn(async move { self.create(name, image).await })),
            Action::Delete { name } => drop(tokio::spawn(async move { self.delete(name).await })),
            Action::Promise { lease } => drop(tokio::spawn(async move { self.promise(lease).await })),
            Action::Forget { lease } => {
                tokio::spawn(async move {
                    let _ = self.ledger.send(Change::Remove { lease }).await;
                });
            }
            Action::Refuse { lease, error } => self.answer(&lease, Err(error)),
        }
    }

    async fn create(self: Arc<Self>, name: String, image: String) {
        let Ok(_permit) = self.calls.acquire().await else {
            return;
        };
        let made = match pod::sandbox(&self.template, &name, &image) {
            Ok(pod) => self.pods.create(&PostParams::default(), &pod).await.map(|_| ()),
            Err(error) => Err(kube::Error::SerdeError(error)),
        };
        if let Err(error) = made {
            tracing::warn!(%error, name, image, "creating a sandbox pod");
            // Not at once again: a quota or an admission rule will refuse the next one too.
            tokio::time::sleep(Duration::from_millis(500)).await;
            let actions = self.with(|index| index.gone(&name, SandboxCause::Unknown));
            self.act_all(actions);
        }
    }

    async fn delete(self: Arc<Self>, name: String) {
        let Ok(_permit) = self.calls.acquire().await else {
            return;
        };
        for pause in [200, 1000, 5000] {
            match self.pods.delete(&name, &DeleteParams::default().grace_period(0)).await {
                Ok(_) => return,
                Err(kube::Error::Api(status)) if status.code == 404 => return,
                Err(error) => tracing::warn!(%error, name, "deleting a sandbox pod; trying again"),
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Durable first, then bound, then promised.
    async fn promise(self: Arc<Self>, id: String) {
        let Some(held) = self.lock().leases.get(&id).cloned() else {
            return;
        };
        let (done, committed) = oneshot::channel();
        if self
            .ledger
            .send(Change::Put {
                entry: held.entry.clone(),
                done,
            })
            .await
            .is_err()
            || committed.await.is_err()
        {
            return;
        }
        let holder = Holder {
            ip: &held.ip,
            lease: &id,
            epoch: held.entry.epoch,
        };
        let ttl = ((held.entry.expires_at - now()).max(1000) / 1000) as u64;
        match self.sandboxes.bind(holder, ttl + 60).await {
            Ok(()) => {
                let held = self.with(|index| {
                    index.promise(&id);
                    index.leases.get(&id).cloned()
                });
                if let Some(held) = held {
                    self.answer(&id, Ok(lease(&held)));
                }
            }
            Err(error) => {
                tracing::warn!(%error, lease = id, sandbox = held.entry.sandbox, "binding a sandbox; it is thrown away");
                let actions = self.with(|index| index.gone(&held.entry.sandbox, SandboxCause::Unknown));
                self.act_all(actions);
                self.act_all(vec![Action::Delete {
                    name: held.entry.sandbox,
                }]);
            }
        }
    }

    pub fn act_all(self: &Arc<Self>, actions: Vec<Action>) {
        for action in actions {
            self.clone().act(action);
        }
    }

    /// The pool's pods as they are now. Called once, before leases are restored.
    pub async fn list(pods: &Api<Pod>, pool: &str) -> Result<Vec<Pod>, kube::Error> {
        Ok(pods
            .list(&ListParams::default().labels(&pod::selector(pool)))
            .await?
            .items)
    }

    /// Follows the pool's pods for ever.
    pub async fn follow(self: Arc<Self>) {
        let config = watcher::Config::default().labels(&pod::selector(&self.template.pool));
        let events = watcher::watcher(self.pods.clone(), config).default_backoff();
        let mut events = std::pin::pin!(events);
        let mut listed: Vec<String> = Vec::new();
        loop {
            match events.try_next().await {
                Ok(None) => return,
                Err(error) => tracing::debug!(%error, "watching sandbox pods"),
                Ok(Some(Event::Init)) => listed.clear(),
                Ok(Some(Event::InitApply(pod))) => {
                    listed.push(name(&pod));
                    self.saw(&pod);
                }
                Ok(Some(Event::InitDone)) => self.missed(&listed),
                Ok(Some(Event::Apply(pod))) => self.saw(&pod),
                Ok(Some(Event::Delete(pod))) => {
                    let actions = self.with(|index| index.gone(&name(&pod), cause(&pod, true)));
                    self.act_all(actions);
                }
            }
        }
    }

    /// Pods that were known by address and are not in a fresh list are gone; a pod just ordered may not be listed yet.
    fn missed(self: &Arc<Self>, listed: &[String]) {
        let actions = self.with(|index| {
            let gone: Vec<String> = index
                .sandboxes
                .iter()
                .filter(|(name, sandbox)| !sandbox.uid.is_empty() && !listed.contains(name))
                .map(|(name, _)| name.clone())
                .collect();
            gone.iter()
                .flat_map(|name| index.gone(name, SandboxCause::Deleted))
                .collect()
        });
        self.act_all(actions);
    }

    /// One pod as the API server has it.
    pub fn saw(self: &Arc<Self>, pod: &Pod) {
        let name = name(pod);
        let status = pod.status.clone().unwrap_or_default();
        let ended = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
        if pod.metadata.deletion_timestamp.is_some() || ended {
            let actions = self.with(|index| index.gone(&name, cause(pod, pod.metadata.deletion_timestamp.is_some())));
            self.act_all(actions);
            if ended && pod.metadata.deletion_timestamp.is_none() {
                self.clone().act(Action::Delete { name });
            }
            return;
        }
        let image = pod
            .metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(IMAGE_ANNOTATION))
            .cloned()
            .unwrap_or_default();
        if let Some(message) = pull_failure(pod) {
            let mut actions = self.with(|index| {
                let mut actions = index.bad_image(&image, &message, now());
                actions.extend(index.gone(&name, SandboxCause::Unknown));
                actions
            });
            actions.push(Action::Delete { name });
            self.act_all(actions);
            return;
        }
        let known = self.lock().sandboxes.get(&name).cloned();
        // An address appears once; what follows it is noise.
        if known.as_ref().is_some_and(|known| !known.ip.is_empty()) {
            return;
        }
        let ip = status.pod_ip.clone().unwrap_or_default();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let node = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default();
        // A pod that this gateway neither ordered nor restored may hold an earlier holder's work.
        if known.is_none() {
            self.clone().act(Action::Delete { name });
            return;
        }
        self.lock().seen(&name, &image, &uid, &ip, &node);
        if !ip.is_empty() {
            tokio::spawn(self.clone().await_answer(name, ip));
        }
    }

    /// sandboxd answers long before the kubelet would say that the pod is ready.
    async fn await_answer(self: Arc<Self>, name: String, ip: String) {
        let deadline = tokio::time::Instant::now() + ANSWER_WITHIN;
        while tokio::time::Instant::now() < deadline {
            if self.sandboxes.answers(&ip).await {
                self.with(|index| index.ready(&name));
                return;
            }
            if self
                .lock()
                .sandboxes
                .get(&name)
                .is_none_or(|sandbox| sandbox.stage == Stage::Ready)
            {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
        tracing::warn!(name, ip, "sandboxd does not answer; the pod is replaced");
        let mut actions = self.with(|index| index.gone(&name, SandboxCause::Unknown));
        actions.push(Action::Delete { name });
        self.act_all(actions);
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

fn name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

/// Why the pod's image cannot be had, once the kubelet has given up on it for now.
fn pull_failure(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let waiting = statuses
        .iter()
        .find_map(|status| status.state.as_ref()?.waiting.as_ref())?;
    match waiting.reason.as_deref() {
        Some("ImagePullBackOff" | "ErrImagePull" | "InvalidImageName" | "ErrImageNeverPull") => {
            Some(waiting.message.clone().or(waiting.reason.clone()).unwrap_or_default())
        }
        _ => None,
    }
}
