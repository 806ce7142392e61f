//! Output beyond the limit of memory, in an unnamed file that no process in the sandbox can open.
//!
//! The file is on the sandbox's disk and counts as written by its command, so it is bounded, per command and in total.
//! A disk can be slow, so only [`Write::carry_out`] and [`Piece::read`] touch the file, away from the loop.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grpo_sandbox_protocol::MAX_SPOOL_BYTES;
use nix::libc::O_TMPFILE;

/// Maximum bytes of all spools together.
const ALL: u64 = 4 * MAX_SPOOL_BYTES;
/// Candidate folders for such a file, best first. The last is memory.
const FOLDERS: [&str; 4] = ["/tmp", "/var/tmp", "/", "/dev/shm"];

/// Bytes on disk for all commands. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Disk(Arc<AtomicU64>);

/// The first bytes of one output.
pub struct Spool {
    /// `None` until the first write.
    file: Option<Arc<File>>,
    written: u64,
    /// The next bytes, not written yet.
    waiting: Vec<u8>,
    disk: Disk,
    /// The spool or the disk is full. The next bytes are lost, so the spool takes no more.
    ended: bool,
}

/// A pending write.
pub struct Write {
    file: Option<Arc<File>>,
    at: u64,
    bytes: Vec<u8>,
}

/// Part of an output.
pub enum Piece {
    Memory(Vec<u8>),
    Disk { file: Arc<File>, from: u64, count: usize },
}

impl Disk {
    pub fn spool(&self) -> Spool {
        Spool {
            file: None,
            written: 0,
            waiting: Vec::new(),
            disk: self.clone(),
            ended: false,
        }
    }
}

impl Spool {
    pub fn push(&mut self, bytes: &[u8]) {
        if self.ended {
            return;
        }
        let room_here = MAX_SPOOL_BYTES.saturating_sub(self.bytes());
        let room_in_all = ALL.saturating_sub(self.disk.0.load(Ordering::Relaxed));
        let fits = (bytes.len() as u64).min(room_here).min(room_in_all) as usize;
        self.waiting.extend_from_slice(&bytes[..fits]);
        self.disk.0.fetch_add(fits as u64, Ordering::Relaxed);
        self.ended = fits < bytes.len();
    }

    /// How many of the output's first bytes are in the spool.
    pub fn bytes(&self) -> u64 {
        self.written + self.waiting.len() as u64
    }

    /// The pending write, if there is one.
    pub fn write(&self) -> Option<Write> {
        (!self.waiting.is_empty()).then(|| Write {
            file: self.file.clone(),
            at: self.written,
            bytes: self.waiting.clone(),
        })
    }

    /// Takes in the result of a write: the file and the bytes written. `None` if the write failed.
    pub fn wrote(&mut self, written: Option<(Arc<File>, usize)>) {
        match written {
            Some((file, count)) => {
                let count = count.min(self.waiting.len());
                self.waiting.drain(..count);
                self.written += count as u64;
                self.file = Some(file);
            }
            None => {
                self.disk.0.fetch_sub(self.waiting.len() as u64, Ordering::Relaxed);
                self.waiting.clear();
                self.ended = true;
            }
        }
    }

    pub fn piece(&self, from: u64, count: usize) -> Piece {
        match &self.file {
            Some(file) if from < self.written => Piece::Disk {
                file: file.clone(),
                from,
                count: (self.written - from).min(count as u64) as usize,
            },
            _ => {
                let after = self.waiting.iter().skip(from.saturating_sub(self.written) as usize);
                Piece::Memory(after.take(count).copied().collect())
            }
        }
    }
}

impl Write {
    /// Writes to the file. The first write creates it: most commands print little, and need no file.
    pub fn carry_out(self) -> io::Result<(Arc<File>, usize)> {
        let file = match self.file {
            Some(file) => file,
            None => {
                let made = FOLDERS.iter().find_map(|folder| unnamed(folder).ok());
                Arc::new(made.ok_or_else(|| io::Error::other("no file system holds a file without a name"))?)
            }
        };
        file.write_all_at(&self.bytes, self.at)?;
        Ok((file, self.bytes.len()))
    }
}

impl Piece {
    pub fn read(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Memory(bytes) => Ok(bytes),
            Self::Disk { file, from, count } => {
                let mut bytes = vec![0; count];
                file.read_exact_at(&mut bytes, from)?;
                Ok(bytes)
            }
        }
    }
}

fn unnamed(folder: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(O_TMPFILE);
    options.open(folder)
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.disk.0.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
