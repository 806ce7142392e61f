//! What this process has applied, so that an object that is as wanted costs no request.
//!
//! An entry says: this content, and the resource version it has had since. Watches of the children report every other version and every
//! deletion here, also what is missing from a fresh list; the entry is dropped then, and the next reconcile applies again.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
};

use crate::watches::Parent;

/// Kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug)]
struct Entry {
    content: String,
    version: Option<String>,
    owner: Option<Parent>,
}

#[derive(Default)]
pub struct Applied {
    entries: Mutex<HashMap<Key, Entry>>,
}

/// What a watch has seen of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting<'a> {
    At(Option<&'a str>),
    Deleted,
}

impl Applied {
    /// Whether exactly this has been applied and nobody has changed it since.
    pub fn is_current(&self, key: &Key, content: &str) -> bool {
        self.locked().get(key).is_some_and(|entry| entry.content == content)
    }

    pub fn record(&self, key: Key, content: String, version: Option<String>, owner: Option<Parent>) {
        let entry = Entry {
            content,
            version,
            owner,
        };
        self.locked().insert(key, entry);
    }

    /// Drops what was applied of a kind and is not in a fresh list of it: its deletion was missed. Returns the owners, who should look.
    pub fn missed(&self, kind: &str, listed: &HashSet<Key>) -> HashSet<Parent> {
        let mut owners = HashSet::new();
        self.locked().retain(|key, entry| {
            let is_there = key.kind != kind || listed.contains(key);
            if !is_there {
                owners.extend(entry.owner.take());
            }
            is_there
        });
        owners
    }

    /// Takes note of what a watch has seen. True: the owner should look, because the child is not as it was left.
    pub fn seen(&self, key: &Key, sighting: Sighting<'_>) -> bool {
        let mut entries = self.locked();
        match (entries.get(key), sighting) {
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

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watches::Controlled;

    fn owner() -> Parent {
        Parent {
            kind: Controlled::Run,
            namespace: "default".into(),
            name: "demo".into(),
        }
    }

    fn key() -> Key {
        Key {
            kind: "Service".into(),
            namespace: "default".into(),
            name: "demo-driver".into(),
        }
    }

    #[test]
    fn what_was_applied_is_not_applied_again_until_somebody_changes_it() {
        let applied = Applied::default();
        assert!(!applied.is_current(&key(), "content"));
        applied.record(key(), "content".into(), Some("7".into()), Some(owner()));
        assert!(applied.is_current(&key(), "content"));
        assert!(!applied.is_current(&key(), "other content"));
        assert!(!applied.seen(&key(), Sighting::At(Some("7"))));
        assert!(applied.seen(&key(), Sighting::At(Some("8"))));
        assert!(!applied.is_current(&key(), "content"));
    }

    #[test]
    fn a_child_that_a_fresh_list_lacks_is_made_again() {
        let applied = Applied::default();
        applied.record(key(), "content".into(), Some("7".into()), Some(owner()));
        assert!(
            applied.missed("ConfigMap", &HashSet::new()).is_empty(),
            "another kind's list"
        );
        assert!(applied.missed("Service", &HashSet::from([key()])).is_empty());
        assert!(applied.is_current(&key(), "content"));
        assert_eq!(applied.missed("Service", &HashSet::new()), HashSet::from([owner()]));
        assert!(!applied.is_current(&key(), "content"));
    }

    #[test]
    fn a_deleted_child_is_made_again() {
        let applied = Applied::default();
        applied.record(key(), "content".into(), Some("7".into()), Some(owner()));
        assert!(applied.seen(&key(), Sighting::Deleted));
        assert!(!applied.is_current(&key(), "content"));
    }
}
