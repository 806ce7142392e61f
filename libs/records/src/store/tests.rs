//! The guarantees of every backend, on a volume and on a bucket in memory; behaviour specific to a volume, and errors.

use super::*;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta, PutMultipartOptions,
    PutPayload, PutResult,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bucket in memory. If the second field is true, its server ignores aborts of uploads.
#[derive(Debug, Default)]
struct Memory(InMemory, bool);

#[async_trait]
impl MultipartStore for Memory {
    async fn create_multipart(&self, path: &StorePath) -> object_store::Result<MultipartId> {
        self.0.create_multipart(path).await
    }

    async fn create_multipart_opts(
        &self,
        path: &StorePath,
        options: PutMultipartOptions,
    ) -> object_store::Result<MultipartId> {
        self.0.create_multipart_opts(path, options).await
    }

    async fn put_part(
        &self,
        path: &StorePath,
        id: &MultipartId,
        index: usize,
        data: PutPayload,
    ) -> object_store::Result<PartId> {
        self.0.put_part(path, id, index, data).await
    }

    async fn complete_multipart(
        &self,
        path: &StorePath,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> object_store::Result<PutResult> {
        self.0.complete_multipart(path, id, parts).await
    }

    /// Returns the error of servers that do not know the upload.
    async fn abort_multipart(&self, path: &StorePath, id: &MultipartId) -> object_store::Result<()> {
        let missing = |source: object_store::Error| object_store::Error::NotFound {
            path: path.to_string(),
            source: source.into(),
        };
        match self.1 {
            true => Ok(()),
            false => self.0.abort_multipart(path, id).await.map_err(missing),
        }
    }
}

/// A folder of a bucket in memory.
pub(super) fn in_memory() -> RunStore {
    let bucket = Arc::new(InMemory::new());
    let uploads: Arc<dyn MultipartStore> = Arc::new(Memory(bucket.as_ref().clone(), false));
    let store = RemoteStore::new(bucket, Some(uploads), "prefix", "team/demo", "memory://".to_owned());
    RunStore::from(Arc::new(store.unwrap()) as Arc<dyn Store>)
}

#[tokio::test]
async fn a_server_that_completes_what_was_aborted_is_found_out_by_the_probe() {
    for (forgets, wanted) in [(false, ""), (true, "an upload that was aborted can be completed")] {
        let bucket = Arc::new(InMemory::new());
        let uploads: Arc<dyn MultipartStore> = Arc::new(Memory(bucket.as_ref().clone(), forgets));
        let store = RemoteStore::new(bucket, Some(uploads), "prefix", "team/demo", "memory://".to_owned()).unwrap();
        let found = store
            .probe()
            .await
            .map_or_else(|error| error.to_string(), |()| String::new());
        assert!(
            found.contains(wanted) && found.is_empty() == wanted.is_empty(),
            "{found}"
        );
    }
}

#[test]
fn only_an_answer_that_a_file_is_not_there_means_that_it_is_deleted() {
    let refused = |code: &str| object_store::Error::Generic {
        store: "S3",
        source: format!("Error performing DeleteObjects request: {code}").into(),
    };
    assert!(is_gone(&refused("NoSuchKey")));
    assert!(!is_gone(&refused("AccessDenied")));
}

/// Azure refuses a hyphen, and proxies such as nginx drop an underscore.
#[test]
fn the_name_of_a_files_token_is_one_that_every_server_takes() {
    let object_store::Attribute::Metadata(name) = named_upload::WRITTEN_BY else {
        panic!("the token is no metadata");
    };
    assert!(name.chars().all(|letter| letter.is_ascii_lowercase()), "{name}");
}

#[tokio::test]
async fn a_server_that_creates_a_name_again_is_found_out_by_the_probe() {
    let (bucket, location) = (Arc::new(Careless::default()), "memory://".to_owned());
    let store = RemoteStore::new(bucket, None, "prefix", "team/demo", location).unwrap();
    let found = store.probe().await.unwrap_err().to_string();
    assert!(found.contains("If-None-Match"), "{found}");
}

#[tokio::test]
async fn a_page_of_a_bucket_reads_no_more_entries_than_it_has() {
    let bucket = Arc::new(Careless::default());
    let store = RemoteStore::new(bucket.clone(), None, "prefix", "team/demo", "memory://".to_owned()).unwrap();
    for number in 0..100 {
        store.replace(&format!("x/{number:03}"), Bytes::new()).await.unwrap();
    }
    for (after, first) in [(None, "x/000"), (Some("x/079"), "x/080")] {
        let before = bucket.1.load(Ordering::SeqCst);
        let page = store.list_after("x", after, 10).await.unwrap();
        assert_eq!((page.len(), page[0].path.as_str()), (10, first));
        assert_eq!(bucket.1.load(Ordering::SeqCst) - before, 10);
    }
}

/// A folder with a link to itself cannot be listed.
#[tokio::test]
async fn a_page_of_a_volume_opens_no_folder_before_or_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = RunStore::make(dir.path()).unwrap();
    for folder in 1..=5 {
        for file in ["a", "b"] {
            store.create_bytes(&format!("x/{folder}/{file}"), "").await.unwrap();
        }
    }
    for folder in [1, 5] {
        let link = dir.path().join(format!("x/{folder}/link"));
        std::os::unix::fs::symlink(&link, &link).unwrap();
    }
    let page = store.list_after("x", Some("x/2/a"), 4).await.unwrap();
    let paths: Vec<&str> = page.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["x/2/b", "x/3/a", "x/3/b", "x/4/a"]);
    assert!(store.list_after("x", None, 4).await.is_err());
}

