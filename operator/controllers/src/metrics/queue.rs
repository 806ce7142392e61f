//! Triggered objects, until their reconcile begins.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{parent::Controlled, parent::Parent};

/// An object triggered this long ago no longer exists: a deleted object is never reconciled.
const FORGOTTEN: Duration = Duration::from_secs(300);

#[derive(Default)]
pub struct Queue {
    since: Mutex<HashMap<Parent, Instant>>,
}

impl Queue {
    /// Only the first of several triggers counts.
    pub fn triggered(&self, parent: &Parent) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.entry(parent.clone()).or_insert_with(Instant::now);
    }

    /// How long the reconcile waited, if a trigger caused it.
    pub fn begun(&self, kind: &str, namespace: &str, name: &str) -> Option<Duration> {
        let parent = Parent {
            kind: Controlled::named(kind)?,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.remove(&parent).map(|since| since.elapsed())
    }

    /// Number of waiting objects, by kind.
    pub fn lengths(&self) -> BTreeMap<&'static str, i64> {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|_, since| since.elapsed() < FORGOTTEN);
        let mut lengths: BTreeMap<&'static str, i64> = Controlled::ALL.iter().map(|kind| (kind.name(), 0)).collect();
        for parent in since.keys() {
            *lengths.entry(parent.kind.name()).or_default() += 1;
        }
        lengths
    }
}

#[cfg(test)]
mod tests;
