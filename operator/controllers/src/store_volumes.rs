//! The volumes of runs' stores, which no watch shows.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use grpo_operator_core::grpo_run::observation::StoreVolume;

#[derive(Default)]
pub struct StoreVolumes {
    volumes: Mutex<HashMap<String, StoreVolume>>,
}

impl StoreVolumes {
    /// The volume of a run's claim when it was read: pods of the run keep the claim from being replaced, and its access
    /// modes never change.
    pub fn of(&self, owner: &str) -> Option<StoreVolume> {
        let volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.get(owner).copied()
    }

    pub fn keep(&self, owner: &str, store: StoreVolume) {
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.insert(owner.to_owned(), store);
    }

    /// Forgets an owner.
    pub fn forget(&self, owner: &str) {
        self.volumes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(owner);
    }
}
