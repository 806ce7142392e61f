//! Grants the leases that the index has decided: commits, then binds, then answers the callers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use grpo_sandbox_protocol::{ErrorBody, SandboxCause};
use tokio::sync::oneshot;

use super::{Core, lease, now};
use crate::index::{Action, ActiveLease, Index};
use crate::ledger::Change;
use crate::sandbox::Holder;

impl Core {
    /// Commits, then binds, then grants. A grader's pod gets its label and its access to the package index before that:
    /// if a lease is in the ledger, its pod has the label.
    pub(super) async fn grant(self: Arc<Self>, id: String) {
        let Some(held) = self.lock().leases.get(&id).cloned() else {
            return;
        };
        let packages = match self.packages_for(&held) {
            Some(index) => match self.label_for_packages(&held, index).await {
                Ok(addresses) => Some((index, addresses)),
                Err(error) => return self.reject(&held, error),
            },
            None => None,
        };
        let decided = Instant::now();
        if self.granting.fetch_add(1, Ordering::Relaxed) == 0 {
            // No other grant is in progress, so the CPU is free: connect to sandboxd while the ledger is written.
            let (core, ip) = (self.clone(), held.ip.clone());
            tokio::spawn(async move { core.sandboxes.greet(&ip).await });
        }
        let is_durable = self.is_durable(&held).await;
        self.granting.fetch_sub(1, Ordering::Relaxed);
        if !is_durable {
            return;
        }
        self.metrics.committed(decided.elapsed());
        let durable = Instant::now();
        let epoch = held.entry.epoch;
        let is_still = |index: &mut Index| index.leases.get(&id).is_some_and(|held| held.entry.epoch == epoch);
        if !self.look(is_still) {
            // Released meanwhile, perhaps before it was written.
            let (lease, cause) = (id, None);
            self.act(Action::Forget { lease, epoch, cause });
            return;
        }
        let holder = Holder::of(&held);
        let ttl = ((held.entry.expires_at - now()).max(1000) / 1000) as u64;
        match self.sandboxes.bind(holder, ttl + 60).await {
            Ok(()) => {
                self.metrics.bound(durable.elapsed());
                if let Some((index, addresses)) = packages
                    && let Err(error) = self.await_packages(&held, index, &addresses).await
                {
                    return self.reject(&held, error);
                }
                self.granted(&id, epoch);
            }
            Err(error) => {
                let sandbox = &held.entry.sandbox;
                tracing::warn!(%error, lease = id, sandbox, "binding a sandbox; it is thrown away");
                self.apply(|index| index.discard(sandbox, SandboxCause::Unknown, now()));
            }
        }
    }

    /// Tells the callers of a lease why they do not get it. Its sandbox is deleted.
    fn reject(self: &Arc<Self>, held: &ActiveLease, error: ErrorBody) {
        let (lease, epoch) = (&held.entry.lease, held.entry.epoch);
        tracing::warn!(lease, sandbox = held.entry.sandbox, "{}", error.message);
        self.apply(|index| index.reject(lease, epoch, error, now()));
    }

    /// Puts a lease into the ledger. False if the ledger's writer has ended; this process then ends soon.
    async fn is_durable(&self, held: &ActiveLease) -> bool {
        let (done, committed) = oneshot::channel();
        let entry = held.entry.clone();
        self.ledger.send(Change::Put { entry, done }).await.is_ok() && committed.await.is_ok()
    }

    /// Puts a longer time of a lease into the ledger. Also false if the lease has been removed from it meanwhile.
    async fn is_extended(&self, held: &ActiveLease) -> bool {
        let (done, committed) = oneshot::channel();
        let entry = held.entry.clone();
        self.ledger.send(Change::Extend { entry, done }).await.is_ok() && committed.await.is_ok()
    }

    fn granted(&self, id: &str, epoch: u64) {
        let Some(held) = self.with(|index| index.grant(id, epoch)) else {
            return;
        };
        let waited = (now() - held.asked_at).max(0).unsigned_abs();
        self.metrics.leased(&held, Duration::from_millis(waited));
        self.waiters.answer(id, Ok(lease(&held)));
    }

    /// Extends a lease and returns its new state. Only a time longer than ever before goes into the ledger, and it is
    /// written first.
    pub async fn renew(&self, id: &str, ttl_millis: i64) -> Option<ActiveLease> {
        let (held, is_longer) = self.look(|index| index.renew(id, ttl_millis, now()))?;
        if is_longer && !self.is_extended(&held).await {
            return None;
        }
        Some(held)
    }
}
