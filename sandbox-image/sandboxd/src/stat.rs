//! Reads the state of processes and threads.

use std::fs;

/// The `stat` of a process or thread, given its folder in `/proc`. Its name may have any bytes: the kernel cuts a long
/// one in the middle of a character.
pub(crate) fn stat_of(task: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{task}/stat")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
