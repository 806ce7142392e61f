//! A model's folder, or a dataset's file, in a bucket: listed once, then downloaded as listed.
//!
//! Every request names the ETag of the listing. So an object that is replaced during a download causes an error, never
//! a file of mixed bytes. [`grpo_hub::snapshot`] caches the files, as it does for a hub.

use crate::bucket_error::{BucketError, Failed};
use crate::credentials::Credentials;
use crate::open::{Opened, open};
use futures::{StreamExt as _, TryStreamExt as _};
use grpo_crds::sources::ObjectStoreSource;
use grpo_hub::source::{ByteStream, Refused};
use grpo_hub::{Commit, Digest, FileSource, Pin, RemoteFile, model};
use object_store::path::Path as Location;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _};
use sha2::Digest as _;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Maximum objects below a model's folder. More objects are several models, or something else.
pub const MOST_OBJECTS: usize = 10_000;

/// The kind of content at a bucket's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A folder with `config.json`, tokenizer and weights.
    Model,
    /// One file of rows.
    Dataset,
}

impl Content {
    /// The field of the spec for this content.
    fn field(self) -> &'static str {
        match self {
            Self::Model => "model.objectStore",
            Self::Dataset => "dataset.objectStore",
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Dataset => "dataset",
        })
    }
}

/// The files of a model or a dataset in a bucket. `Display` shows its kind and URL, such as `model s3://bucket/folder`.
#[derive(Clone)]
pub struct BucketFiles {
    content: Content,
    url: String,
    endpoint: Option<String>,
    objects: Arc<dyn ObjectStore>,
    /// The folder; for a dataset, the object.
    location: Location,
}

impl BucketFiles {
    /// Opens a bucket with the credentials of a mounted Secret; without a Secret, with those of this process.
    pub async fn open(
        content: Content,
        source: &ObjectStoreSource,
        credentials: Option<&Path>,
    ) -> Result<Self, BucketError> {
        let field = content.field();
        let failed = |error| BucketError::Open { field, source: error };
        let credentials = Credentials::of_bucket(&source.url, credentials).map_err(|error| failed(error.into()))?;
        let opened = open(source, &credentials).await.map_err(failed)?;
        Self::of(content, source, opened)
    }

    /// From an open bucket.
    pub fn of(content: Content, source: &ObjectStoreSource, opened: Opened) -> Result<Self, BucketError> {
        let url = source.url.trim_end_matches('/').to_owned();
        let field = content.field();
        let location = Location::parse(&opened.prefix).map_err(|error| BucketError::Name {
            field,
            url: url.clone(),
            name: error.to_string(),
        })?;
        Ok(Self {
            content,
            url,
            endpoint: source.endpoint.clone(),
            objects: opened.objects,
            location,
        })
    }

    /// Pins the current objects.
    pub async fn pin(&self) -> Result<Pin, BucketError> {
        let mut files = match self.content {
            Content::Model => self.model().await?,
            Content::Dataset => vec![self.dataset().await?],
        };
        files.sort_by(|one, other| one.path.cmp(&other.path));
        let commit = Commit::of_listing(&files);
        Ok(Pin { commit, files })
    }

    async fn model(&self) -> Result<Vec<RemoteFile>, BucketError> {
        let mut listing = self.objects.list(Some(&self.location));
        let (mut found, mut all) = (Vec::new(), 0);
        while let Some(object) = listing.try_next().await.map_err(|error| self.failed(error))? {
            all += 1;
            if all > MOST_OBJECTS {
                let (field, url) = self.named();
                return Err(BucketError::Many { field, url });
            }
            let path = object.location.as_ref();
            let path = path.strip_prefix(self.location.as_ref()).unwrap_or(path);
            // Some tools create an empty object with the name of the folder.
            let path = path.strip_prefix('/').unwrap_or(path);
            if !path.is_empty() {
                found.push(self.file(path, &object)?);
            }
        }
        model::chosen(&found).map_err(|lacking| {
            let (field, url) = self.named();
            BucketError::Lacking {
                field,
                url,
                objects: all,
                lacking,
            }
        })
    }

