//! Objects of one of our kinds as their watch last showed them, and the readers of each object.
//!
//! ```text
//! watch ─► store ─► controller of the kind
//!            └────► every reader of the object that changed (or did not exist), once
//! ```
//!
//! A reconcile that reads another object here makes no request, and is triggered when that object no longer is what it
//! read: also if it did not exist, and if its deletion was missed while the watch was interrupted. A reader is
//! triggered once for each read. The store also reports deleted objects, so that others can forget them: no reconcile
//! sees most deletions.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use futures::{Stream, StreamExt};
use grpo_crds::{GrpoRun, InferencePool, SandboxPool};
use kube::{
    Api, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::{
    parent::Parent,
    watches::{
        config::{Pauses, every_object},
        triggers::Triggers,
    },
};

/// Annotation in which kubectl keeps the whole manifest for its next apply.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Namespace and name.
type Key = (String, String);
/// The version that each reader has read; `None` if the object did not exist.
type Readers = HashMap<Key, HashMap<Parent, Option<String>>>;

/// The watched stores of our three kinds.
pub struct WatchedStores {
    pub runs: Arc<WatchedStore<GrpoRun>>,
    pub inference_pools: Arc<WatchedStore<InferencePool>>,
    pub sandbox_pools: Arc<WatchedStore<SandboxPool>>,
}

/// A kind that is watched.
pub trait Watched: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static {}

impl<K> Watched for K where K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static {}

pub struct WatchedStore<K: Watched> {
    store: Store<DeserializeGuard<K>>,
    /// Whether the first list is complete. The store's own signal is not used: it wakes only one of several waiters.
    filled: watch::Sender<bool>,
    readers: Mutex<Readers>,
    /// Uids of the objects that existed when a list began.
    before_list: Mutex<HashSet<String>>,
    forget: OnceLock<Forget>,
}

/// Called with the uid of a deleted object.
type Forget = Box<dyn Fn(&str) + Send + Sync>;

impl<K: Watched> WatchedStore<K> {
    /// Returns an empty store, and the stream that fills it; the controller of the kind has to poll the stream.
    pub fn of(
        api: Api<DeserializeGuard<K>>,
        triggers: Triggers,
    ) -> (
        Arc<Self>,
        impl Stream<Item = Result<DeserializeGuard<K>, watcher::Error>> + Send + 'static,
    ) {
        let (store, writer) = reflector::store();
        let watched = Arc::new(Self {
            store,
            filled: watch::Sender::new(false),
            readers: Mutex::default(),
            before_list: Mutex::default(),
            forget: OnceLock::new(),
        });
        let reflected = watched.clone();
        let stream = watcher(api, every_object())
            .backoff(Pauses::default())
            // Managed fields and kubectl's last-applied copy are longer than the object, and no code here reads them.
            .modify(|object| {
                object.managed_fields_mut().clear();
                object.annotations_mut().remove(LAST_APPLIED);
            })
            .reflect(writer)
            .then(move |event| {
                let concerned = event
                    .as_ref()
                    .map(|event| reflected.concerned(event))
                    .unwrap_or_default();
                if let (Ok(event), Some(forget)) = (&event, reflected.forget.get()) {
                    reflected.gone(event).iter().for_each(|uid| forget(uid));
                }
                let triggers = triggers.clone();
                async move {
                    for reader in concerned {
                        triggers.pull(reader).await;
                    }
                    event
                }
            })
            .applied_objects();
        (watched, stream)
    }

    /// Calls `forget` with the uid of each deleted object, also if its deletion was missed. Only the first call has an
    /// effect.
    pub fn on_gone(&self, forget: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.forget.set(Box::new(forget));
    }

    /// Whether the first list is complete. Until then the store is empty; later lists replace its content at once.
    pub fn listed(&self) -> watch::Receiver<bool> {
        self.filled.subscribe()
    }

    pub fn store(&self) -> Store<DeserializeGuard<K>> {
        self.store.clone()
    }

    /// Returns the object as the watch last showed it, and triggers the reader when it changes. An object that cannot
    /// be parsed counts as missing.
    pub async fn read(&self, namespace: &str, name: &str, reader: &Parent) -> Option<K> {
        self.is_filled().await;
        let key = (namespace.to_owned(), name.to_owned());
        // The watch writes the store before it looks for readers, and this read holds their lock: a change is either
        // read or triggers the reader.
        let mut readers = self.locked();
        let object = self.current(&key);
        let version = object
            .as_ref()
            .and_then(|object| object.meta().resource_version.clone());
        readers.entry(key).or_default().insert(reader.clone(), version);
        object.and_then(|object| object.0.as_ref().ok().cloned())
    }

    /// Whether the watch shows an object of this uid.
    pub fn holds(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let object = self.current(&(namespace.to_owned(), name.to_owned()));
        object.is_some_and(|object| object.meta().uid.as_deref() == Some(uid))
    }

    /// Like `read`, without a trigger; also returns an object that cannot be parsed.
    pub async fn peek(&self, namespace: &str, name: &str) -> Option<Arc<DeserializeGuard<K>>> {
        self.is_filled().await;
        self.current(&(namespace.to_owned(), name.to_owned()))
    }

    async fn is_filled(&self) {
        // An error means that the watch has ended, and then the process ends.
        let _ = self.filled.subscribe().wait_for(|filled| *filled).await;
    }

    fn current(&self, (namespace, name): &Key) -> Option<Arc<DeserializeGuard<K>>> {
        self.store.get(&ObjectRef::new(name).within(namespace))
    }

    /// Removes and returns the readers whose object this event changes.
    fn concerned(&self, event: &Event<DeserializeGuard<K>>) -> HashSet<Parent> {
        let mut readers = self.locked();
        match event {
            Event::Apply(object) | Event::Delete(object) => {
                let key = (object.namespace().unwrap_or_default(), object.name_any());
                readers.remove(&key).into_iter().flat_map(HashMap::into_keys).collect()
            }
            Event::InitDone => {
                self.filled.send_replace(true);
                let mut concerned = HashSet::new();
                readers.retain(|key, read| {
                    let current = self
                        .current(key)
                        .and_then(|object| object.meta().resource_version.clone());
                    concerned.extend(
                        read.extract_if(|_, version| *version != current)
                            .map(|(reader, _)| reader),
                    );
                    !read.is_empty()
                });
                concerned
            }
            Event::Init | Event::InitApply(_) => HashSet::new(),
        }
    }

    /// Uids of the objects that this event shows as deleted.
    fn gone(&self, event: &Event<DeserializeGuard<K>>) -> HashSet<String> {
        let uids = || self.store.state().iter().filter_map(|object| object.uid()).collect();
        let mut before = self.before_list.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Delete(object) => object.uid().into_iter().collect(),
            // The store shows its old content until the list is complete.
            Event::Init => {
                *before = uids();
                HashSet::new()
            }
            Event::InitDone => {
                let now: HashSet<String> = uids();
                std::mem::take(&mut *before)
                    .into_iter()
                    .filter(|uid| !now.contains(uid))
                    .collect()
            }
            Event::Apply(_) | Event::InitApply(_) => HashSet::new(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
