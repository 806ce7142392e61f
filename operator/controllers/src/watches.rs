//! Watches that feed the three controllers: all pods that are ours, the ledgers, and what the operator has applied.
//!
//! ```text
//! pods ─────► PodIndex (facts by parent, in memory) ──┐
//! ledgers ──► Ledgers (leases and report by pool) ────┼─► Triggers ─► the parent's controller
//! children ─► Applied (drops what has changed) ───────┘
//! ```
//!
//! The index is updated before the controller is triggered, so a reconcile never reads something older than what it was
//! triggered by. Pods are kept as facts, a few hundred bytes each, and a change that changes no fact triggers nobody.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use futures::{Stream, StreamExt, stream};
use grpo_crds::GrpoRun;
use grpo_sandbox_protocol::{PoolReport, REPORT_ANNOTATION};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Resource, ResourceExt,
    core::{DeserializeGuard, ObjectMeta, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        reflector::ObjectRef,
        utils::Backoff,
        watcher::{self, DefaultBackoff, Event, watcher},
    },
};
use tokio::sync::{mpsc, watch};

use crate::{
    applied::{Applied, Key, Sighting},
    metrics::{Census, Metrics},
};
use grpo_operator_core::{
    causes,
    names::{self, role},
    pods::PodFacts,
};

/// Triggers of one controller that wait to be taken; a full queue slows the watch down.
const QUEUE: usize = 1024;

/// Objects of one page of a list. A page is in memory as text and as objects at once, in every watch that begins anew
/// when the API server does.
const PAGE: u32 = 50;

/// A watch that is interrupted begins anew after kube's pauses, none longer than this: when the API server is back
/// after minutes, it is not to be waited for half a minute more.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// The pauses of an interrupted watch.
#[derive(Default)]
pub struct Pauses(DefaultBackoff);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(LONGEST_PAUSE))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// A watch of every object, which lists in small pages.
pub fn every_object() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// Which controller an object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Controlled {
    Run,
    InferencePool,
    SandboxPool,
}

impl Controlled {
    pub const ALL: [Self; 3] = [Self::Run, Self::InferencePool, Self::SandboxPool];

    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "GrpoRun",
            Self::InferencePool => "InferencePool",
            Self::SandboxPool => "SandboxPool",
        }
    }

    pub fn named(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == kind)
    }
}

/// An object of ours, by kind and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parent {
    pub kind: Controlled,
    pub namespace: String,
    pub name: String,
}

impl Parent {
    /// Whom a pod belongs to, by its labels.
    fn of_pod(pod: &Pod) -> Option<Self> {
        let labels = pod.labels();
        let (kind, label) = match labels.get(names::ROLE)?.as_str() {
            role::DRIVER | role::TRAINER => (Controlled::Run, names::RUN),
            role::ENGINE => (Controlled::InferencePool, names::INFERENCE_POOL),
            role::GATEWAY | role::SANDBOX => (Controlled::SandboxPool, names::SANDBOX_POOL),
            _ => return None,
        };
        Some(Self {
            kind,
            namespace: pod.namespace()?,
            name: labels.get(label)?.clone(),
        })
    }

    /// Whom an object belongs to, by its controller reference.
    pub fn of_owned(metadata: &ObjectMeta) -> Option<Self> {
        let owner = metadata
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true) && owner.api_version == GrpoRun::api_version(&()))?;
        Some(Self {
            kind: Controlled::named(&owner.kind)?,
            namespace: metadata.namespace.clone()?,
            name: owner.name.clone(),
        })
    }
}

/// Ways to the three controllers.
#[derive(Clone)]
pub struct Triggers {
    runs: mpsc::Sender<Parent>,
    inference_pools: mpsc::Sender<Parent>,
    sandbox_pools: mpsc::Sender<Parent>,
    metrics: Metrics,
}

/// The controllers' ends.
pub struct Triggered {
    pub runs: mpsc::Receiver<Parent>,
    pub inference_pools: mpsc::Receiver<Parent>,
    pub sandbox_pools: mpsc::Receiver<Parent>,
}

