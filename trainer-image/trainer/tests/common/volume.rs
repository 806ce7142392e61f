//! A volume that is full, or does not answer for a while.

use std::io;
use std::path::Path as Folder;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use futures::stream::BoxStream;
use grpo_records::RunStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, UploadPart,
};

/// EIO.
const INPUT_OUTPUT: i32 = 5;

/// How a volume fails now.
#[derive(Debug, Default)]
pub struct Faults {
    /// Nothing can be written.
    pub full: AtomicBool,
    /// How many of the next reads and writes fail.
    pub silent: AtomicU32,
    /// How many of the next uploads fail when they are completed.
    pub cut: AtomicU32,
}

impl Faults {
    fn read(&self) -> object_store::Result<()> {
        match taken(&self.silent) {
            true => Err(error(io::Error::from_raw_os_error(INPUT_OUTPUT))),
            false => Ok(()),
        }
    }

    fn write(&self) -> object_store::Result<()> {
        match self.full.load(Ordering::Relaxed) {
            true => Err(error(io::ErrorKind::StorageFull.into())),
            false => self.read(),
        }
    }

    fn complete(&self) -> object_store::Result<()> {
        match taken(&self.cut) {
            true => Err(error(io::Error::from_raw_os_error(INPUT_OUTPUT))),
            false => self.write(),
        }
    }
}

/// Takes one of the faults that are left.
fn taken(left: &AtomicU32) -> bool {
    let one_less = |left: u32| left.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
        .is_ok()
}

fn error(source: io::Error) -> object_store::Error {
    let source = Box::new(source);
    object_store::Error::Generic { store: "local", source }
}

#[derive(Debug)]
pub struct Volume {
    files: LocalFileSystem,
    faults: Arc<Faults>,
}

impl Volume {
    /// The store in a folder.
    pub fn of(folder: &Folder) -> (RunStore, Arc<Faults>) {
        let faults: Arc<Faults> = Arc::default();
        let volume: Arc<dyn grpo_records::Store> = Arc::new(Self {
            files: LocalFileSystem::new_with_prefix(folder).unwrap(),
            faults: faults.clone(),
        });
        (volume.into(), faults)
    }
}

impl std::fmt::Display for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.files.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Volume {
    async fn put_opts(&self, to: &Path, bytes: PutPayload, options: PutOptions) -> object_store::Result<PutResult> {
        self.faults.write()?;
        self.files.put_opts(to, bytes, options).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.faults.write()?;
        Ok(Box::new(Parts {
            upload: self.files.put_multipart_opts(to, options).await?,
            faults: self.faults.clone(),
        }))
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.faults.read()?;
        self.files.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.files.delete_stream(paths)
    }

    fn list(&self, below: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.files.list(below)
    }

    async fn list_with_delimiter(&self, below: Option<&Path>) -> object_store::Result<ListResult> {
        self.faults.read()?;
        self.files.list_with_delimiter(below).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.files.copy_opts(from, to, options).await
    }
}

impl grpo_records::Store for Volume {
    fn objects(&self) -> &dyn ObjectStore {
        self
    }

    fn location(&self) -> String {
        "a volume that may fail".to_owned()
    }
}

/// An upload that may fail after it began.
#[derive(Debug)]
struct Parts {
    upload: Box<dyn MultipartUpload>,
    faults: Arc<Faults>,
}

#[async_trait]
impl MultipartUpload for Parts {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        self.faults.complete()?;
        self.upload.complete().await
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.upload.abort().await
    }
}
