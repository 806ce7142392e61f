//! Admission's verdict on a run.

use grpo_contracts::reason::Reason;

/// Admission's verdict on a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub admitted: bool,
    pub reason: Reason,
    pub message: String,
}