    async fn dataset(&self) -> Result<RemoteFile, BucketError> {
        let object = self.objects.head(&self.location).await;
        let object = object.map_err(|error| self.failed(error))?;
        self.file(self.location.filename().unwrap_or_default(), &object)
    }

    fn file(&self, path: &str, object: &ObjectMeta) -> Result<RemoteFile, BucketError> {
        let (field, url) = self.named();
        let Some(tag) = object.e_tag.clone() else {
            let object = object.location.to_string();
            return Err(BucketError::NoTag { field, url, object });
        };
        let refused = || BucketError::Name {
            field,
            url: url.clone(),
            name: format!("{path:?}"),
        };
        RemoteFile::listed(path, object.size, Digest::ETag(tag)).ok_or_else(refused)
    }

    /// The pinned version of an object, as a request names it.
    fn condition(&self, tag: &str) -> String {
        // Azure's listing omits the quotes that its other answers have.
        match self.url.starts_with("az://") && !tag.contains('"') {
            true => format!("\"{tag}\""),
            false => tag.to_owned(),
        }
    }

    fn object(&self, file: &RemoteFile) -> Result<Location, BucketError> {
        let path = match self.content {
            Content::Dataset => return Ok(self.location.clone()),
            Content::Model => format!("{}/{}", self.location, file.path),
        };
        Location::parse(path).map_err(|error| self.failed(error.into()))
    }

    fn changed(&self, file: &RemoteFile) -> BucketError {
        let (field, url) = self.named();
        let path = file.path.clone();
        BucketError::Changed { field, url, path }
    }

    fn named(&self) -> (&'static str, String) {
        (self.content.field(), self.url.clone())
    }

    fn failed(&self, error: object_store::Error) -> BucketError {
        let (field, url) = self.named();
        Failed { field, url, error }.into()
    }
}

impl fmt::Display for BucketFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.content, self.url)
    }
}

impl FileSource for BucketFiles {
    /// The client itself retries a request for minutes.
    const ATTEMPTS: u32 = 3;

    fn folder(&self) -> String {
        let (_, path) = self.url.split_once("://").unwrap_or_default();
        let bucket = path.split('/').next().unwrap_or_default();
        let endpoint = self.endpoint.as_deref().unwrap_or_default();
        let mut checksum = hex::encode(sha2::Sha256::digest(format!("{}\0{endpoint}", self.url)));
        checksum.truncate(16);
        format!("objects--{bucket}--{checksum}")
    }

    async fn bytes(&self, _: &Commit, file: &RemoteFile, from: u64) -> Result<(u64, ByteStream), Refused> {
        let Digest::ETag(tag) = &file.digest else {
            return Err(Refused::from(self.changed(file).into_source()));
        };
        let options = GetOptions {
            range: (from > 0).then_some(GetRange::Offset(from)),
            if_match: Some(self.condition(tag)),
            ..GetOptions::default()
        };
        let object = self.object(file).map_err(|error| Refused::from(error.into_source()))?;
        let found = self.objects.get_opts(&object, options).await;
        let found = found.map_err(|error| match error {
            object_store::Error::Precondition { .. } | object_store::Error::NotFound { .. } => self.changed(file),
            error => self.failed(error),
        });
        let found = found.map_err(|error| Refused::from(error.into_source()))?;
        // Some servers that speak S3 ignore the condition.
        let is_wanted = found
            .meta
            .e_tag
            .as_deref()
            .is_some_and(|found| plain(found) == plain(tag));
        if !is_wanted || found.meta.size != file.size {
            return Err(Refused::from(self.changed(file).into_source()));
        }
        let (begins, this) = (found.range.start, self.clone());
        let stream = found.into_stream();
        let stream = stream.map(move |part| part.map_err(|error| this.failed(error).into_source()));
        Ok((begins, stream.boxed()))
    }
}

/// An ETag without its quotes.
fn plain(tag: &str) -> &str {
    tag.trim_matches('"')
}

#[cfg(test)]
mod tests;
