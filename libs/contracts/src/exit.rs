//! How driver and trainer say why they ended: exit codes of their own, and for a hang a termination message that names
//! who is missing.
//!
//! The trainer writes it, the operator reads it. A trainer in another image that says nothing of the kind is started
//! again all the same; only the node of the rank that hung is then not avoided.

use serde::{Deserialize, Serialize};

/// Exit code of a driver that ended with a terminal fault: retrying cannot help. `status.progress.fault` names it.
pub const FAULT_CODE: u8 = 42;

/// Exit code of a rank that waited for others longer than a deadline allows. Its termination message is a [`Hang`].
pub const HUNG_CODE: i32 = 43;

/// Exit code of a rank that ended because another one had ended: somebody else's end is the cause.
pub const PEER_LOST_CODE: i32 = 44;

/// Exit code of a process that SIGABRT has ended, as a shell has it. NCCL ends a rank so, in a thread of its own, when
/// a collective of GPUs fails or is past its deadline.
pub const ABORTED_CODE: i32 = 134;

/// Whether the end of another rank may be the cause of an end with this code.
pub fn is_of_lost_peer(code: i32) -> bool {
    [PEER_LOST_CODE, ABORTED_CODE].contains(&code)
}

/// Somebody did not come to where the others are.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hang {
    /// What was waited for, where, and how long, in words.
    pub message: String,
    /// Ranks that did not arrive, as far as that is known.
    #[serde(default)]
    pub ranks: Vec<u32>,
    /// Their pods, by number (`GROUP_RANK`).
    #[serde(default)]
    pub pods: Vec<u32>,
}
