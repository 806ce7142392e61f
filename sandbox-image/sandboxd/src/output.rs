//! The output of a command: all of it, or its head and its tail if it is too long. The part in between is spooled, and
//! can be read in parts.

mod spool;

use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpo_sandbox_protocol::OutputPart;
use tokio::sync::watch;

use crate::offload;
pub use spool::Disk;
use spool::{Piece, Spool, Write};

/// Deadline of a read from or a write to the sandbox's disk.
const DISK_WITHIN: Duration = Duration::from_secs(5);

/// Keeps at most `limit` bytes of the output.
pub struct Output {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    omitted: u64,
    /// The disk for omitted bytes, if there is one.
    disk: Option<Disk>,
    spool: Option<Spool>,
}

impl Output {
    pub fn new(limit: usize) -> Self {
        let head_limit = limit / 2;
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            head_limit,
            tail_limit: limit - head_limit,
            omitted: 0,
            disk: None,
            spool: None,
        }
    }

    pub fn spooled(limit: usize, disk: Disk) -> Self {
        Self {
            disk: Some(disk),
            ..Self::new(limit)
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.head_limit - self.head.len()));
        let too_many = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        if too_many > 0 && self.omitted == 0 {
            self.begin_spool();
        }
        if let Some(spool) = &mut self.spool {
            spool.push(bytes);
        }
        self.head.extend_from_slice(first);
        let from_tail = too_many.min(self.tail.len());
        self.tail.drain(..from_tail);
        self.tail.extend(&rest[too_many - from_tail..]);
        self.omitted += too_many as u64;
    }

    fn begin_spool(&mut self) {
        self.spool = self.disk.as_ref().map(Disk::spool);
        if let Some(spool) = &mut self.spool {
            spool.push(&self.head);
            let (front, back) = self.tail.as_slices();
            spool.push(front);
            spool.push(back);
        }
    }

    /// Number of bytes so far.
    pub fn written(&self) -> u64 {
        self.in_memory() as u64 + self.omitted
    }

    pub fn in_memory(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// The bytes that wait to be written to disk.
    pub fn write(&self) -> Option<Write> {
        self.spool.as_ref()?.write()
    }

    /// Takes in the result of that write.
    pub fn wrote(&mut self, written: Option<(Arc<File>, usize)>) {
        if let Some(spool) = &mut self.spool {
            spool.wrote(written);
        }
    }

    /// The position of the first kept byte at or after `from`, and at most `count` bytes from there.
    pub fn part(&self, from: u64, count: usize) -> (u64, Piece) {
        let (head, tail_from) = (self.head.len() as u64, self.written() - self.tail.len() as u64);
        if from < head {
            let begin = from as usize;
            let end = self.head.len().min(begin.saturating_add(count));
            return (from, Piece::Memory(self.head[begin..end].to_vec()));
        }
        match &self.spool {
            Some(spool) if from < spool.bytes() && from < tail_from => (from, spool.piece(from, count)),
            _ => self.part_of_tail(from, count),
        }
    }

    fn part_of_tail(&self, from: u64, count: usize) -> (u64, Piece) {
        let tail_from = self.written() - self.tail.len() as u64;
        let from = from.clamp(tail_from, self.written());
        let after = self.tail.range((from - tail_from) as usize..);
        (from, Piece::Memory(after.take(count).copied().collect()))
    }

    /// The last bytes, as text.
    pub fn end(&self, count: usize) -> String {
        let count = count.min(self.in_memory());
        let of_tail = count.min(self.tail.len());
        // Head and tail are adjacent only if nothing was omitted.
        let of_head = if self.omitted == 0 { count - of_tail } else { 0 };
        let mut bytes = self.head[self.head.len() - of_head..].to_vec();
        bytes.extend(self.tail.range(self.tail.len() - of_tail..));
        lossy(bytes)
    }

    /// The text, with a line in the place of the omitted bytes, and their number.
    pub fn text(&self) -> (String, u64) {
        let (mut bytes, (front, back)) = (self.head.clone(), self.tail.as_slices());
        let tail = [front, back].concat();
        if self.omitted == 0 {
            bytes.extend_from_slice(&tail);
            return (lossy(bytes), 0);
        }
        let mut text = lossy(bytes);
        text.push_str(&format!("\n[{} bytes omitted]\n", self.omitted));
        text.push_str(&lossy(tail));
        (text, self.omitted)
    }
}

/// Copies only if the bytes are not UTF-8.
fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// An output that can be read while it is written. Cloning is cheap.
#[derive(Clone)]
pub struct Printed {
    output: Arc<Mutex<Output>>,
    /// Bytes written, and whether the output is complete.
    progress: Arc<watch::Sender<(u64, bool)>>,
}

impl Printed {
    pub fn new(output: Output) -> Self {
        let (progress, _) = watch::channel((0, false));
        Self {
            output: Arc::new(Mutex::new(output)),
            progress: Arc::new(progress),
        }
    }

    pub fn push(&self, bytes: &[u8]) {
        let mut output = self.lock();
        output.push(bytes);
        self.progress.send_modify(|(written, _)| *written = output.written());
    }

    /// Takes in bytes and writes to disk what belongs there. Gives up bytes that the disk does not take in time.
    pub async fn take_in(&self, bytes: &[u8]) {
        self.push(bytes);
        let write = self.lock().write();
        if let Some(write) = write {
            let written = offload::run(DISK_WITHIN, move || write.carry_out()).await;
            self.lock().wrote(written.ok().and_then(Result::ok));
        }
    }

    pub fn end(&self) {
        self.progress.send_modify(|(_, ended)| *ended = true);
    }

    pub fn text(&self) -> (String, u64) {
        self.lock().text()
    }

    pub fn in_memory(&self) -> usize {
        self.lock().in_memory()
    }

    /// Returns when there is output at or after `from`, or when no more will come.
    pub async fn reaches(&self, from: u64) {
        let mut progress = self.progress.subscribe();
        let _ = progress.wait_for(|(written, ended)| *written > from || *ended).await;
    }

    pub async fn part(&self, id: &str, from: u64, count: usize) -> OutputPart {
        let ended = self.progress.borrow().1;
        let (written, (mut from, piece)) = {
            let output = self.lock();
            (output.written(), output.part(from, count))
        };
        let data = match piece {
            Piece::Memory(data) => data,
            on_disk @ Piece::Disk { .. } => {
                let read = offload::run(DISK_WITHIN, move || on_disk.read()).await;
                read.ok().and_then(Result::ok).unwrap_or_else(|| {
                    let (kept_from, kept) = self.lock().part_of_tail(from, count);
                    from = kept_from;
                    kept.read().unwrap_or_default()
                })
            }
        };
        OutputPart {
            id: id.to_owned(),
            from,
            next: from + data.len() as u64,
            data,
            written,
            ended,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
