//! How an episode ends, as seen by training.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Only the first two have a reward. A void is a fault of the infrastructure: the episode leaves its group, and the
/// policy gets no penalty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Resolved,
    Unresolved,
    Void { reason: VoidReason },
}

impl Outcome {
    pub fn void(reason: VoidReason) -> Self {
        Self::Void { reason }
    }

    /// True for the two outcomes that have a reward.
    pub fn is_verdict(&self) -> bool {
        !matches!(self, Self::Void { .. })
    }

    /// The cause of a void.
    pub fn void_reason(&self) -> Option<VoidReason> {
        match self {
            Self::Void { reason } => Some(*reason),
            Self::Resolved | Self::Unresolved => None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolved => f.write_str("Resolved"),
            Self::Unresolved => f.write_str("Unresolved"),
            Self::Void { reason } => write!(f, "Void({reason:?})"),
        }
    }
}

/// The cause of a void. A program in a sandbox cannot bring about any of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum VoidReason {
    /// The sandbox's pod or node disappeared, and not because of its own limits.
    SandboxLost,
    /// No sandbox was available before the deadline, or the gateway did not answer until then.
    SandboxUnavailable,
    /// The task's image cannot be pulled.
    ImageUnavailable,
    /// The repository of the task cannot be prepared in a fresh sandbox.
    TaskBroken,
    /// No engine answered before the deadline.
    EngineUnavailable,
    /// The judge of turns did not answer before the deadline.
    JudgeUnavailable,
    /// The reward service did not answer before the deadline.
    RewardUnavailable,
    /// The grader failed on this patch and also on the empty patch.
    GraderFailed,
    /// The episode's time was spent waiting for the infrastructure.
    DeadlineInfrastructure,
}

impl VoidReason {
    pub const ALL: [Self; 9] = [
        Self::SandboxLost,
        Self::SandboxUnavailable,
        Self::ImageUnavailable,
        Self::TaskBroken,
        Self::EngineUnavailable,
        Self::JudgeUnavailable,
        Self::RewardUnavailable,
        Self::GraderFailed,
        Self::DeadlineInfrastructure,
    ];
}

#[cfg(test)]
mod tests;