/// A bucket whose server treats every create as a replacement. It counts the entries that it lists.
#[derive(Debug, Default)]
struct Careless(InMemory, Arc<AtomicUsize>);

impl std::fmt::Display for Careless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("careless")
    }
}

impl Careless {
    fn count(
        &self,
        listed: BoxStream<'static, object_store::Result<ObjectMeta>>,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let count = self.1.clone();
        let counted = listed.inspect_ok(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        Box::pin(counted)
    }
}

#[async_trait]
impl ObjectStore for Careless {
    async fn put_opts(
        &self,
        to: &StorePath,
        bytes: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let mode = PutMode::Overwrite;
        self.0.put_opts(to, bytes, PutOptions { mode, ..options }).await
    }

    async fn put_multipart_opts(
        &self,
        to: &StorePath,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(to, options).await
    }

    async fn get_opts(&self, from: &StorePath, options: GetOptions) -> object_store::Result<GetResult> {
        self.0.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<StorePath>>,
    ) -> BoxStream<'static, object_store::Result<StorePath>> {
        self.0.delete_stream(paths)
    }

    fn list(&self, below: Option<&StorePath>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.count(self.0.list(below))
    }

    fn list_with_offset(
        &self,
        below: Option<&StorePath>,
        offset: &StorePath,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.count(self.0.list_with_offset(below, offset))
    }

    async fn list_with_delimiter(&self, below: Option<&StorePath>) -> object_store::Result<ListResult> {
        self.0.list_with_delimiter(below).await
    }

    async fn copy_opts(&self, from: &StorePath, to: &StorePath, options: CopyOptions) -> object_store::Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

macro_rules! on_every_backend {
    ($($guarantee:ident),* $(,)?) => {
        mod on_a_volume {
            $(#[tokio::test]
            async fn $guarantee() {
                let mount = tempfile::tempdir().unwrap();
                super::conformance::$guarantee(super::RunStore::open(mount.path(), "team/demo").unwrap()).await;
            })*
        }
        mod in_memory {
            $(#[tokio::test]
            async fn $guarantee() {
                super::conformance::$guarantee(super::in_memory()).await;
            })*
        }
    };
}

crate::store_guarantees!(on_every_backend);

#[test]
fn a_full_volume_is_named_with_what_to_do() {
    let failed = |kind: std::io::ErrorKind| {
        let source = Box::new(std::io::Error::from(kind));
        access(
            "writing",
            "journal/1",
            object_store::Error::Generic { store: "local", source },
        )
        .to_string()
    };
    assert!(failed(std::io::ErrorKind::StorageFull).contains("enlarge its volume claim"));
    assert!(!failed(std::io::ErrorKind::PermissionDenied).contains("enlarge"));
}

#[tokio::test]
async fn a_file_lies_below_the_mount_where_its_path_says() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "team/demo").unwrap();
    store.create_bytes("a/b.txt", "one").await.unwrap();
    assert_eq!(std::fs::read(mount.path().join("team/demo/a/b.txt")).unwrap(), b"one");
}

#[test]
fn a_root_that_climbs_out_is_refused() {
    let mount = tempfile::tempdir().unwrap();
    for root in ["../other", "", "/etc", "a//b", "a/.."] {
        assert!(matches!(
            RunStore::open(mount.path(), root),
            Err(StoreError::Root { .. })
        ));
    }
}

#[tokio::test]
async fn no_path_climbs_out_of_the_store() {
    let mount = tempfile::tempdir().unwrap();
    std::fs::write(mount.path().join("secret"), "s").unwrap();
    let store = RunStore::open(mount.path(), "team/demo").unwrap();
    for path in ["../../secret", "/../../secret", "x/../../../secret"] {
        assert!(store.bytes(path).await.is_err(), "{path}");
        let _ = store.append(path, Bytes::from_static(b"x")).await;
        let _ = store.delete(path).await;
        let _ = store.delete_folder("../..").await;
        assert_eq!(std::fs::read(mount.path().join("secret")).unwrap(), b"s", "{path}");
    }
}

#[tokio::test]
async fn a_volume_gives_the_file_itself_to_readers_of_paths() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "team/demo").unwrap();
    store.create_bytes("grade.log", "1 passed").await.unwrap();
    let file = store.local_copy("grade.log").await.unwrap();
    assert_eq!(file.path(), mount.path().join("team/demo/grade.log"));
}

#[test]
fn a_thread_without_a_runtime_waits_for_its_answers() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "team/demo").unwrap();
    wait(store.append("log", Bytes::from_static(b"one"))).unwrap();
    assert_eq!(wait(store.bytes("log")).unwrap(), "one");
    wait(store.delete("log")).unwrap();
    assert_eq!(wait(store.length("log")).unwrap(), None);
}

#[tokio::test]
async fn a_folder_is_deleted_while_another_thread_writes_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = RunStore::make(dir.path()).unwrap();
    for round in 0..50 {
        let folder = dir.path().join(format!("staged/{round}"));
        std::fs::create_dir_all(&folder).unwrap();
        let writes = std::thread::spawn(move || {
            // Until the folder is gone.
            (0..)
                .take_while(|number| std::fs::write(folder.join(number.to_string()), "").is_ok())
                .count()
        });
        store.delete_folder(&format!("staged/{round}")).await.unwrap();
        writes.join().unwrap();
        assert!(!store.exists(&format!("staged/{round}")).await.unwrap());
    }
}
