//! An upload that fails, is dropped, or belongs to a killed process leaves no parts.

use super::*;
use crate::claim::Claim;
use crate::paths;
use crate::store::{RemoteStore, RunStore, Store, wait};
use object_store::PutMultipartOptions;
use object_store::memory::InMemory;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::sync::watch;
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(60);

/// A bucket in memory that shows its unfinished uploads. The numbers are how many of the next requests fail.
#[derive(Default)]
struct Bucket {
    objects: InMemory,
    unfinished: watch::Sender<BTreeSet<MultipartId>>,
    parts: AtomicU32,
    completions: AtomicU32,
    aborts: AtomicU32,
    /// Aborts get no answer.
    is_silent: AtomicBool,
    /// Parts get no answer.
    is_slow: AtomicBool,
}

impl Bucket {
    fn count(&self) -> usize {
        self.unfinished.borrow().len()
    }

    fn end(&self, id: &MultipartId) {
        self.unfinished.send_modify(|unfinished| {
            unfinished.remove(id);
        });
    }

    async fn until_empty(&self) {
        let mut unfinished = self.unfinished.subscribe();
        let empty = unfinished.wait_for(|unfinished| unfinished.is_empty());
        assert!(tokio::time::timeout(LONG, empty).await.is_ok(), "an upload remains");
    }
}

fn fail(left: &AtomicU32, what: &str) -> object_store::Result<()> {
    let one_less = |left: u32| left.checked_sub(1);
    match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) {
        Ok(_) => Err(object_store::Error::Generic {
            store: "memory",
            source: format!("refused {what}").into(),
        }),
        Err(_) => Ok(()),
    }
}

#[async_trait]
impl MultipartStore for Bucket {
    async fn create_multipart(&self, path: &StorePath) -> object_store::Result<MultipartId> {
        self.create_multipart_opts(path, PutMultipartOptions::default()).await
    }

    async fn create_multipart_opts(
        &self,
        path: &StorePath,
        options: PutMultipartOptions,
    ) -> object_store::Result<MultipartId> {
        let id = self.objects.create_multipart_opts(path, options).await?;
        self.unfinished.send_modify(|unfinished| {
            unfinished.insert(id.clone());
        });
        Ok(id)
    }

    async fn put_part(
        &self,
        path: &StorePath,
        id: &MultipartId,
        index: usize,
        data: PutPayload,
    ) -> object_store::Result<PartId> {
        fail(&self.parts, "a part")?;
        if self.is_slow.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.objects.put_part(path, id, index, data).await
    }

