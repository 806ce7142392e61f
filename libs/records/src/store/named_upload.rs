//! A multipart upload to a bucket that other processes can abort by its id.
//!
//! Parts of an unfinished upload cost storage, and no listing of files shows them. So an upload that fails or is
//! dropped aborts itself. The store's own threads send the abort: the caller's thread may have no runtime, and a retry
//! must not wait for a server that does not answer. A server may store a part that was on its way when the abort came,
//! so the abort is repeated while the process runs. A killed process cannot abort. Then a withdrawal of its claim
//! aborts the uploads under the claim, and a lifecycle rule of the bucket removes the parts of others.

use super::io::in_background;
use async_trait::async_trait;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as StorePath;
use object_store::prefix::PrefixStore;
use object_store::{
    Attribute, GetOptions, MultipartId, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, PutResult, UploadPart,
};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The attribute with the token of the call that wrote a file. Azure accepts only C# identifiers as names, and proxies
/// drop headers with an underscore.
pub(super) const WRITTEN_BY: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("writtenby"));
/// How long the report of a failure waits for the abort.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the abort is tried: a server that is away when a part fails may return.
const TRYING: Duration = Duration::from_secs(300);
/// The first pause between tries; each pause is twice as long as the one before.
const PAUSE: Duration = Duration::from_secs(1);
/// The pauses before the repeated aborts, for parts that were on their way when the first abort came.
const LATE: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(16)];

/// An upload in progress.
pub(super) struct NamedUpload {
    upload: ServerUpload,
    /// Below the store's root.
    path: StorePath,
    token: String,
    parts: Arc<Mutex<Vec<Option<PartId>>>>,
    begun: usize,
    /// Completed, or its abort has begun.
    ended: bool,
}

/// Identifies an upload to the server.
#[derive(Clone)]
pub(super) struct ServerUpload {
    pub objects: PrefixStore<Arc<dyn ObjectStore>>,
    pub uploads: Arc<dyn MultipartStore>,
    /// Below the bucket's root.
    pub full: StorePath,
    pub id: MultipartId,
    /// The file that names the upload to other processes, for an upload under a claim. No other upload has this note.
    pub note: Option<StorePath>,
}

impl ServerUpload {
    /// Returns when the server has confirmed an abort, or knows no upload of this id.
    async fn abort(&self) {
        let mut pause = PAUSE;
        loop {
            match self.uploads.abort_multipart(&self.full, &self.id).await {
                Ok(()) => break,
                // The server may be just assembling it: a withdrawal of the claim needs the note to wait for that.
                Err(object_store::Error::NotFound { .. }) => return,
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause *= 2;
        }
        if let Some(note) = &self.note {
            // A note that remains costs the withdrawal of the claim some seconds.
            let _ = self.objects.delete(note).await;
        }
    }

    /// Removes the parts that the server stored after the abort. S3 recommends the repetition: its answer does not say
    /// whether such parts remain.
    async fn abort_late_parts(&self) {
        for pause in LATE {
            tokio::time::sleep(pause).await;
            // Without late parts the server finds no upload. A lifecycle rule removes what this leaves.
            let _ = self.uploads.abort_multipart(&self.full, &self.id).await;
        }
    }
}

impl NamedUpload {
    pub(super) fn new(upload: ServerUpload, path: StorePath, token: String) -> Self {
        Self {
            upload,
            path,
            token,
            parts: Arc::default(),
            begun: 0,
            ended: false,
        }
    }

    /// Aborts in the background; `None` if the upload has ended. The result is whether the server has confirmed it.
    fn begin_abort(&mut self) -> Option<JoinHandle<bool>> {
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        // Also if all parts were answered: a request that was repeated may still be under way.
        let (upload, has_parts) = (self.upload.clone(), self.begun > 0);
        in_background(async move {
            let is_confirmed = tokio::time::timeout(TRYING, upload.abort()).await.is_ok();
            if is_confirmed && has_parts {
                // Separately: the report of a failure waits for the first abort only.
                in_background(async move { upload.abort_late_parts().await });
            }
            is_confirmed
        })
    }

    fn aborted(&self) -> object_store::Error {
        object_store::Error::NotFound {
            path: self.path.to_string(),
            source: "the upload was aborted".into(),
        }
    }
}

impl Drop for NamedUpload {
    fn drop(&mut self) {
        // The abort continues without its handle.
        drop(self.begin_abort());
    }
}

impl fmt::Debug for NamedUpload {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("NamedUpload").field("path", &self.path).finish()
    }
}

#[async_trait]
impl MultipartUpload for NamedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (upload, parts) = (self.upload.clone(), self.parts.clone());
        let index = self.begun;
        self.begun += 1;
        Box::pin(async move {
            let part = upload.uploads.put_part(&upload.full, &upload.id, index, data).await?;
            let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
            let length = parts.len().max(index + 1);
            parts.resize(length, None);
            parts[index] = Some(part);
            Ok(())
        })
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        if self.ended {
            // The abort may not have reached the server, and a part may be missing.
            return Err(self.aborted());
        }
        let parts = std::mem::take(&mut *self.parts.lock().unwrap_or_else(PoisonError::into_inner));
        let parts = parts.into_iter().flatten().collect();
        let ServerUpload {
            objects,
            uploads,
            full,
            id,
            ..
        } = &self.upload;
        let completed = uploads.complete_multipart(full, id, parts).await;
        // If the first request succeeded and its answer was lost, the second finds no upload.
        let writer = writer_of(objects, &self.path).await;
        let completed = match (completed, writer) {
            (completed, Ok(Some(writer))) if writer == self.token => completed.or_else(|_| {
                Ok(PutResult {
                    e_tag: None,
                    version: None,
                    extensions: Default::default(),
                })
            }),
            (Ok(_), Ok(_)) => Err(self.aborted()),
            (Ok(_), Err(error)) | (Err(error), _) => Err(error),
        };
        self.ended = completed.is_ok();
        completed
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        let Some(aborting) = self.begin_abort() else {
            return Ok(());
        };
        match tokio::time::timeout(ANSWER, aborting).await {
            Ok(Ok(true)) => Ok(()),
            _ => Err(object_store::Error::Generic {
                store: "bucket",
                source: "the server has not confirmed the abort of an upload".into(),
            }),
        }
    }
}

/// The token of a file; empty if the file has no token, `None` if there is no file.
pub(super) async fn writer_of(objects: &dyn ObjectStore, path: &StorePath) -> object_store::Result<Option<String>> {
    let options = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    match objects.get_opts(path, options).await {
        Ok(found) => Ok(Some(
            found
                .attributes
                .get(&WRITTEN_BY)
                .map_or_else(String::new, |token| token.as_ref().to_owned()),
        )),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
