//! Objects of one of our kinds as their watch last showed them, and who has read them.
//!
//! ```text
//! watch ─► store ─► controller of the kind
//!            └────► every reader of the object that changed (or did not exist), once
//! ```
//!
//! A reconcile that reads another object here costs no request, and is triggered when that object is not any more what
//! it has read: also when it did not exist, and also when its deletion was missed while the watch was interrupted. A
//! reader is told once; it reads again, and is told again. An object that is gone can be forgotten by others: most are
//! deleted without a reconcile that sees it.

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

/// Where kubectl keeps the whole manifest for its next apply.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Namespace and name.
type Key = (String, String);
/// What each reader has read: the object's version, or that there was none.
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
    /// Everything that exists has been seen. Not the store's own word for it, which wakes only one of several who wait.
    filled: watch::Sender<bool>,
    readers: Mutex<Readers>,
    /// Uids of what existed when a list began.
    before_list: Mutex<HashSet<String>>,
    forget: OnceLock<Forget>,
}

/// Called with the uid of an object that is gone.
type Forget = Box<dyn Fn(&str) + Send + Sync>;

impl<K: Watched> WatchedStore<K> {
    /// An empty store, and the stream that fills it: it has to be polled, by the controller of the kind.
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
            // Field managers and kubectl's last-applied copy are longer than the object, and no code here reads them.
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

    /// From now on `forget` is called with the uid of each object that is gone, also where its deletion was missed. The
    /// first call counts.
    pub fn on_gone(&self, forget: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.forget.set(Box::new(forget));
    }

    pub fn store(&self) -> Store<DeserializeGuard<K>> {
        self.store.clone()
    }

    /// The object as the watch last showed it. The reader is triggered when it changes. An object that cannot be read
    /// counts as none.
    pub async fn read(&self, namespace: &str, name: &str, reader: &Parent) -> Option<K> {
        self.is_filled().await;
        let key = (namespace.to_owned(), name.to_owned());
        // The store is written before readers are looked through, and read while they are locked: a change is either
        // seen or told.
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

    /// The same for somebody who does not want to be told, also when it cannot be read.
    pub async fn peek(&self, namespace: &str, name: &str) -> Option<Arc<DeserializeGuard<K>>> {
        self.is_filled().await;
        self.current(&(namespace.to_owned(), name.to_owned()))
    }

    async fn is_filled(&self) {
        // An error means that the watch's end is gone, and then the process ends.
        let _ = self.filled.subscribe().wait_for(|filled| *filled).await;
    }

    fn current(&self, (namespace, name): &Key) -> Option<Arc<DeserializeGuard<K>>> {
        self.store.get(&ObjectRef::new(name).within(namespace))
    }

    /// Who has read what is not so any more.
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

    /// Uids of what this event shows to be gone.
    fn gone(&self, event: &Event<DeserializeGuard<K>>) -> HashSet<String> {
        let uids = || self.store.state().iter().filter_map(|object| object.uid()).collect();
        let mut before = self.before_list.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Delete(object) => object.uid().into_iter().collect(),
            // What the store shows until the list is complete.
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
