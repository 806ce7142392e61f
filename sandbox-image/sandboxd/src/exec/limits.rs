//! The kernel's counts of memory kills and refused processes in the sandbox's own control group, and whether the disk
//! is full.
//!
//! The counters are read before and after a command: a rise in between shows the limit that the command hit.

use std::{fs::File, os::unix::fs::FileExt as _, path::Path, str};

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::bounds::ProcessGuard;

const CGROUPS: &str = "/sys/fs/cgroup";

/// A counter that this kernel lacks stays 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub memory_kills: u64,
    pub process_refusals: u64,
}

/// The counter files. Opened once, because they are read for every command, and because the policy could mount other
/// files in their place.
pub struct CounterFiles {
    memory_kills: Option<File>,
    process_refusals: Option<File>,
}

impl CounterFiles {
    pub fn open() -> Self {
        Self::under(Path::new(CGROUPS))
    }

    fn under(root: &Path) -> Self {
        // Control groups version 2, then version 1.
        let first = |names: [&str; 2]| names.iter().find_map(|name| File::open(root.join(name)).ok());
        Self {
            memory_kills: first(["memory.events", "memory/memory.oom_control"]),
            process_refusals: first(["pids.events", "pids/pids.events"]),
        }
    }

    pub fn read(&self, guard: &ProcessGuard) -> Counters {
        let read = |file: &Option<File>, name| file.as_ref().and_then(|file| counter(file, name)).unwrap_or(0);
        Counters {
            memory_kills: read(&self.memory_kills, "oom_kill"),
            process_refusals: read(&self.process_refusals, "max") + guard.kills(),
        }
    }
}

/// A disk with less free space than this counts as full.
const ROOM: u64 = 64 << 10;

/// Whether the disk of the command's folder is full.
pub fn disk_is_full(folder: Option<&str>) -> bool {
    is_full(Path::new(folder.unwrap_or("."))) || is_full(Path::new("/tmp"))
}

fn is_full(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|disk| {
        let can_be_written = !disk.flags().contains(FsFlags::ST_RDONLY);
        let no_block = disk.blocks() > 0 && disk.blocks_available() * disk.fragment_size() < ROOM;
        let no_name = disk.files() > 0 && disk.files_available() == 0;
        can_be_written && (no_block || no_name)
    })
}

/// The number after a name, in a file of a few `name number` lines.
fn counter(file: &File, name: &str) -> Option<u64> {
    let mut buffer = [0; 1024];
    let count = file.read_at(&mut buffer, 0).ok()?;
    let text = str::from_utf8(&buffer[..count]).ok()?;
    text.lines().find_map(|line| match line.split_once(' ') {
        Some((found, number)) if found == name => number.trim().parse().ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
