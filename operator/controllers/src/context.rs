//! The context of every reconcile: access to the API server, watched objects, and state kept between reconciles.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use grpo_operator_core::{backoff::Backoff, settings::Settings};

use crate::{
    admission::Admission,
    agents::Agents,
    attempt_counts::AttemptCounts,
    cluster::Cluster,
    kueue::Kueue,
    metrics::Metrics,
    pending_pods::PendingPods,
    quotas::Quotas,
    run_volumes::RunVolumes,
    watched_store::WatchedStores,
    watches::{ledgers::Ledgers, pods::PodIndex},
};

/// Back-off between failed reconciles of an object. A correction that a person makes elsewhere is noticed within the
/// longest pause.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// The context of every reconcile.
pub struct Context {
    pub cluster: Arc<Cluster>,
    pub settings: Settings,
    pub pods: Arc<PodIndex>,
    pub ledgers: Arc<Ledgers>,
    pub pending_pods: PendingPods,
    pub quotas: Quotas,
    pub attempts: AttemptCounts,
    pub run_volumes: RunVolumes,
    pub kueue: Arc<Kueue>,
    pub agents: Agents,
    pub metrics: Metrics,
    pub admission: Arc<Admission>,
    pub watched: WatchedStores,
    failures: Mutex<HashMap<String, u32>>,
    /// The last message about each object that cannot be parsed, by uid.
    pub unreadable: Mutex<HashMap<String, String>>,
}

impl Context {
    pub fn new(
        cluster: Arc<Cluster>,
        settings: Settings,
        pods: Arc<PodIndex>,
        ledgers: Arc<Ledgers>,
        metrics: Metrics,
        admission: Arc<Admission>,
        kueue: Arc<Kueue>,
        watched: WatchedStores,
    ) -> Self {
        Self {
            cluster,
            settings,
            pods,
            ledgers,
            pending_pods: PendingPods::default(),
            quotas: Quotas::default(),
            attempts: AttemptCounts::default(),
            run_volumes: RunVolumes::default(),
            kueue,
            agents: Agents::default(),
            metrics,
            admission,
            watched,
            failures: Mutex::default(),
            unreadable: Mutex::default(),
        }
    }

    /// Forgets an object.
    pub fn forget(&self, uid: &str) {
        self.pending_pods.forget(uid);
        self.quotas.forget(uid);
        self.run_volumes.forget(uid);
        self.kueue.forget(uid);
        self.attempts.forget(uid);
        self.admission.forget(uid);
        self.succeeded(uid);
        let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        unreadable.remove(uid);
    }

    /// Forgets deleted objects of our kinds: without finalizers most are deleted without a last reconcile.
    pub fn forget_what_is_gone(self: &Arc<Self>) {
        let forget = || {
            let context = Arc::downgrade(self);
            move |uid: &str| {
                if let Some(context) = context.upgrade() {
                    context.forget(uid);
                }
            }
        };
        self.watched.runs.on_gone(forget());
        self.watched.inference_pools.on_gone(forget());
        self.watched.sandbox_pools.on_gone(forget());
    }

    pub fn succeeded(&self, uid: &str) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// The back-off after one more failure of this object.
    pub fn failed(&self, uid: &str) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(uid.to_owned()).or_insert(0);
        *count = count.saturating_add(1);
        RETRY.pause(*count - 1)
    }
}
