//! Index of all our pods, as facts by parent.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
};

use futures::StreamExt;
use grpo_operator_core::{
    causes,
    names::{self, role},
    pods::PodFacts,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{Event, watcher},
    },
};
use tokio::sync::watch;

use super::{
    config::{Pauses, every_object},
    triggers::Triggers,
};
use crate::{
    applied::Key,
    metrics::{Census, Metrics},
    parent::Parent,
};

/// One pod in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedPod {
    pub uid: Option<String>,
    /// Uid of the pod's controller.
    pub owner: Option<String>,
    pub role: String,
    pub facts: PodFacts,
}

/// Boxed, because a node of the map holds eleven entries, and most parents have one pod.
type PodsOf = HashMap<Parent, BTreeMap<String, Box<IndexedPod>>>;

/// Facts of all our pods, by parent.
#[derive(Default)]
pub struct PodIndex {
    pods: RwLock<PodsOf>,
}

impl PodIndex {
    /// The pods of a parent with this role.
    pub fn pods(&self, parent: &Parent, role: &str) -> Vec<IndexedPod> {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        pods.get(parent)
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter(|pod| pod.role == role)
            .map(|pod| (**pod).clone())
            .collect()
    }

    /// Uid of a pod that this owner controls, once a watch has shown it.
    pub fn uid(&self, parent: &Parent, owner: &str, name: &str) -> Option<String> {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        let pod = pods.get(parent)?.get(name)?;
        pod.uid.clone().filter(|_| pod.owner.as_deref() == Some(owner))
    }

    /// Counts all pods, by role and state.
    pub fn count(&self, census: &Census) {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        for pod in pods.values().flat_map(BTreeMap::values) {
            census.pods(&pod.role, causes::state(&pod.facts));
        }
    }

    /// Counts the beginnings and ends in a pod's change, before the index has the change.
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

    /// Records a pod's state; returns its parent if a fact has changed.
    fn changed(&self, pod: &Pod) -> Option<Parent> {
        let parent = Parent::of_pod(pod)?;
        let owner = pod
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true));
        let indexed = Box::new(IndexedPod {
            uid: pod.uid(),
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

    /// Drops pods missing from a fresh list; returns their parents.
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

/// Keeps the index current, and triggers the parents of changed pods. Ends only with the process.
pub async fn follow_pods(api: Api<Pod>, index: Arc<PodIndex>, triggers: Triggers, filled: watch::Sender<bool>) {
    let config = every_object().labels(names::MANAGED_SELECTOR);
    let mut events = watcher(api, config).backoff(Pauses::default()).boxed();
    // A list enters the index page by page, without a copy of the whole: for ten thousand pods that copy would double
    // the memory.
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

#[cfg(test)]
mod tests;