pub fn triggers(metrics: &Metrics) -> (Triggers, Triggered) {
    let (runs, runs_end) = mpsc::channel(QUEUE);
    let (inference_pools, inference_end) = mpsc::channel(QUEUE);
    let (sandbox_pools, sandbox_end) = mpsc::channel(QUEUE);
    let triggers = Triggers {
        runs,
        inference_pools,
        sandbox_pools,
        metrics: metrics.clone(),
    };
    let triggered = Triggered {
        runs: runs_end,
        inference_pools: inference_end,
        sandbox_pools: sandbox_end,
    };
    (triggers, triggered)
}

impl Triggers {
    pub async fn pull(&self, parent: Parent) {
        let way = match parent.kind {
            Controlled::Run => &self.runs,
            Controlled::InferencePool => &self.inference_pools,
            Controlled::SandboxPool => &self.sandbox_pools,
        };
        self.metrics.triggered(&parent);
        // A controller that is gone ends the process; until then there is nobody to tell.
        let _ = way.send(parent).await;
    }
}

/// A controller's end as the stream that kube's runtime wants.
pub fn requests<K>(
    receiver: mpsc::Receiver<Parent>,
) -> impl Stream<Item = ObjectRef<DeserializeGuard<K>>> + Send + 'static
where
    K: Resource<DynamicType = ()> + 'static,
{
    stream::unfold(receiver, |mut receiver| async move {
        let parent = receiver.recv().await?;
        Some((ObjectRef::new(&parent.name).within(&parent.namespace), receiver))
    })
}

/// One pod in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedPod {
    /// Uid of the object that controls it.
    pub owner: Option<String>,
    pub role: String,
    pub facts: PodFacts,
}

/// Boxed, because a map of trees has room for eleven in each, and most have one.
type PodsOf = HashMap<Parent, BTreeMap<String, Box<IndexedPod>>>;

/// Facts of all pods that are ours, by parent.
#[derive(Default)]
pub struct PodIndex {
    pods: RwLock<PodsOf>,
}

impl PodIndex {
    /// The pods of a parent that play one role.
    pub fn pods(&self, parent: &Parent, role: &str) -> Vec<IndexedPod> {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        pods.get(parent)
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter(|pod| pod.role == role)
            .map(|pod| (**pod).clone())
            .collect()
    }

    /// Counts all pods, by role and state.
    pub fn count(&self, census: &Census) {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        for pod in pods.values().flat_map(BTreeMap::values) {
            census.pods(&pod.role, causes::state(&pod.facts));
        }
    }

    /// Counts what a pod's change begins or ends, before the index knows of it.
    fn tell(&self, pod: &Pod, metrics: &Metrics) {
        let Some(parent) = Parent::of_pod(pod) else { return };
        let (facts, role) = (
            PodFacts::of(pod),
            pod.labels().get(names::ROLE).map_or("", String::as_str),
        );
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        let known = pods.get(&parent).and_then(|siblings| siblings.get(&facts.name));
        if known.is_none() && facts.rank == 0 && [role::DRIVER, role::TRAINER].contains(&role) {
            metrics.attempt(role);
        }
        let failed_before = known.is_some_and(|known| causes::cause(pod, &known.facts).is_some());
        if let Some(cause) = causes::cause(pod, &facts).filter(|_| !failed_before) {
            metrics.pod_failed(role, cause);
        }
    }

