//! How driver and trainer report why they ended: exit codes and, for a hang, a termination message that names the
//! missing ranks.
//!
//! The trainer writes them, the operator reads them. A trainer from another image that reports none of this is
//! restarted too; only the node of the rank that hung is then not avoided.

use serde::{Deserialize, Serialize};

/// Exit code of a driver that ended with a terminal fault: retrying cannot help. `status.progress.fault` names it.
pub const FAULT_CODE: u8 = 42;

/// Exit code of a rank that waited for others past a deadline. Its termination message is a [`Hang`].
pub const HUNG_CODE: i32 = 43;

/// Exit code of a rank that ended because another rank had ended.
pub const PEER_LOST_CODE: i32 = 44;

/// Exit code of a process that SIGABRT ended, as a shell reports it. NCCL aborts a rank in this way, from its own
/// thread, when a collective on GPUs fails or exceeds its deadline.
pub const ABORTED_CODE: i32 = 134;

/// Whether the end of another rank may be the cause of this exit code.
pub fn is_of_lost_peer(code: i32) -> bool {
    [PEER_LOST_CODE, ABORTED_CODE].contains(&code)
}

/// Ranks did not arrive where the others wait.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hang {
    /// What was waited for, where, and for how long, as text.
    pub message: String,
    /// Ranks that did not arrive, as far as known.
    #[serde(default)]
    pub ranks: Vec<u32>,
    /// Their pods, by number (`GROUP_RANK`).
    #[serde(default)]
    pub pods: Vec<u32>,
}
