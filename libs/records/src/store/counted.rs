//! A store for tests that counts the requests of a reader.

use super::{Names, RunStore, Store, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use object_store::ObjectStore;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The counts.
#[derive(Debug, Default)]
pub struct Reads {
    under_way: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
    lengths: AtomicUsize,
    listings: AtomicUsize,
}

impl Reads {
    /// The maximum of concurrent reads.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    pub fn all(&self) -> usize {
        self.all.load(Ordering::SeqCst)
    }

    /// Requests for the length of a file.
    pub fn lengths(&self) -> usize {
        self.lengths.load(Ordering::SeqCst)
    }

    /// Requests for the names in a folder.
    pub fn listings(&self) -> usize {
        self.listings.load(Ordering::SeqCst)
    }

    /// A read takes at least one turn of the runtime, so all reads that may run beside it have begun by then.
    async fn count<T>(&self, read: impl Future<Output = T>) -> T {
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.all.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        let read = read.await;
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        read
    }
}

#[derive(Debug)]
struct CountedStore {
    inner: RunStore,
    reads: Arc<Reads>,
}

/// The same store, and its counts from now on.
pub fn counted(inner: &RunStore) -> (RunStore, Arc<Reads>) {
    let reads = Arc::new(Reads::default());
    let store: Arc<dyn Store> = Arc::new(CountedStore {
        inner: inner.clone(),
        reads: reads.clone(),
    });
    (RunStore::from(store), reads)
}

#[async_trait]
impl Store for CountedStore {
    fn objects(&self) -> &dyn ObjectStore {
        self.inner.objects()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    async fn bytes(&self, path: &str) -> Result<Bytes, StoreError> {
        self.reads.count(self.inner.bytes(path)).await
    }

    async fn range(&self, path: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.reads.count(self.inner.range(path, range)).await
    }

    async fn length(&self, path: &str) -> Result<Option<u64>, StoreError> {
        self.reads.lengths.fetch_add(1, Ordering::SeqCst);
        self.inner.length(path).await
    }

    async fn names(&self, folder: &str) -> Result<Names, StoreError> {
        self.reads.listings.fetch_add(1, Ordering::SeqCst);
        self.inner.names(folder).await
    }
}