    /// Takes a pod as it is; returns whose it is when something about it has changed.
    fn changed(&self, pod: &Pod) -> Option<Parent> {
        let parent = Parent::of_pod(pod)?;
        let owner = pod
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true));
        let indexed = Box::new(IndexedPod {
            owner: owner.map(|owner| owner.uid.clone()),
            role: pod.labels().get(names::ROLE).cloned().unwrap_or_default(),
            facts: PodFacts::of(pod),
        });
        let mut pods = self.pods.write().unwrap_or_else(PoisonError::into_inner);
        let siblings = pods.entry(parent.clone()).or_default();
        if siblings.get(&indexed.facts.name) == Some(&indexed) {
            return None;
        }
        siblings.insert(indexed.facts.name.clone(), indexed);
        Some(parent)
    }

    fn deleted(&self, pod: &Pod) -> Option<Parent> {
        let parent = Parent::of_pod(pod)?;
        let mut pods = self.pods.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(siblings) = pods.get_mut(&parent) {
            siblings.remove(&pod.name_any());
            if siblings.is_empty() {
                pods.remove(&parent);
            }
        }
        Some(parent)
    }

    /// Drops what is not in a fresh list; returns whose it was.
    fn keep_only(&self, listed: &HashSet<Key>) -> HashSet<Parent> {
        let mut concerned = HashSet::new();
        let mut pods = self.pods.write().unwrap_or_else(PoisonError::into_inner);
        pods.retain(|parent, siblings| {
            let before = siblings.len();
            siblings.retain(|name, _| listed.contains(&pod_key(&parent.namespace, name)));
            if siblings.len() < before {
                concerned.insert(parent.clone());
            }
            !siblings.is_empty()
        });
        concerned
    }
}

fn pod_key(namespace: &str, name: &str) -> Key {
    Key::of("Pod", namespace, name)
}

/// Keeps the index as the cluster is, and triggers whoever is concerned. Ends only with the process.
pub async fn follow_pods(api: Api<Pod>, index: Arc<PodIndex>, triggers: Triggers, filled: watch::Sender<bool>) {
    let config = every_object().labels(names::MANAGED_SELECTOR);
    let mut events = watcher(api, config).backoff(Pauses::default()).boxed();
    // A list is taken into the index as it comes, not kept beside it until it is whole: for ten thousand pods that
    // would be as much again.
    let (mut listed, mut changed) = (HashSet::new(), HashSet::new());
    while let Some(event) = events.next().await {
        let concerned = match event {
            Ok(Event::Init) => {
                listed.clear();
                Vec::new()
            }
            Ok(Event::InitApply(pod)) => {
                listed.insert(pod_key(&pod.namespace().unwrap_or_default(), &pod.name_any()));
                changed.extend(index.changed(&pod));
                Vec::new()
            }
            Ok(Event::InitDone) => {
                changed.extend(index.keep_only(&std::mem::take(&mut listed)));
                filled.send_replace(true);
                changed.drain().collect()
            }
            Ok(Event::Apply(pod)) => {
                index.tell(&pod, &triggers.metrics);
                index.changed(&pod).into_iter().collect()
            }
            Ok(Event::Delete(pod)) => index.deleted(&pod).into_iter().collect(),
            Err(error) => {
                tracing::warn!(%error, "the watch of pods was interrupted; it begins anew");
                triggers.metrics.interrupted("Pod");
                Vec::new()
            }
        };
        for parent in concerned {
            triggers.pull(parent).await;
        }
    }
}

/// What is kept of a ledger.
#[derive(Clone, Debug, Default)]
pub struct LedgerFacts {
    /// How many leases it holds.
    pub leases: usize,
    /// What the gateway tells of its pool, in the first ledger.
    pub report: Option<Arc<PoolReport>>,
}

impl LedgerFacts {
    fn of(ledger: &ConfigMap) -> Self {
        let report = ledger.annotations().get(REPORT_ANNOTATION);
        let report = report.and_then(|text| {
            serde_json::from_str(text)
                .inspect_err(
                    |error| tracing::warn!(%error, ledger = ledger.name_any(), "a gateway's report cannot be read"),
                )
                .ok()
        });
        Self {
            leases: ledger.data.as_ref().map_or(0, BTreeMap::len),
            report: report.map(Arc::new),
        }
    }
}

/// The ledgers, by namespace and name.
#[derive(Default)]
pub struct Ledgers {
    known: RwLock<HashMap<(String, String), LedgerFacts>>,
}

