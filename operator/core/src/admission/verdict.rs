//! How a run stands with admission.

use grpo_contracts::reason::Reason;

/// How a run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub admitted: bool,
    pub reason: Reason,
    pub message: String,
}