    async fn complete_multipart(
        &self,
        path: &StorePath,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> object_store::Result<PutResult> {
        fail(&self.completions, "a completion")?;
        let completed = self.objects.complete_multipart(path, id, parts).await?;
        self.end(id);
        Ok(completed)
    }

    async fn abort_multipart(&self, path: &StorePath, id: &MultipartId) -> object_store::Result<()> {
        if self.is_silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        fail(&self.aborts, "an abort")?;
        let is_known = self.unfinished.borrow().contains(id);
        if !is_known {
            return Err(object_store::Error::NotFound {
                path: path.to_string(),
                source: "no such upload".into(),
            });
        }
        // The store in memory has no late parts: it fails for an upload that was aborted before.
        let _ = self.objects.abort_multipart(path, id).await;
        self.end(id);
        Ok(())
    }
}

fn scene() -> (Arc<Bucket>, RunStore) {
    let bucket = Arc::new(Bucket::default());
    let objects = Arc::new(bucket.objects.clone());
    let uploads: Arc<dyn MultipartStore> = bucket.clone();
    let store = RemoteStore::new(objects, Some(uploads), "prefix", "team/demo", "memory://".to_owned());
    (bucket, RunStore::from(Arc::new(store.unwrap()) as Arc<dyn Store>))
}

async fn notes(store: &RunStore) -> Vec<String> {
    store.files_below(paths::STAGING).await.unwrap()
}

#[tokio::test]
async fn a_dropped_upload_aborts_itself() {
    let (bucket, store) = scene();
    let mut upload = store.upload("big").await.unwrap();
    upload.write(&vec![7; 9 << 20]).await.unwrap();
    assert_eq!(bucket.count(), 1);
    drop(upload);
    bucket.until_empty().await;
}

#[tokio::test]
async fn a_part_that_the_server_stores_after_the_abort_is_removed() {
    let (bucket, store) = scene();
    bucket.is_slow.store(true, Ordering::SeqCst);
    let mut upload = store.upload("big").await.unwrap();
    let id = bucket.unfinished.borrow().first().cloned().unwrap();
    // Five parts, of which four are sent concurrently: the write waits for an answer.
    let written = tokio::time::timeout(Duration::from_millis(100), upload.write(&vec![7; 40 << 20])).await;
    assert!(written.is_err(), "a part was answered");
    drop(upload);
    bucket.until_empty().await;
    bucket.unfinished.send_modify(|unfinished| {
        unfinished.insert(id);
    });
    bucket.until_empty().await;
}

#[test]
fn an_upload_that_a_thread_without_a_runtime_drops_aborts_itself() {
    let (bucket, store) = scene();
    let upload = wait(store.upload("big")).unwrap();
    assert_eq!(bucket.count(), 1);
    drop(upload);
    wait(bucket.until_empty());
}

#[tokio::test]
async fn a_failed_upload_is_gone_when_its_first_error_is_reported_and_a_retry_succeeds() {
    for (parts, completions, error) in [(1, 0, "refused a part"), (0, 1, "refused a completion")] {
        let (bucket, store) = scene();
        bucket.parts.store(parts, Ordering::SeqCst);
        bucket.completions.store(completions, Ordering::SeqCst);
        bucket.aborts.store(1, Ordering::SeqCst);
        let claim = Claim::new(store.clone(), "uid_1_0".to_owned());
        claim.take().await.unwrap();
        let failed = claim.replace("weights/1", "one".into()).await.unwrap_err();
        assert!(failed.to_string().contains(error), "{failed}");
        assert_eq!(bucket.count(), 0, "{error}");
        assert_eq!(notes(&store).await, [".staging/uid_1_0/claim"], "{error}");

        claim.replace("weights/1", "two".into()).await.unwrap();
        assert_eq!(store.bytes("weights/1").await.unwrap(), "two");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_the_abort_delays_the_first_error_until_the_deadline() {
    let (bucket, store) = scene();
    bucket.completions.store(1, Ordering::SeqCst);
    bucket.is_silent.store(true, Ordering::SeqCst);
    let upload = store.upload("big").await.unwrap();
    let begun = Instant::now();
    let failed = upload.finish().await.unwrap_err();
    assert!(failed.to_string().contains("refused a completion"), "{failed}");
    // The clock is paused: it advances by the deadline, and by nothing else.
    let waited = begun.elapsed();
    assert!(
        (ANSWER..ANSWER + Duration::from_secs(1)).contains(&waited),
        "{waited:?}"
    );
}

#[tokio::test]
async fn an_aborted_try_removes_its_note_and_leaves_that_of_the_retry() {
    let (bucket, store) = scene();
    let staged = ".staging/uid_1_0/weights_1";
    let first = store.stage(staged, "weights/1").await.unwrap();
    let mut retry = store.stage(staged, "weights/1").await.unwrap();
    assert_eq!((bucket.count(), notes(&store).await.len()), (2, 2));
    drop(first);
    let removed = async {
        while notes(&store).await.len() == 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, removed).await.unwrap();
    assert_eq!((bucket.count(), notes(&store).await.len()), (1, 1));
    retry.write(b"bytes").await.unwrap();
    retry.arrive().await.unwrap();
    retry.name(&*store).await.unwrap();
    assert_eq!((bucket.count(), notes(&store).await.len()), (0, 0));
    assert_eq!(store.bytes("weights/1").await.unwrap(), "bytes");
}

#[tokio::test]
async fn a_withdrawal_aborts_every_try_of_a_killed_process() {
    let (bucket, store) = scene();
    let claim = Claim::new(store, "uid_1_0".to_owned());
    claim.take().await.unwrap();
    for _ in 0..2 {
        // A killed process drops nothing.
        std::mem::forget(claim.upload("weights/1").await.unwrap());
    }
    assert_eq!(bucket.count(), 2);
    claim.withdraw().await.unwrap();
    assert_eq!(bucket.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_waits_no_longer_once_the_writer_has_aborted_its_upload() {
    let (bucket, store) = scene();
    let claim = Claim::new(store.clone(), "uid_1_0".to_owned());
    claim.take().await.unwrap();
    std::mem::forget(claim.upload("weights/1").await.unwrap());
    bucket.unfinished.send_modify(BTreeSet::clear);
    let begun = Instant::now();
    let writer = async {
        // The clock is paused: the withdrawal finds no upload first.
        tokio::time::sleep(Duration::from_secs(1)).await;
        for note in notes(&store).await {
            store.delete(&note).await.unwrap();
        }
    };
    let (withdrawn, ()) = tokio::join!(claim.withdraw(), writer);
    withdrawn.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}
