//! Releases sandboxes. A confirmed release is final, and a used sandbox is never leased again.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{Shared, try_join_all};
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin};
use tokio::sync::oneshot;

use super::{Core, now};
use crate::index::Action;

/// Longest time that a caller waits for a confirmed release.
pub(super) const TAKEN_WITHIN: Duration = Duration::from_secs(8);
/// First pause before an order to delete a pod is repeated if it was not accepted; it doubles.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
const AGAIN_AFTER_AT_MOST: Duration = Duration::from_secs(30);

/// Resolves for all its holders when the release is certain.
pub(super) type End = Shared<oneshot::Receiver<()>>;

impl Core {
    /// Carries out actions that belong together. The receiver fires when their effect is certain. A lease leaves the
    /// ledger only after the order to end its sandbox has been accepted. In the reverse order, if this gateway were
    /// killed in between, the next one would find a pod without a lease, and lease a used sandbox.
    pub(super) fn carry_out(self: &Arc<Self>, actions: Vec<Action>) -> oneshot::Receiver<()> {
        let is_forget = |action: &Action| matches!(action, Action::Forget { .. });
        let (forgets, others): (Vec<Action>, Vec<Action>) = actions.into_iter().partition(is_forget);
        let ends: Vec<_> = others.into_iter().filter_map(|action| self.act(action)).collect();
        let (core, (tell, told)) = (self.clone(), oneshot::channel());
        let forget = move || {
            for action in forgets {
                core.act(action);
            }
            // The receiver may be gone.
            let _ = tell.send(());
        };
        if ends.is_empty() {
            forget();
            return told;
        }
        tokio::spawn(async move {
            if try_join_all(ends).await.is_ok() {
                forget();
            }
        });
        told
    }

    /// Deletes a pod, and repeats the order until the API server accepts it. Signals `taken` then.
    pub(super) async fn end(self: Arc<Self>, name: String, taken: oneshot::Sender<()>) {
        let mut pause = AGAIN_AFTER;
        while !self.clone().delete(name.clone()).await {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN_AFTER_AT_MOST);
        }
        let _ = taken.send(());
    }

    /// Releases a sandbox. Returns when the release outlives this gateway: the API server deletes the pod, or sandboxd
    /// has ended the processes in it. If only this gateway knew of the release, the next one would find the lease in
    /// the ledger, and keep the sandbox unused until the lease expires. A caller that repeats the release meanwhile
    /// waits for the same end.
    pub async fn release(self: &Arc<Self>, id: &str) -> Result<(), ErrorBody> {
        let Some(end) = self.leave(id) else {
            // If this gateway does not know the lease and still owns the pool, the lease does not exist.
            return self.owns_pool().await;
        };
        match tokio::time::timeout(TAKEN_WITHIN, end).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(unavailable(format!(
                "lease {id} is given back, but its sandbox has not been ended yet; that is tried again, and you may ask again"
            ))),
        }
    }

    /// Begins the end of a lease, or finds the end that an earlier call began.
    fn leave(self: &Arc<Self>, id: &str) -> Option<End> {
        let mut leaving = self.leaving();
        let actions = self.with(|index| index.release(id, now()));
        // This refuses a request in the queue; an earlier lease of this id keeps its own end.
        let ends = actions.iter().any(|action| matches!(action, Action::Forget { .. }));
        if !ends && let Some(earlier) = leaving.get(id).cloned() {
            drop(self.carry_out(actions));
            return Some(earlier);
        }
        if actions.is_empty() {
            return None;
        }
        let end = self.carry_out(actions).shared();
        leaving.insert(id.to_owned(), end.clone());
        let (core, id, ended) = (self.clone(), id.to_owned(), end.clone());
        tokio::spawn(async move {
            let _ = ended.clone().await;
            let mut leaving = core.leaving();
            // A later lease of the same id may be leaving by now.
            if leaving.get(&id).is_some_and(|end| end.ptr_eq(&ended)) {
                leaving.remove(&id);
            }
        });
        Some(end)
    }

    fn leaving(&self) -> MutexGuard<'_, HashMap<String, End>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn unavailable(message: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Infrastructure, message)
}
