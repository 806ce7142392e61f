//! The resource limits and the thread scheduling of this process. Other processes of its user can change them, although
//! they can neither kill nor trace it.
//!
//! A policy that takes sandboxd's descriptors or its processor time silences it, and sandboxd lacks the right to take
//! them back. So it detects a change, and ends.

use nix::errno::Errno;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Limits and scheduling of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    limits: String,
    /// The scheduling of every thread. No thread is started after the first check.
    threads: Vec<(PathBuf, Scheduling)>,
}

/// Niceness, real-time priority and policy.
type Scheduling = [String; 3];

impl Standing {
    /// `None` if it cannot be read, for example without free descriptors.
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

    /// Whether it is unchanged. Only threads that existed at the first check count.
    pub fn holds(&self) -> bool {
        let Some(now) = Self::now() else { return false };
        let same = |(thread, then): &(PathBuf, Scheduling)| {
            let found = now.threads.iter().find(|(path, _)| path == thread);
            found.is_none_or(|(_, now)| now == then)
        };
        now.limits == self.limits && self.threads.iter().all(same)
    }
}

/// A thread's `stat`. `None` if the thread has ended since it was listed, or ends during the read; this is no change,
/// because the runtime ends its idle threads. An error if it cannot be read for another reason, for example without
/// free descriptors.
fn stat_unless_ended(thread: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(thread.join("stat")) {
        Ok(stat) => Ok(Some(stat)),
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT | Errno::ESRCH) => Ok(None),
            _ => Err(error),
        },
    }
}

/// `pid (name) state …`. The name may contain any character, so parsing begins after its last bracket.
fn scheduling(stat: &str) -> Option<Scheduling> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |at: usize| fields.get(at).map(|field| (*field).to_owned());
    Some([field(16)?, field(37)?, field(38)?])
}

#[cfg(test)]
mod tests;