impl Ledgers {
    pub fn facts(&self, namespace: &str, ledger: &str) -> LedgerFacts {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let facts = known.get(&(namespace.to_owned(), ledger.to_owned()));
        facts.cloned().unwrap_or_default()
    }

    fn keep_only(&self, listed: &HashSet<(String, String)>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|key, _| listed.contains(key));
    }

    fn set(&self, ledger: &ConfigMap, facts: Option<LedgerFacts>) {
        let key = (ledger.namespace().unwrap_or_default(), ledger.name_any());
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        match facts {
            Some(facts) => known.insert(key, facts),
            None => known.remove(&key),
        };
    }
}

/// Keeps what the ledgers say. Ends only with the process.
pub async fn follow_ledgers(api: Api<ConfigMap>, ledgers: Arc<Ledgers>, triggers: Triggers) {
    let config = every_object().labels(names::LEDGER_SELECTOR);
    let mut events = watcher(api, config).backoff(Pauses::default()).boxed();
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        if let Ok(Event::InitApply(ledger)) = &event {
            listed.insert((ledger.namespace().unwrap_or_default(), ledger.name_any()));
        }
        let ledger = match event {
            Ok(Event::InitApply(ledger) | Event::Apply(ledger)) => {
                ledgers.set(&ledger, Some(LedgerFacts::of(&ledger)));
                ledger
            }
            Ok(Event::Delete(ledger)) => {
                ledgers.set(&ledger, None);
                ledger
            }
            Ok(Event::Init) => {
                listed = HashSet::new();
                continue;
            }
            // A ledger that went while the watch was interrupted is one of the children, and its pool is told as of
            // those.
            Ok(Event::InitDone) => {
                ledgers.keep_only(&std::mem::take(&mut listed));
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "the watch of ledgers was interrupted; it begins anew");
                triggers.metrics.interrupted("ConfigMap");
                continue;
            }
        };
        if let Some(parent) = Parent::of_owned(&ledger.metadata) {
            triggers.pull(parent).await;
        }
    }
}

/// Notices children of one kind that are not as the operator left them. Ends only with the process.
pub async fn follow_children<K>(
    api: Api<PartialObjectMeta<K>>,
    applied: Arc<crate::cluster::Cluster>,
    triggers: Triggers,
) where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + 'static,
{
    let config = every_object().labels(names::MANAGED_SELECTOR);
    let mut events = watcher(api, config).backoff(Pauses::default()).boxed();
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        let (metadata, deleted) = match event {
            Ok(Event::InitApply(child)) => {
                listed.insert(key_of::<K>(&child.metadata));
                (child.metadata, false)
            }
            Ok(Event::Apply(child)) => (child.metadata, false),
            Ok(Event::Delete(child)) => (child.metadata, true),
            Ok(Event::Init) => {
                listed = HashSet::new();
                continue;
            }
            Ok(Event::InitDone) => {
                for parent in applied.applied.missed(&K::kind(&()), &std::mem::take(&mut listed)) {
                    triggers.pull(parent).await;
                }
                continue;
            }
            Err(error) => {
                tracing::warn!(kind = %K::kind(&()), %error, "a watch of children was interrupted; it begins anew");
                triggers.metrics.interrupted(&K::kind(&()));
                continue;
            }
        };
        if is_to_be_looked_at::<K>(&applied.applied, &metadata, deleted)
            && let Some(parent) = Parent::of_owned(&metadata)
        {
            triggers.pull(parent).await;
        }
    }
}

fn key_of<K: Resource<DynamicType = ()>>(metadata: &ObjectMeta) -> Key {
    Key::of(
        &K::kind(&()),
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

fn is_to_be_looked_at<K: Resource<DynamicType = ()>>(applied: &Applied, metadata: &ObjectMeta, deleted: bool) -> bool {
    let key = key_of::<K>(metadata);
    let sighting = if deleted {
        Sighting::Deleted
    } else {
        Sighting::At(metadata.resource_version.as_deref())
    };
    applied.seen(&key, sighting)
}
