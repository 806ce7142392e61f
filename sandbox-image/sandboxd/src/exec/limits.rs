//! How often the kernel has killed for memory and refused a process, as the sandbox's own control group counts it.
//!
//! Read before and after a command: what rose in between is what the command ran into.

use std::{fs, path::Path};

const CGROUPS: &str = "/sys/fs/cgroup";

/// A counter that this kernel does not have stays 0, and never rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub memory_kills: u64,
    pub process_refusals: u64,
}

impl Counters {
    pub fn now() -> Self {
        Self::under(Path::new(CGROUPS))
    }

    fn under(root: &Path) -> Self {
        Self {
            // Version 2, then version 1.
            memory_kills: counter(&root.join("memory.events"), "oom_kill")
                .or_else(|| counter(&root.join("memory/memory.oom_control"), "oom_kill"))
                .unwrap_or(0),
            process_refusals: counter(&root.join("pids.events"), "max")
                .or_else(|| counter(&root.join("pids/pids.events"), "max"))
                .unwrap_or(0),
        }
    }
}

/// The number behind a name in a file of `name number` lines.
fn counter(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| match line.split_once(' ') {
        Some((found, number)) if found == name => number.trim().parse().ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Counters::under(folder.path()), Counters::default());
        fs::create_dir_all(folder.path().join("memory")).unwrap();
        let version_1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        fs::write(folder.path().join("memory/memory.oom_control"), version_1).unwrap();
        assert_eq!(Counters::under(folder.path()).memory_kills, 3);
        fs::write(
            folder.path().join("memory.events"),
            "oom 9\noom_kill 5\noom_group_kill 1\n",
        )
        .unwrap();
        fs::write(folder.path().join("pids.events"), "max 2\n").unwrap();
        let both = Counters {
            memory_kills: 5,
            process_refusals: 2,
        };
        assert_eq!(Counters::under(folder.path()), both);
    }
}
