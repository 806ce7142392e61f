//! Bounds the processes and the processor time of commands, so that sandboxd answers under any workload in the sandbox.
//!
//! A fork bomb is the policy's doing. If sandboxd stopped answering under one, the gateway would have to report a fault
//! of the infrastructure, and a policy could void its own episode.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    str,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{Signal, kill},
    },
    unistd::{self, getpid},
};
use rustix::process::{Pid, setpriority_pgrp};

pub const UIDS: &str = "/proc/self/uid_map";
/// Maximum processes and threads of one user of the sandbox. sandboxd's own count among root's.
const MAX_PROCESSES: u64 = 2048;
/// Maximum processes and threads of all users together: root in a sandbox can act as many users.
const MAX_TOGETHER: u64 = 2 * MAX_PROCESSES;
/// Pause between two counts of processes.
const COUNT: Duration = Duration::from_millis(250);
/// Every process except the first of the PID namespace, if that process sends the signal.
const EVERY_PROCESS: unistd::Pid = unistd::Pid::from_raw(-1);
/// The lowest weight: 15, against 1024 for sandboxd. 2,048 busy processes leave sandboxd a thirtieth of the processors.
const LEAST: i32 = 19;

/// Bounds the processes of this sandbox's users, for sandboxd and its descendants. Only in a user namespace of its own:
/// without one the kernel counts a user's processes in all sandboxes of the node together, and does not count root's.
pub fn bound_processes() {
    if !is_user_namespace(Path::new(UIDS)) {
        return;
    }
    let bound = most_processes();
    // If this fails, the kubelet's limit for the pod still holds.
    let _ = setrlimit(Resource::RLIMIT_NPROC, bound, bound);
}

/// Maximum processes of all users of this sandbox together. Outside of a sandbox there is no bound.
pub fn processes_together() -> Option<u64> {
    is_sandbox().then_some(MAX_TOGETHER)
}

/// Enforces the bound on all users together; the kernel bounds only single users. Cloning is cheap.
#[derive(Clone, Default)]
pub struct ProcessGuard {
    kills: Arc<AtomicU64>,
}

impl ProcessGuard {
    /// Starts the counting thread.
    pub fn start(&self) -> io::Result<()> {
        if !is_sandbox() {
            return Ok(());
        }
        let guard = self.clone();
        let guarding = thread::Builder::new().name("processes".into());
        guarding.spawn(move || guard.keep_counting()).map(drop)
    }

    /// How often the bound was exceeded.
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    fn keep_counting(&self) {
        let mut last = None;
        loop {
            thread::sleep(COUNT);
            // If no process has begun, the count cannot have risen.
            let newest = fs::read_to_string("/proc/loadavg").ok().and_then(|text| newest(&text));
            if newest.is_some() && newest == last {
                continue;
            }
            last = newest;
            if exceeds(Path::new("/proc"), MAX_TOGETHER) {
                self.kills.fetch_add(1, Ordering::Relaxed);
                kill_at_once();
            }
        }
    }
}

/// The newest process or thread number in this PID namespace, if the kernel reports it.
fn newest(loadavg: &str) -> Option<u64> {
    loadavg
        .split_whitespace()
        .last()?
        .parse()
        .ok()
        .filter(|number| *number > 0)
}

/// Whether there are more than `most` processes and threads. Stops counting once there are.
fn exceeds(proc: &Path, most: u64) -> bool {
    let Ok(entries) = fs::read_dir(proc) else { return false };
    let is_number = |name: &[u8]| str::from_utf8(name).is_ok_and(|name| name.parse::<u32>().is_ok());
    let mut together = 0;
    for entry in entries.flatten() {
        if is_number(entry.file_name().as_encoded_bytes()) {
            // A folder has one link for itself, one from its parent, and one from each subfolder.
            let tasks = fs::metadata(entry.path().join("task")).map_or(0, |tasks| tasks.nlink());
            together += tasks.saturating_sub(2).max(1);
        }
        if together > most {
            return true;
        }
    }
    false
}

/// Kills every other process at once, faster than any fork bomb. Outside of a sandbox it would kill foreign processes,
/// so it does nothing there.
pub fn kill_at_once() {
    if is_sandbox() {
        let _ = kill(EVERY_PROCESS, Signal::SIGKILL);
    }
}

/// Whether this is the first process of a PID namespace.
fn is_sandbox() -> bool {
    getpid().as_raw() == 1
}

fn most_processes() -> u64 {
    let own = getrlimit(Resource::RLIMIT_NPROC).map_or(u64::MAX, |(_, hard)| hard);
    MAX_PROCESSES.min(own)
}

/// Gives a new process group, and all that it will start, a lower priority than sandboxd. It sets the whole group,
/// because the first process may have started others before sandboxd learns of it. This changes nothing between
/// sandboxes: the kernel first divides processor time among control groups. Processes in the sandbox cannot undo it:
/// that needs a privilege on the node.
pub fn give_way(group: i32) {
    if let Some(group) = Pid::from_raw(group) {
        let _ = setpriority_pgrp(Some(group), LEAST);
    }
}

/// Whether users are mapped. The initial namespace maps every user to itself.
pub fn is_user_namespace(uids: &Path) -> bool {
    let map = fs::read_to_string(uids).unwrap_or_default();
    let first: Vec<&str> = map.split_whitespace().take(3).collect();
    !first.is_empty() && first != ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests;
