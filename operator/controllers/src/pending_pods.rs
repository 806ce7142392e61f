//! Pods that this process has just created and that no watch shows yet.
//!
//! A reconcile that reads a watch's cache right after a write would see the past: it would take a pod that it has just
//! created for a lost one. Only the leader reconciles, and its caches are filled before it begins, so this state need
//! not survive the process.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use grpo_operator_core::pods::PodFacts;

/// A created pod that no watch has shown after this time was deleted meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

struct Made {
    facts: PodFacts,
    at: Instant,
}

#[derive(Default)]
pub struct PendingPods {
    made: Mutex<HashMap<String, Vec<Made>>>,
}

impl PendingPods {
    /// Records a pod created for the owner with this uid.
    pub fn made(&self, owner: &str, facts: PodFacts) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.entry(owner.to_owned()).or_default().push(Made {
            facts,
            at: Instant::now(),
        });
    }

    /// The pods that a watch shows, plus created pods that it does not show yet.
    pub fn with_made(&self, owner: &str, mut seen: Vec<PodFacts>) -> Vec<PodFacts> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = made.get_mut(owner) {
            waiting.retain(|made| made.at.elapsed() < PATIENCE && !seen.iter().any(|pod| pod.name == made.facts.name));
            seen.extend(waiting.iter().map(|made| made.facts.clone()));
            if waiting.is_empty() {
                made.remove(owner);
            }
        }
        seen
    }

    /// Records that a pod of the owner was deleted, perhaps before a watch showed it.
    pub fn deleted(&self, owner: &str, pod: &str) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = made.get_mut(owner) {
            waiting.retain(|made| made.facts.name != pod);
        }
    }

    /// Forgets an owner and its groups (`<uid>/<role>`).
    pub fn forget(&self, owner: &str) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|key, _| key.split('/').next() != Some(owner));
    }
}

#[cfg(test)]
mod tests;
