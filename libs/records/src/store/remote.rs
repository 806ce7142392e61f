//! A store in a bucket.
//!
//! A name is created by a conditional put (`If-None-Match: *`), which a server accepts once. The answer may be lost.
//! Every file therefore carries a token of the call that wrote it. If a call's answer is lost, or its second try is
//! refused, the call reads the token of the file.
//!
//! A file under a claim is a multipart upload to its final name, invisible until it is completed. Discarding aborts the
//! upload: a server completes or aborts one upload, never both. So nothing is copied, and files may be larger than the
//! 5 GiB that S3 copies. A small file in the claim's folder, the note, names the upload. Each try of a file has a note
//! of its own: if a try fails and its abort does too, a withdrawal of the claim still finds its upload. Two server
//! behaviours need care: servers acknowledge the completion of an unknown upload if the name exists, and they do not
//! abort an upload that they are just assembling. The token shows what happened.
//!
//! Azure has no uploads that can be aborted: blocks belong to the name of a file, and a process that knows their ids
//! can commit them at any time. A condition can refuse a late commit only if something exists at that name, where
//! readers would see it. So on Azure nothing is written under a claim.

use super::error::{StoreError, access, missing_or};
use super::io::needs_io_threads;
use super::named_upload::{NamedUpload, ServerUpload, WRITTEN_BY, writer_of};
use super::{Created, Staged, Store, Upload, at, is_gone, sha256_hex};
use crate::paths::is_plain_name;
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::multipart::MultipartStore;
use object_store::path::Path as StorePath;
use object_store::prefix::PrefixStore;
use object_store::{Attributes, GetOptions, MultipartId, ObjectStore, PutMode, PutMultipartOptions, PutOptions};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Tries of a write whose answer is lost; in addition, the client retries each request for minutes.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);
/// Listed files that are read or deleted concurrently.
const AT_A_TIME: usize = 16;
/// How long a server may take to assemble an upload, and how often this is checked.
const ASSEMBLY: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(250);
/// The folder of [`RemoteStore::probe`].
const PROBES: &str = ".probe";

/// A folder of a bucket.
pub struct RemoteStore {
    objects: PrefixStore<Arc<dyn ObjectStore>>,
    parts: Option<Arc<dyn MultipartStore>>,
    root: StorePath,
    location: String,
}

/// Names an upload under a claim; stored in the claim's folder.
#[derive(Serialize, Deserialize)]
struct UploadNote {
    path: String,
    upload: MultipartId,
    token: String,
}

impl RemoteStore {
    /// The folder `root` (such as `namespace/name`) below `prefix` of a bucket. `parts` are the bucket's multipart
    /// uploads, if an aborted one cannot be completed; without `parts` nothing is written under a claim. `location`
    /// names the folder in messages.
    pub fn new(
        objects: Arc<dyn ObjectStore>,
        parts: Option<Arc<dyn MultipartStore>>,
        prefix: &str,
        root: &str,
        location: String,
    ) -> Result<Self, StoreError> {
        if root.is_empty() || !root.split('/').all(is_plain_name) {
            return Err(StoreError::Root { path: root.to_owned() });
        }
        Self::prepare()?;
        let root: StorePath = StorePath::from(prefix)
            .parts()
            .chain(StorePath::from(root).parts())
            .collect();
        Ok(Self {
            objects: PrefixStore::new(objects, root.clone()),
            parts,
            root,
            location,
        })
    }

    /// Lets [`wait`](super::wait) wait for buckets too, on threads without a runtime. Opening a bucket also does this.
    pub fn prepare() -> Result<(), StoreError> {
        needs_io_threads()
    }

