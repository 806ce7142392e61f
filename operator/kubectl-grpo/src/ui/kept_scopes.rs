//! The scopes that were read last. The views of a scope's groups and episodes need the whole scope too, and reading it
//! takes a round trip for each of its episodes.

use super::wire::ScopeView;
use grpo_records::EpisodeScope;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Each has at most as many episodes as a scope shows.
const MOST: usize = 4;

/// One scope. A second view that needs it waits for the first, and does not read it too.
pub type Slot = Arc<tokio::sync::Mutex<Option<KeptScope>>>;

pub struct KeptScope {
    /// The change of the run before it was read: after another one it is read again.
    pub change: u64,
    pub view: Arc<ScopeView>,
}

/// Newest last.
#[derive(Default)]
pub struct KeptScopes(Mutex<VecDeque<(EpisodeScope, Slot)>>);

impl KeptScopes {
    /// The place of a scope. It displaces the one that was needed longest ago.
    pub fn slot(&self, scope: &EpisodeScope) -> Slot {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.iter().position(|(known, _)| known == scope);
        let (_, slot) = known
            .and_then(|at| kept.remove(at))
            .unwrap_or_else(|| (scope.clone(), Slot::default()));
        if kept.len() >= MOST {
            kept.pop_front();
        }
        kept.push_back((scope.clone(), slot.clone()));
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_that_was_needed_longest_ago_is_displaced() {
        let kept = KeptScopes::default();
        let scope = |iteration| EpisodeScope::Iteration { iteration };
        let first = kept.slot(&scope(0));
        for iteration in 1..MOST as u32 {
            kept.slot(&scope(iteration));
        }
        assert!(Arc::ptr_eq(&first, &kept.slot(&scope(0))));
        let second = kept.slot(&scope(1));
        kept.slot(&scope(MOST as u32));
        assert!(Arc::ptr_eq(&first, &kept.slot(&scope(0))));
        assert!(Arc::ptr_eq(&second, &kept.slot(&scope(1))));
        kept.slot(&scope(MOST as u32 + 1));
        kept.slot(&scope(MOST as u32 + 2));
        kept.slot(&scope(MOST as u32 + 3));
        assert!(!Arc::ptr_eq(&first, &kept.slot(&scope(0))));
    }
}
