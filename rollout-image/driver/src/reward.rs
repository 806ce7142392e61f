//! From the outcome of an episode to its reward.

use crate::config::Reward;
use grpo_records::Outcome;

/// A void has no reward.
pub fn of_outcome(reward: &Reward, outcome: &Outcome) -> Option<f32> {
    match outcome {
        Outcome::Resolved => Some(reward.resolved),
        Outcome::Unresolved => Some(reward.unresolved),
        Outcome::Void { .. } => None,
    }
}