    /// Checks that the server keeps this store's assumptions: a name is created once, and an aborted upload is never
    /// completed. Some servers that speak S3 silently ignore one or the other.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let path = format!("{PROBES}/{}", token());
        let lacks = |what: &'static str| StoreError::Guarantee {
            location: self.location.clone(),
            what,
        };
        for (bytes, first) in [("one", true), ("two", false)] {
            let created = self.create_bytes(&path, Bytes::from_static(bytes.as_bytes())).await?;
            if (created != Created::Existed) != first {
                return Err(lacks(
                    "a name that exists can be created again (it ignores If-None-Match)",
                ));
            }
        }
        if self.parts.is_some() {
            let staged = format!("{path}.staged");
            let mut upload = self.stage(&format!("{staged}/note"), &path).await?;
            upload.write(b"three").await?;
            upload.arrive().await?;
            self.discard_folder(&staged).await?;
            if upload.name(self).await.is_ok() {
                return Err(lacks("an upload that was aborted can be completed"));
            }
        }
        self.delete(&path).await
    }

    /// The token of the file's writer; `None` if the file does not exist.
    async fn writer_of(&self, path: &str) -> Result<Option<String>, StoreError> {
        writer_of(&self.objects, &at(path))
            .await
            .map_err(|e| access("looking at", path, e))
    }

    fn full(&self, path: &str) -> StorePath {
        self.root.parts().chain(at(path).parts()).collect()
    }

    fn uploads(&self) -> Result<&Arc<dyn MultipartStore>, StoreError> {
        let lacks = || StoreError::Guarantee {
            location: self.location.clone(),
            what: "an upload that was aborted can be completed",
        };
        self.parts.as_ref().ok_or_else(lacks)
    }

    async fn abort(&self, staged: &str) -> Result<(), StoreError> {
        let note = match self.bytes(staged).await {
            Err(StoreError::Missing { .. }) => return Ok(()),
            note => note?,
        };
        // The file that marks a claim as held names no upload.
        if let Ok(note) = serde_json::from_slice::<UploadNote>(&note) {
            let aborted = self
                .uploads()?
                .abort_multipart(&self.full(&note.path), &note.upload)
                .await;
            match aborted {
                Ok(()) => {}
                Err(object_store::Error::NotFound { .. }) => self.settled(&note, staged).await?,
                Err(error) => return Err(access("aborting the upload of", &note.path, error)),
            }
        }
        self.delete(staged).await
    }

    /// Waits until an upload that the server no longer knows has its name, or has had time to get it. Its writer may
    /// have aborted it at the same time, and then removes the note.
    async fn settled(&self, note: &UploadNote, staged: &str) -> Result<(), StoreError> {
        let since = tokio::time::Instant::now();
        while since.elapsed() < ASSEMBLY
            && self.writer_of(&note.path).await?.as_ref() != Some(&note.token)
            && self.length(staged).await?.is_some()
        {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Store for RemoteStore {
    fn objects(&self) -> &dyn ObjectStore {
        &self.objects
    }

    fn location(&self) -> String {
        self.location.clone()
    }

    async fn create_bytes(&self, path: &str, bytes: Bytes) -> Result<Created, StoreError> {
        let sha256 = sha256_hex(&bytes);
        let token = token();
        let mut tries = 0;
        loop {
            tries += 1;
            let options = PutOptions {
                mode: PutMode::Create,
                attributes: written_by(&token),
                ..PutOptions::default()
            };
            let put = self.objects.put_opts(&at(path), bytes.clone().into(), options).await;
            let refused = match put {
                Ok(_) => return Ok(Created::Written { sha256 }),
                Err(refused) => refused,
            };
            // A refused request may be the second try of one that succeeded; a lost answer may be of a request that
            // succeeded.
            let Ok(writer) = self.writer_of(path).await else {
                return Err(access("creating", path, refused));
            };
            match writer {
                Some(writer) if writer == token => return Ok(Created::Written { sha256 }),
                Some(_) => return Ok(Created::Existed),
                // A server may answer with a conflict although the concurrent request failed too.
                None if tries < TRIES && may_pass(&refused) => tokio::time::sleep(PAUSE * tries).await,
                None => return Err(access("creating", path, refused)),
            }
        }
    }

    async fn upload(&self, path: &str) -> Result<Upload, StoreError> {
        match &self.parts {
            Some(_) => Ok(self.begin(path, token(), None).await?.0),
            None => Upload::begin(&self.objects, path).await,
        }
    }

    async fn stage(&self, staged: &str, path: &str) -> Result<Staged, StoreError> {
        let token = token();
        let staged = format!("{staged}.{token}");
        let (upload, note) = self.begin(path, token, Some(&staged)).await?;
        let note = serde_json::to_vec(&note).map_err(|source| StoreError::Unwritable {
            path: staged.clone(),
            source,
        })?;
        self.replace(&staged, note.into()).await?;
        Ok(Staged::in_place(upload, &staged, path))
    }

    async fn discard_folder(&self, folder: &str) -> Result<(), StoreError> {
        let staged = self.list(folder).await?;
        let aborted = futures::stream::iter(staged).map(|file| async move { self.abort(&file.path).await });
        aborted.buffer_unordered(AT_A_TIME).try_collect().await
    }

    /// One request: rank 0 checks a whole checkpoint when it seals it.
    async fn checksum(&self, path: &str) -> Result<String, StoreError> {
        let got = self.objects.get_opts(&at(path), GetOptions::default()).await;
        let mut bytes = got.map_err(|e| missing_or("reading", path, e))?.into_stream();
        let mut digest = Sha256::new();
        while let Some(piece) = bytes.try_next().await.map_err(|e| access("reading", path, e))? {
            digest.update(&piece);
        }
        Ok(hex::encode(digest.finalize()))
    }

    async fn delete_folder(&self, folder: &str) -> Result<(), StoreError> {
        let listed = self.list(folder).await?;
        let paths = futures::stream::iter(listed.into_iter().map(|file| Ok(at(&file.path)))).boxed();
        let mut deleted = self.objects.delete_stream(paths);
        while let Some(deleted) = deleted.next().await {
            match deleted {
                Ok(_) => {}
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(access("deleting", folder, error)),
            }
        }
        Ok(())
    }
}

impl RemoteStore {
    /// Begins an upload. `staged` is the path of its note, which the caller writes; without a claim there is no note.
    async fn begin(&self, path: &str, token: String, staged: Option<&str>) -> Result<(Upload, UploadNote), StoreError> {
        let uploads = self.uploads()?.clone();
        let options = PutMultipartOptions {
            attributes: written_by(&token),
            ..PutMultipartOptions::default()
        };
        let full = self.full(path);
        let begun = uploads.create_multipart_opts(&full, options).await;
        let id = begun.map_err(|e| access("beginning", path, e))?;
        let upload = ServerUpload {
            objects: self.objects.clone(),
            uploads,
            full,
            id: id.clone(),
            note: staged.map(at),
        };
        let parts = NamedUpload::new(upload, at(path), token.clone());
        let note = UploadNote {
            path: path.to_owned(),
            upload: id,
            token,
        };
        Ok((Upload::of(Box::new(parts), path), note))
    }
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_tuple("RemoteStore").field(&self.location).finish()
    }
}

fn written_by(token: &str) -> Attributes {
    Attributes::from_iter([(WRITTEN_BY, token.to_owned())])
}

/// A name that is unique to one call.
fn token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Whether a retry may help: for generic errors and conflicts, not for refused permissions.
fn may_pass(error: &object_store::Error) -> bool {
    use object_store::Error;
    matches!(
        error,
        Error::Generic { .. } | Error::AlreadyExists { .. } | Error::Precondition { .. }
    )
}
