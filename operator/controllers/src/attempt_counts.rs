//! The attempts of runs as this process counted them last: a watch shows a status that was just written only later.

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
    /// The attempts counted last, or those the status holds.
    pub fn attempts(&self, owner: &str, written: Option<&Attempts>) -> Attempts {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.get(owner).or(written).cloned().unwrap_or_default()
    }

    pub fn count(&self, owner: &str, attempts: Attempts) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.insert(owner.to_owned(), attempts);
    }

    /// Nothing needs to be known of this owner any more.
    pub fn forget(&self, owner: &str) {
        self.counted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_counted_here_are_newer_than_those_a_cache_shows() {
        let counts = AttemptCounts::default();
        let mut counted = Attempts::default();
        counted.driver.current = 2;
        counts.count("uid", counted.clone());
        assert_eq!(counts.attempts("uid", Some(&Attempts::default())), counted);
        counts.forget("uid");
        assert_eq!(counts.attempts("uid", Some(&Attempts::default())), Attempts::default());
    }
}
