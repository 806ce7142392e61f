//! A file that is written piece by piece and is there when it is finished.

use super::at;
use super::error::{StoreError, access};
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt};
use sha2::{Digest, Sha256};

/// Bytes of a part; object storage takes no smaller ones than 5 MiB.
const PART: usize = 8 << 20;

/// A file under way. Dropped unfinished, it never was; on a volume its bytes are removed then.
pub struct Upload {
    path: String,
    parts: Box<dyn MultipartUpload>,
    pending: Vec<u8>,
    digest: Sha256,
    bytes: u64,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uploaded {
    pub bytes: u64,
    pub sha256: String,
}

impl Upload {
    pub(super) async fn begin(objects: &dyn ObjectStore, path: &str) -> Result<Self, StoreError> {
        let parts = objects.put_multipart(&at(path)).await;
        Ok(Self {
            parts: parts.map_err(|e| access("beginning", path, e))?,
            path: path.to_owned(),
            pending: Vec::new(),
            digest: Sha256::new(),
            bytes: 0,
        })
    }

    /// Adds bytes. After an error the upload is of no use.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PART - self.pending.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
            if self.pending.len() == PART {
                self.put_part().await?;
            }
        }
        Ok(())
    }

    /// The file has its name and is durable when this returns.
    pub async fn finish(mut self) -> Result<Uploaded, StoreError> {
        // Storage wants one part, even of nothing.
        if !self.pending.is_empty() || self.bytes == 0 {
            self.put_part().await?;
        }
        let finished = self.parts.complete().await;
        finished.map_err(|e| access("finishing", &self.path, e))?;
        Ok(Uploaded {
            bytes: self.bytes,
            sha256: hex::encode(self.digest.finalize()),
        })
    }

    async fn put_part(&mut self) -> Result<(), StoreError> {
        let part = std::mem::take(&mut self.pending);
        if let Err(error) = self.parts.put_part(part.into()).await {
            // Room for the next try; the error is the one to report.
            let _ = self.parts.abort().await;
            return Err(access("writing", &self.path, error));
        }
        Ok(())
    }
}
