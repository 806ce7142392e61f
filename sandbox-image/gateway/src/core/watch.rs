//! The watch of the pool's pods: passes what the cluster shows to the index.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use grpo_sandbox_protocol::SandboxCause;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use super::{Core, now};
use crate::cause::cause;
use crate::index::Stage;
use crate::kubelet_refusal;
use crate::pod;
use crate::pull::{pull_failure, volumes};
use crate::slim_pod::SlimPod;

/// Pause between two checks whether sandboxd answers.
const LOOK: Duration = Duration::from_millis(20);
/// A pod that has an address and does not answer for this long is discarded.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// The same limit for a pod whose image is being pulled for the second time.
const ANSWER_AFTER_PULL_WITHIN: Duration = Duration::from_secs(300);

/// The API server's events about a pool's pods, from now on.
pub struct Watched(BoxStream<'static, Result<Event<SlimPod>, watcher::Error>>);

impl Watched {
    /// Starts the watch, and returns all existing pods.
    pub async fn begin(client: Client, namespace: &str, pool: &str) -> Result<(Self, Vec<SlimPod>), watcher::Error> {
        let config = watcher::Config::default().labels(&pod::selector(pool));
        let pods = Api::namespaced(client, namespace);
        let mut events = watcher::watcher(pods, config).default_backoff().boxed();
        let mut listed = Vec::new();
        while let Some(event) = events.next().await {
            match event? {
                Event::Init => listed.clear(),
                Event::InitApply(pod) => listed.push(pod),
                Event::InitDone => break,
                Event::Apply(_) | Event::Delete(_) => {}
            }
        }
        Ok((Self(events), listed))
    }
}

impl Core {
    /// Takes in the pods that existed when the watch began. Called once, before any order: an ordered pod is not in
    /// that list.
    pub fn take_in(self: &Arc<Self>, pods: Vec<SlimPod>) {
        let mut listed = HashSet::new();
        let pods = pods.into_iter().map(Event::InitApply);
        for event in std::iter::once(Event::Init).chain(pods).chain([Event::InitDone]) {
            self.on(event, &mut listed);
        }
    }

    /// Follows the pool's pods for ever.
    pub async fn follow(self: Arc<Self>, mut pods: Watched) {
        let mut listed = HashSet::new();
        while let Some(event) = pods.0.next().await {
            match event {
                Ok(event) => self.on(event, &mut listed),
                Err(error) => tracing::debug!(%error, "watching sandbox pods"),
            }
        }
    }

    /// Handles one event of the watch; `listed` gathers the pods of the current list.
    pub(super) fn on(self: &Arc<Self>, event: Event<SlimPod>, listed: &mut HashSet<String>) {
        match event {
            Event::Init => {
                listed.clear();
                self.with(|index| index.list_begins());
            }
            Event::InitApply(pod) => {
                listed.insert(pod.name_any());
                self.saw(&pod);
            }
            Event::InitDone => {
                self.apply(|index| index.list_ends(listed));
                self.in_sync.store(true, Ordering::Relaxed);
            }
            Event::Apply(pod) => self.saw(&pod),
            Event::Delete(pod) => {
                let uid = pod.uid().unwrap_or_default();
                self.apply(|index| index.removed(&pod.name_any(), &uid, cause(&pod, true)));
            }
        }
    }

    /// Handles one pod as the API server shows it.
    fn saw(self: &Arc<Self>, pod: &SlimPod) {
        let name = pod.name_any();
        if !self.lock().knows(&name) {
            if pod::term(pod).is_some_and(|term| term > self.template.term) {
                tracing::error!(name, "a later gateway of this pool made a pod; this one ends");
                self.replaced.notify_one();
                return;
            }
            self.apply(|index| index.orphan(&name, now()));
            return;
        }
        let status = pod.status.clone().unwrap_or_default();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let node = node.unwrap_or_default();
        let is_deleted = pod.metadata.deletion_timestamp.is_some();
        let refusal = kubelet_refusal::refusal(pod).filter(|_| !is_deleted);
        if let Some(why) = refusal
            && self.with(|index| index.refused_by_node(&name, node, &why, now()))
        {
            tracing::warn!(name, node, why, "the node's kubelet refused a sandbox");
            return;
        }
        if is_deleted || matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
            self.apply(|index| index.discard(&name, cause(pod, is_deleted), now()));
            return;
        }
        if let Some(failure) = pull_failure(pod, volumes(&self.template)) {
            tracing::warn!(?failure, name, "pulling an image of a sandbox");
            self.apply(|index| index.pull_failed(&name, &failure, now()));
        }
        self.apply(|index| index.restarted(&name, pod.restarts(), cause(pod, false), now()));
        let ip = status.pod_ip.unwrap_or_default();
        let uid = pod.uid().unwrap_or_default();
        let is_new = self.look(|index| index.observed(&name, &uid, &ip, node, now()));
        if is_new {
            tokio::spawn(self.clone().await_answer(name, ip));
        }
    }

    /// Polls sandboxd, which answers long before the kubelet reports the pod as ready.
    pub(super) async fn await_answer(self: Arc<Self>, name: String, ip: String) {
        let began = Instant::now();
        while let Some(patience) = self.patience(&name) {
            if self.sandboxes.answers(&ip).await {
                self.with(|index| index.ready(&name));
                return;
            }
            if began.elapsed() > patience {
                tracing::warn!(name, ip, "sandboxd does not answer; the pod is replaced");
                self.apply(|index| index.discard(&name, SandboxCause::Unknown, now()));
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// How long to wait for the pod's answer. `None` if no answer is awaited.
    fn patience(&self, name: &str) -> Option<Duration> {
        let index = self.lock();
        let sandbox = index.sandboxes.get(name)?;
        match (&sandbox.stage, sandbox.pull_failed_at) {
            (Stage::Ready | Stage::Resetting { .. }, _) => None,
            (Stage::Starting, None) => Some(ANSWER_WITHIN),
            (Stage::Starting, Some(_)) => Some(ANSWER_AFTER_PULL_WITHIN),
        }
    }
}
