//! What this process knows before its watches do: pods it has just made, and attempts it has just counted; and what no
//! watch shows it, the volumes of stores.
//!
//! A reconcile that reads a watch's cache right after a write would see the past. Without this it would take a pod that
//! it has just made for a lost one. Only the leader reconciles, and its caches are filled before it begins, so nothing
//! has to survive it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use grpo_crds::grpo_run::Attempts;

use grpo_operator_core::grpo_run::observation::StoreVolume;
use grpo_operator_core::pods::PodFacts;

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
    stores: Mutex<HashMap<String, StoreVolume>>,
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

    /// What a run's claim was when it was read: pods of the run keep it from being replaced, and its access modes never
    /// change.
    pub fn store(&self, owner: &str) -> Option<StoreVolume> {
        let stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.get(owner).copied()
    }

    pub fn keep_store(&self, owner: &str, store: StoreVolume) {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.insert(owner.to_owned(), store);
    }

    /// Nothing needs to be known of this owner any more.
    pub fn forget(&self, owner: &str) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).remove(owner);
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).remove(owner);
        self.attempts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_pod_is_known_until_a_watch_shows_it() {
        let memory = Memory::default();
        let made = PodFacts::just_made("demo-driver-1-0".into(), 1, 0);
        memory.made("uid", made.clone());
        assert_eq!(memory.with_made("uid", Vec::new()), vec![made.clone()]);
        assert_eq!(memory.with_made("uid", vec![made.clone()]), [made]);
        assert_eq!(
            memory.with_made("uid", Vec::new()),
            [],
            "once seen, a watch that shows it no more is right"
        );
    }

    #[test]
    fn attempts_counted_here_are_newer_than_those_a_cache_shows() {
        let memory = Memory::default();
        let mut counted = Attempts::default();
        counted.driver.current = 2;
        memory.count("uid", counted.clone());
        assert_eq!(memory.attempts("uid", Some(&Attempts::default())), counted);
        memory.forget("uid");
        assert_eq!(memory.attempts("uid", Some(&Attempts::default())), Attempts::default());
    }
}
