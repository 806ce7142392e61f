//! The attempts of runs as this process last counted them: a watch shows a newly written status only later.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use grpo_crds::grpo_run::Attempts;

#[derive(Default)]
pub struct AttemptCounts {
    counted: Mutex<HashMap<String, Attempts>>,
}

impl AttemptCounts {
    /// The attempts counted last, otherwise those in the status.
    pub fn attempts(&self, owner: &str, written: Option<&Attempts>) -> Attempts {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.get(owner).or(written).cloned().unwrap_or_default()
    }

    pub fn count(&self, owner: &str, attempts: Attempts) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.insert(owner.to_owned(), attempts);
    }

    /// Forgets an owner.
    pub fn forget(&self, owner: &str) {
        self.counted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(owner);
    }
}

#[cfg(test)]
mod tests;
