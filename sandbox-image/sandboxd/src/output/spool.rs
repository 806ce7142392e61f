//! Output that is more than memory keeps: in a file without a name, which nothing in the sandbox can open.
//!
//! It is on the sandbox's disk and counts as what its command wrote there; so it is bounded, by command and in all.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grpo_sandbox_protocol::MAX_SPOOL_BYTES;
use nix::libc::O_TMPFILE;

/// All spools together.
const ALL: u64 = 4 * MAX_SPOOL_BYTES;
/// Where such a file may be, best first. The last is memory.
const FOLDERS: [&str; 4] = ["/tmp", "/var/tmp", "/", "/dev/shm"];

/// Bytes on disk, of all commands. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Disk(Arc<AtomicU64>);

/// The first bytes of one output.
pub struct Spool {
    file: File,
    bytes: u64,
    disk: Disk,
    /// Full, or the disk is; what would come next is missing, so nothing comes after.
    ended: bool,
}

impl Disk {
    /// None where no file system here can hold a file without a name.
    pub fn spool(&self) -> Option<Spool> {
        Some(Spool {
            file: FOLDERS.iter().find_map(|folder| unnamed(folder).ok())?,
            bytes: 0,
            disk: self.clone(),
            ended: false,
        })
    }
}

fn unnamed(folder: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(O_TMPFILE);
    options.open(folder)
}

impl Spool {
    pub fn push(&mut self, bytes: &[u8]) {
        if self.ended {
            return;
        }
        let room_here = MAX_SPOOL_BYTES.saturating_sub(self.bytes);
        let room_in_all = ALL.saturating_sub(self.disk.0.load(Ordering::Relaxed));
        let fits = (bytes.len() as u64).min(room_here).min(room_in_all) as usize;
        let written = self.file.write_all_at(&bytes[..fits], self.bytes).is_ok();
        if written {
            self.bytes += fits as u64;
            self.disk.0.fetch_add(fits as u64, Ordering::Relaxed);
        }
        self.ended = !written || fits < bytes.len();
    }

    /// How many of the output's first bytes are here.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn read(&self, from: u64, count: usize) -> io::Result<Vec<u8>> {
        let there = self.bytes.saturating_sub(from).min(count as u64) as usize;
        let mut bytes = vec![0; there];
        self.file.read_exact_at(&mut bytes, from)?;
        Ok(bytes)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.disk.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
