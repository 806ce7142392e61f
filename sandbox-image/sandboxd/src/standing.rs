//! What other processes of its user may change of this one, although they can neither kill nor trace it: its limits and
//! how its threads are scheduled.
//!
//! A policy that takes sandboxd's descriptors or its processor time silences it, and no right is left to take them
//! back. So a change is noticed, and is a reason to end.

use nix::errno::Errno;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Limits and scheduling of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    limits: String,
    /// Of every thread: none is started after the first look.
    threads: Vec<(PathBuf, Scheduling)>,
}

/// Niceness, real-time priority and policy.
type Scheduling = [String; 3];

impl Standing {
    /// None where it cannot be seen, as without descriptors.
    pub fn now() -> Option<Self> {
        Self::of(Path::new("/proc/self"))
    }

    fn of(process: &Path) -> Option<Self> {
        let limits = fs::read_to_string(process.join("limits")).ok()?;
        let mut threads = Vec::new();
        for thread in fs::read_dir(process.join("task")).ok()? {
            let thread = thread.ok()?.path();
            if let Some(stat) = stat_unless_ended(&thread).ok()? {
                threads.push((thread, scheduling(&stat)?));
            }
        }
        threads.sort();
        Some(Self { limits, threads })
    }

    /// Whether it is unchanged. A thread that was not there then does not count.
    pub fn holds(&self) -> bool {
        let Some(now) = Self::now() else { return false };
        let same = |(thread, then): &(PathBuf, Scheduling)| {
            let found = now.threads.iter().find(|(path, _)| path == thread);
            found.is_none_or(|(_, now)| now == then)
        };
        now.limits == self.limits && self.threads.iter().all(same)
    }
}

/// What a thread's `stat` holds; nothing of a thread that ended since it was listed, or ends while it is read. That is
/// no change: the runtime ends idle threads of its own. An error where it cannot be read for another reason, as without
/// descriptors.
fn stat_unless_ended(thread: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(thread.join("stat")) {
        Ok(stat) => Ok(Some(stat)),
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT | Errno::ESRCH) => Ok(None),
            _ => Err(error),
        },
    }
}

/// `pid (name) state …`; the name may hold anything, so what follows its last bracket counts.
fn scheduling(stat: &str) -> Option<Scheduling> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |at: usize| fields.get(at).map(|field| (*field).to_owned());
    Some([field(16)?, field(37)?, field(38)?])
}

#[cfg(test)]
mod tests;
