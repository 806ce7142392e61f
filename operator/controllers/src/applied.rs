//! Records what this process has applied, so that an unchanged object costs no request.
//!
//! An entry holds the applied content, and the object's [`version`] since then. Watches of the children report every
//! other version and every deletion here, including objects missing from a fresh list; the entry is then dropped, and
//! the next reconcile applies again.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use grpo_operator_core::names::{self, role};
use kube::core::ObjectMeta;
use sha2::{Digest, Sha256};

use crate::parent::{Controlled, Parent};

/// Kind, namespace and name of an object, as a digest: a thousand runs have fifteen thousand children, whose names
/// alone take megabytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    kind: [u8; 4],
    object: [u8; 16],
}

impl Key {
    pub fn of(kind: &str, namespace: &str, name: &str) -> Self {
        // Kubernetes names never contain a slash.
        Self {
            kind: beginning(kind),
            object: beginning(&format!("{namespace}/{name}")),
        }
    }
}

fn beginning<const LENGTH: usize>(text: &str) -> [u8; LENGTH] {
    let digest = Sha256::digest(text.as_bytes());
    std::array::from_fn(|at| digest[at])
}

/// The content of an object that must not exist and is absent.
const ABSENT: u64 = 0;

#[derive(Clone, Debug)]
struct Entry {
    /// See [`crate::cluster::digest`].
    content: u64,
    version: Option<Box<str>>,
    owner: Option<Arc<Parent>>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<Key, Entry>,
    /// Each owner once.
    owners: HashSet<Arc<Parent>>,
}

/// A value that changes with every change that concerns the object's owner. The status of our own kinds is written
/// often; their generation changes with the spec alone. The operator only creates ledgers; a gateway writes them with
/// every few leases.
pub fn version(kind: &str, metadata: &ObjectMeta) -> Option<String> {
    let role = metadata.labels.as_ref().and_then(|labels| labels.get(names::ROLE));
    match Controlled::named(kind) {
        Some(_) => metadata.generation.map(|generation| generation.to_string()),
        None if role.is_some_and(|role| role == role::LEDGER) => metadata.uid.clone(),
        None => metadata.resource_version.clone(),
    }
}

#[derive(Default)]
pub struct Applied {
    entries: Mutex<Entries>,
}

/// A watch's report on a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting<'a> {
    At(Option<&'a str>),
    Deleted,
}

impl Applied {
    /// Whether exactly this content was applied and the object has not changed since.
    pub fn is_current(&self, key: &Key, content: u64) -> bool {
        self.locked()
            .by_key
            .get(key)
            .is_some_and(|entry| entry.content == content)
    }

    /// Whether an object was found absent, and no watch has shown it since.
    pub fn is_absent(&self, key: &Key) -> bool {
        self.is_current(key, ABSENT)
    }

    /// Recorded without an owner: a fresh list that lacks the object is no news.
    pub fn record_absent(&self, key: Key) {
        self.record(key, ABSENT, None, None);
    }

    pub fn record(&self, key: Key, content: u64, version: Option<String>, owner: Option<Parent>) {
        let mut entries = self.locked();
        let entry = Entry {
            content,
            version: version.map(String::into_boxed_str),
            owner: owner.map(|owner| entries.one(owner)),
        };
        entries.by_key.insert(key, entry);
    }

    /// Drops entries of a kind that are missing from a fresh list: their deletion was missed. Returns their owners,
    /// which should reconcile.
    pub fn missed(&self, kind: &str, listed: &HashSet<Key>) -> HashSet<Parent> {
        let kind = beginning(kind);
        let mut owners = HashSet::new();
        let mut entries = self.locked();
        entries.by_key.retain(|key, entry| {
            let is_there = key.kind != kind || listed.contains(key);
            if !is_there {
                owners.extend(entry.owner.as_deref().cloned());
            }
            is_there
        });
        entries.owners.retain(|owner| Arc::strong_count(owner) > 1);
        owners
    }

    /// Records a watch's report. Returns true if the child has changed, so that its owner should reconcile.
    pub fn seen(&self, key: &Key, sighting: Sighting<'_>) -> bool {
        let mut entries = self.locked();
        match (entries.by_key.get(key), sighting) {
            (None, Sighting::At(_)) => false,
            (Some(entry), Sighting::At(version)) if entry.version.as_deref() == version => false,
            _ => {
                entries.remove(key);
                true
            }
        }
    }

    pub fn forget(&self, key: &Key) {
        self.locked().remove(key);
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn one(&mut self, owner: Parent) -> Arc<Parent> {
        if let Some(known) = self.owners.get(&owner) {
            return known.clone();
        }
        let owner = Arc::new(owner);
        self.owners.insert(owner.clone());
        owner
    }

    /// Removes an entry; the last entry of an owner removes the owner too.
    fn remove(&mut self, key: &Key) {
        if let Some(owner) = self.by_key.remove(key).and_then(|entry| entry.owner)
            && Arc::strong_count(&owner) == 2
        {
            self.owners.remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests;
