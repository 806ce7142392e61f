//! Selects the files that arrive with one request: small ones, from their first byte on. Pure.

use super::plan::Wanted;
use grpo_records::look::bulk::{BulkLimits, BulkRequest};
use grpo_records::look::files::FileAt;

/// A larger file has a request of its own, which continues it from any byte on.
const LARGEST: u64 = 1 << 20;
const FILES: usize = 1000;
const BYTES: u64 = 32 << 20;

/// Files that wait for their request, in order.
#[derive(Debug)]
pub struct Batch<'a> {
    /// `None` if the source does not send many files in one answer.
    limits: Option<BulkLimits>,
    files: Vec<&'a Wanted>,
    bytes: u64,
}

impl<'a> Batch<'a> {
    pub fn new(limits: Option<BulkLimits>) -> Self {
        Self {
            limits,
            files: Vec::new(),
            bytes: 0,
        }
    }

    /// Whether a file can be in a batch.
    pub fn accepts(&self, file: &Wanted) -> bool {
        let fits = |limits: BulkLimits| limits.files > 0 && file.path.len() <= limits.path_bytes;
        file.bytes <= LARGEST && self.limits.is_some_and(fits)
    }

    /// Whether the batch must be fetched before it can have this file too.
    pub fn is_full_for(&self, file: &Wanted) -> bool {
        let files = self.limits.map_or(0, |limits| limits.files.min(FILES));
        !self.files.is_empty() && (self.files.len() >= files || self.bytes + file.bytes > BYTES)
    }

    pub fn add(&mut self, file: &'a Wanted) {
        self.files.push(file);
        self.bytes += file.bytes;
    }

    /// The files, and an empty batch in their place.
    pub fn take(&mut self) -> Vec<&'a Wanted> {
        self.bytes = 0;
        std::mem::take(&mut self.files)
    }
}

/// A file that grew since it was listed comes with its listed length.
pub fn request(files: &[&Wanted]) -> BulkRequest {
    let at = |file: &&Wanted| FileAt {
        to: Some(file.bytes),
        ..FileAt::whole(&file.path)
    };
    BulkRequest {
        files: files.iter().map(at).collect(),
    }
}

#[cfg(test)]
mod tests;
