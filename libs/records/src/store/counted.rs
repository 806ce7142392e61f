//! A store for tests that counts concurrent reads.

use super::{RunStore, Store, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use object_store::ObjectStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The counts.
#[derive(Debug, Default)]
pub struct Reads {
    under_way: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
}

impl Reads {
    /// The maximum of concurrent reads.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    pub fn all(&self) -> usize {
        self.all.load(Ordering::SeqCst)
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

    /// A read takes at least one turn of the runtime, so all reads that may run beside it have begun by then.
    async fn bytes(&self, path: &str) -> Result<Bytes, StoreError> {
        let now = self.reads.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.reads.most.fetch_max(now, Ordering::SeqCst);
        self.reads.all.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        let bytes = self.inner.bytes(path).await;
        self.reads.under_way.fetch_sub(1, Ordering::SeqCst);
        bytes
    }
}
