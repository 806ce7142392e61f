//! Objects of one of our kinds as their watch last showed them, and who has read them.
//!
//! ```text
//! watch ─► store ─► controller of the kind
//!            └────► whoever has read the object that changed (or did not exist), once
//! ```
//!
//! A reconcile that reads another object here costs no request, and is triggered when that object is not any more what it has read: also when it
//! did not exist, and also when its deletion was missed while the watch was interrupted. A reader is told once; it reads again, and is told again.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher::{self, Event, watcher},
    },
};

use crate::{
    controller::Kind,
    watches::{Parent, Triggers},
};

/// Namespace and name.
type Key = (String, String);
/// What each reader has read: the object's version, or that there was none.
type Readers = HashMap<Key, HashMap<Parent, Option<String>>>;

pub struct Mirror<K: Kind> {
    store: Store<DeserializeGuard<K>>,
    readers: Mutex<Readers>,
}

impl<K: Kind> Mirror<K> {
    /// An empty mirror, and the stream that fills it: it has to be polled, by the controller of the kind.
    pub fn of(
        api: Api<DeserializeGuard<K>>,
        triggers: Triggers,
    ) -> (
        Arc<Self>,
        impl Stream<Item = Result<DeserializeGuard<K>, watcher::Error>> + Send + 'static,
    ) {
        let (store, writer) = reflector::store();
        let mirror = Arc::new(Self {
            store,
            readers: Mutex::default(),
        });
        let reflected = mirror.clone();
        let stream = watcher(api, watcher::Config::default())
            .default_backoff()
            .reflect(writer)
            .then(move |event| {
                let concerned = event.as_ref().map(|event| reflected.concerned(event)).unwrap_or_default();
                let triggers = triggers.clone();
                async move {
                    for reader in concerned {
                        triggers.pull(reader).await;
                    }
                    event
                }
            })
            .applied_objects();
        (mirror, stream)
    }

    pub fn store(&self) -> Store<DeserializeGuard<K>> {
        self.store.clone()
    }

    /// The object as the watch last showed it. The reader is triggered when it changes. An object that cannot be read counts as none.
    pub async fn read(&self, namespace: &str, name: &str, reader: &Parent) -> Option<K> {
        self.is_filled().await;
        let key = (namespace.to_owned(), name.to_owned());
        // The store is written before readers are looked through, and read while they are locked: a change is either seen or told.
        let mut readers = self.locked();
        let object = self.current(&key);
        let version = object.as_ref().and_then(|object| object.meta().resource_version.clone());
        readers.entry(key).or_default().insert(reader.clone(), version);
        object.and_then(|object| object.0.as_ref().ok().cloned())
    }

    /// The same for somebody who does not want to be told.
    pub async fn peek(&self, namespace: &str, name: &str) -> Option<K> {
        self.is_filled().await;
        let object = self.current(&(namespace.to_owned(), name.to_owned()))?;
        object.0.as_ref().ok().cloned()
    }

    async fn is_filled(&self) {
        // An error means that the watch's end is gone, and then the process ends.
        let _ = self.store.wait_until_ready().await;
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
                let mut concerned = HashSet::new();
                readers.retain(|key, read| {
                    let current = self.current(key).and_then(|object| object.meta().resource_version.clone());
                    concerned.extend(read.extract_if(|_, version| *version != current).map(|(reader, _)| reader));
                    !read.is_empty()
                });
                concerned
            }
            Event::Init | Event::InitApply(_) => HashSet::new(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
