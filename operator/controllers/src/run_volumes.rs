//! The volumes of runs, which no watch shows.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use grpo_operator_core::{admission::facts::VolumeTerms, grpo_run::observation::StoreVolume};

#[derive(Default)]
pub struct RunVolumes {
    volumes: Mutex<HashMap<String, StoreVolume>>,
    /// Node requirements of the bound claims of each run.
    terms: Mutex<HashMap<String, VolumeTerms>>,
}

impl RunVolumes {
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

    /// Node requirements of the run's volumes when they were read. A volume's requirements never change, and pods of
    /// the run keep its claims from being replaced.
    pub fn terms(&self, owner: &str) -> VolumeTerms {
        let terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        terms.get(owner).cloned().unwrap_or_default()
    }

    pub fn keep_terms(&self, owner: &str, of_volumes: &VolumeTerms) {
        let mut terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        terms.insert(owner.to_owned(), of_volumes.clone());
    }

    /// Forgets an owner.
    pub fn forget(&self, owner: &str) {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner).remove(owner);
        self.volumes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(owner);
    }
}
