//! A file that is written piece by piece and exists once it is finished.

use super::at;
use super::error::{StoreError, access};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, UploadPart};
use sha2::{Digest, Sha256};

/// Bytes of a part; object storage requires at least 5 MiB.
const PART: usize = 8 << 20;
/// Parts that are sent concurrently.
const AT_A_TIME: usize = 4;

/// A file in progress. If dropped unfinished, it does not exist, and its bytes are removed; on Azure only after a week.
pub struct Upload {
    path: String,
    /// Before the upload, so that its requests are dropped before the upload aborts itself.
    under_way: FuturesUnordered<UploadPart>,
    parts: Box<dyn MultipartUpload>,
    pending: Vec<u8>,
    begun: usize,
    digest: Sha256,
    bytes: u64,
}

/// The size and the checksum of the written bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uploaded {
    pub bytes: u64,
    pub sha256: String,
}

impl Upload {
    pub(super) async fn begin(objects: &dyn ObjectStore, path: &str) -> Result<Self, StoreError> {
        let parts = objects.put_multipart(&at(path)).await;
        Ok(Self::of(parts.map_err(|e| access("beginning", path, e))?, path))
    }

    pub(super) fn of(parts: Box<dyn MultipartUpload>, path: &str) -> Self {
        Self {
            parts,
            path: path.to_owned(),
            pending: Vec::new(),
            under_way: FuturesUnordered::new(),
            begun: 0,
            digest: Sha256::new(),
            bytes: 0,
        }
    }

    /// Adds bytes. After an error the upload is unusable.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let full = part(self.begun);
            // At once: a vector that grows moves its bytes several times.
            self.pending.reserve_exact(full - self.pending.len());
            let (now, later) = bytes.split_at(bytes.len().min(full - self.pending.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
            if self.pending.len() == full {
                self.put_part().await?;
            }
        }
        Ok(())
    }

    /// When this returns, the file has its name and is durable.
    pub async fn finish(mut self) -> Result<Uploaded, StoreError> {
        self.arrive().await?;
        self.complete().await
    }

    /// When this returns, every byte is stored at its final place; nothing is written afterwards.
    pub(super) async fn arrive(&mut self) -> Result<(), StoreError> {
        // Storage requires one part, even an empty one.
        if !self.pending.is_empty() || self.bytes == 0 {
            self.put_part().await?;
        }
        while !self.under_way.is_empty() {
            self.one_arrives().await?;
        }
        Ok(())
    }

    pub(super) async fn complete(mut self) -> Result<Uploaded, StoreError> {
        if let Err(error) = self.parts.complete().await {
            return Err(self.failed("finishing", error).await);
        }
        Ok(Uploaded {
            bytes: self.bytes,
            sha256: hex::encode(self.digest.finalize()),
        })
    }

    async fn put_part(&mut self) -> Result<(), StoreError> {
        if self.under_way.len() == AT_A_TIME {
            self.one_arrives().await?;
        }
        let bytes = std::mem::take(&mut self.pending);
        self.under_way.push(self.parts.put_part(bytes.into()));
        self.begun += 1;
        Ok(())
    }

    async fn one_arrives(&mut self) -> Result<(), StoreError> {
        if let Some(Err(error)) = self.under_way.next().await {
            return Err(self.failed("writing", error).await);
        }
        Ok(())
    }

    /// The error to report. Frees the space for the next try.
    async fn failed(&mut self, doing: &'static str, error: object_store::Error) -> StoreError {
        // A request that arrives after the abort may store its part.
        self.under_way.clear();
        // If the abort fails too, the first error is the cause.
        let _ = self.parts.abort().await;
        access(doing, &self.path, error)
    }
}

/// The size of a part. An upload has at most 10,000 parts; larger ones after the first thousand allow 570 GiB.
fn part(number: usize) -> usize {
    if number < 1000 { PART } else { 8 * PART }
}
