//! Memory for keys and values of running rows: what the container has, less its other needs.

use std::fs;

/// The limit of a container's memory, as its processes see it (cgroup v2).
const LIMIT: &str = "/sys/fs/cgroup/memory.max";

/// Where memory is short, some rows should run side by side all the same.
const LEAST: usize = 64 << 20;

/// Bytes for keys and values, in a container with this much memory: it also holds this process as it is now, a second
/// model while a version is loaded, the prefix cache, and an eighth for all that is not counted.
pub fn kv_bytes(memory: usize, resident: usize, prefix_cache: usize) -> usize {
    let others = 2 * resident + prefix_cache;
    (memory.saturating_sub(others) / 8 * 7).max(LEAST)
}

/// [`kv_bytes`] of this process's container, or of the machine's free memory where it has no limit. Call it when the
/// model is loaded.
pub fn kv_bytes_here(prefix_cache: usize) -> usize {
    let kib = |file: &str, line: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let found = text.lines().find_map(|found| found.strip_prefix(line))?;
        found.split_whitespace().next()?.parse::<usize>().ok()
    };
    let resident = kib("/proc/self/status", "VmRSS:").unwrap_or_default() << 10;
    let free = (kib("/proc/meminfo", "MemAvailable:").unwrap_or_default() << 10).saturating_add(resident);
    let limit = fs::read_to_string(LIMIT)
        .ok()
        .and_then(|limit| limit.trim().parse().ok());
    kv_bytes(free.min(limit.unwrap_or(usize::MAX)), resident, prefix_cache)
}

#[cfg(test)]
mod tests {
    use super::{LEAST, kv_bytes, kv_bytes_here};

    const GIB: usize = 1 << 30;

    #[test]
    fn what_the_model_its_successor_and_the_prefix_cache_leave_is_for_rows() {
        assert_eq!(kv_bytes(8 * GIB, GIB, GIB), 5 * GIB / 8 * 7);
        assert_eq!(kv_bytes(2 * GIB, GIB, GIB), LEAST);
        assert_eq!(kv_bytes(0, 0, 0), LEAST);
    }

    #[test]
    fn this_machine_has_memory_for_rows() {
        assert!(kv_bytes_here(0) > LEAST, "{}", kv_bytes_here(0));
        assert!(kv_bytes_here(usize::MAX / 4) == LEAST);
    }
}
