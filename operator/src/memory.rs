//! What this process knows before its watches do: pods it has just made, and attempts it has just counted.
//!
//! A reconcile that reads a watch's cache right after a write would see the past. Without this it would take a pod that it has just made for a
//! lost one. Only the leader reconciles, and its caches are filled before it begins, so nothing has to survive it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use grpo_crds::grpo_run::Attempts;

use crate::pods::PodFacts;

/// A made pod that no watch has shown after this long was deleted in between.
const PATIENCE: Duration = Duration::from_secs(30);

struct Made {
    facts: PodFacts,
    at: Instant,
}

#[derive(Default)]
pub struct Memory {
    made: Mutex<HashMap<String, Vec<Made>>>,
    attempts: Mutex<HashMap<String, Attempts>>,
}

impl Memory {
    /// A pod of the owner with this uid has been made.
    pub fn made(&self, owner: &str, facts: PodFacts) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.entry(owner.to_owned()).or_default().push(Made {
            facts,
            at: Instant::now(),
        });
    }

    /// The pods a watch shows, and those it does not show yet.
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

    /// The attempts counted last, or those the status holds.
    pub fn attempts(&self, owner: &str, written: Option<&Attempts>) -> Attempts {
        let counted = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        counted.get(owner).or(written).cloned().unwrap_or_default()
    }

    pub fn count(&self, owner: &str, attempts: Attempts) {
        let mut counted = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        counted.insert(owner.to_owned(), attempts);
    }

    /// Nothing needs to be known of this owner any more.
    pub fn forget(&self, owner: &str) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).remove(owner);
        self.attempts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(owner);
    }
}
