//! What keeps a command from taking every process and all processor time, so that sandboxd answers whatever runs beside
//! it.
//!
//! A fork bomb is the policy's doing. If sandboxd fell silent under one, the gateway would have to call that a fault of
//! the infrastructure, and a policy could have its attempt taken back.

use std::{fs, path::Path};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::process::{Pid, setpriority_pgrp};

pub const UIDS: &str = "/proc/self/uid_map";
/// Processes and threads of one user of the sandbox, sandboxd's own among root's.
const MAX_PROCESSES: u64 = 2048;
/// The least weight there is: 15, beside 1024 of sandboxd. 2,048 processes that never rest leave sandboxd a thirtieth
/// of the processors.
const LEAST: i32 = 19;

/// Bounds the processes of this sandbox's users, for sandboxd and all that it starts. Only in a user namespace of its
/// own: elsewhere the kernel counts a user's processes in all sandboxes of the node together, and root's not at all.
pub fn bound_processes() {
    if !is_user_namespace(Path::new(UIDS)) {
        return;
    }
    let bound = most_processes();
    // Without it the kubelet's bound of the pod still holds.
    let _ = setrlimit(Resource::RLIMIT_NPROC, bound, bound);
}

/// How many processes a user of this sandbox may have, where [`bound_processes`] bounds them.
pub fn processes_of_a_user(uids: &Path) -> Option<u64> {
    is_user_namespace(uids).then(most_processes)
}

fn most_processes() -> u64 {
    let own = getrlimit(Resource::RLIMIT_NPROC).map_or(u64::MAX, |(_, hard)| hard);
    MAX_PROCESSES.min(own)
}

/// Lets a process group that has just begun, and all that it will start, run behind sandboxd: the group, for its first
/// process may have started others before it is heard of here. Between sandboxes it changes nothing: the kernel shares
/// the processors out among control groups first. Nobody inside can take it back, for that needs a right on the node.
pub fn give_way(group: i32) {
    if let Some(group) = Pid::from_raw(group) {
        let _ = setpriority_pgrp(Some(group), LEAST);
    }
}

/// Whether users are mapped. The first namespace maps everything to itself.
pub fn is_user_namespace(uids: &Path) -> bool {
    let map = fs::read_to_string(uids).unwrap_or_default();
    let first: Vec<&str> = map.split_whitespace().take(3).collect();
    !first.is_empty() && first != ["0", "0", "4294967295"]
}
