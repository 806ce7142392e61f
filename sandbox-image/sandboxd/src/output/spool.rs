//! Output that is more than memory keeps: in a file without a name, which nothing in the sandbox can open.
//!
//! It is on the sandbox's disk and counts as what its command wrote there; so it is bounded, by command and in all. A
//! disk can be slow, so the file is touched by [`Write::carry_out`] and [`Piece::read`] alone, away from the loop.

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
    /// None until something was written.
    file: Option<Arc<File>>,
    written: u64,
    /// What comes after that, and is not written yet.
    waiting: Vec<u8>,
    disk: Disk,
    /// Full, or the disk is; what would come next is missing, so nothing comes after.
    ended: bool,
}

/// What is to be written.
pub struct Write {
    file: Option<Arc<File>>,
    at: u64,
    bytes: Vec<u8>,
}

/// Some bytes of an output.
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

    /// How many of the output's first bytes are here.
    pub fn bytes(&self) -> u64 {
        self.written + self.waiting.len() as u64
    }

    /// What waits to be written, if anything does.
    pub fn write(&self) -> Option<Write> {
        (!self.waiting.is_empty()).then(|| Write {
            file: self.file.clone(),
            at: self.written,
            bytes: self.waiting.clone(),
        })
    }

    /// So many bytes are in the file now. Without a file it cannot be written to.
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
    /// Into the file, which is made by the first write: most commands print little, and need no file.
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
