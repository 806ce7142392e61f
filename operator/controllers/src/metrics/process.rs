//! Resource use of this process, as Linux counts it.

use std::fs;

/// Units of /proc: ticks of processor time in a second, bytes of a memory page. The same on all our machines.
const TICKS: f64 = 100.0;
const PAGE: f64 = 4096.0;

#[derive(Debug)]
pub struct Used {
    /// Bytes.
    pub memory: f64,
    /// Seconds, user and system together.
    pub processor: f64,
}

/// Returns `None` without /proc.
pub fn used() -> Option<Used> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    // The command's name is in parentheses and may contain anything; only numbers follow it.
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let mut numbers = stat.rsplit(')').next()?.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    Some(Used {
        memory: pages * PAGE,
        processor: (user + system) / TICKS,
    })
}
