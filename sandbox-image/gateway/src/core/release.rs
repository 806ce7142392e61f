//! Giving sandboxes back, so that whoever was told of it can rely on it, and no used one is given away.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{Shared, try_join_all};
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin};
use tokio::sync::oneshot;

use super::{Core, now};
use crate::index::Action;

/// Longest that a caller waits until it is certain that a sandbox is given back.
pub(super) const TAKEN_WITHIN: Duration = Duration::from_secs(8);
/// Before an order to delete a pod that was not taken is given again; it doubles.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
const AGAIN_AFTER_AT_MOST: Duration = Duration::from_secs(30);

/// Tells everybody who asks when it is certain that a sandbox is given back.
pub(super) type End = Shared<oneshot::Receiver<()>>;

impl Core {
    /// Carries out what belongs together; answers who tells when that is certain. A lease goes out of the ledger only
    /// when the end of its sandbox has been ordered: were it the other way round and this gateway to be killed in
    /// between, the next one would find a pod that nobody has leased, and give a used sandbox away.
    pub(super) fn carry_out(self: &Arc<Self>, actions: Vec<Action>) -> oneshot::Receiver<()> {
        let is_forget = |action: &Action| matches!(action, Action::Forget { .. });
        let (forgets, others): (Vec<Action>, Vec<Action>) = actions.into_iter().partition(is_forget);
        let ends: Vec<_> = others.into_iter().filter_map(|action| self.act(action)).collect();
        let (core, (tell, told)) = (self.clone(), oneshot::channel());
        let forget = move || {
            for action in forgets {
                core.act(action);
            }
            // Most do not want to know.
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

    /// Has a pod deleted; tells when the API server has taken the order, however often it has to be given.
    pub(super) async fn end(self: Arc<Self>, name: String, taken: oneshot::Sender<()>) {
        let mut pause = AGAIN_AFTER;
        while !self.clone().delete(name.clone()).await {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN_AFTER_AT_MOST);
        }
        let _ = taken.send(());
    }

    /// Gives a sandbox back. Answered when that outlives this gateway: the API server deletes the pod, or sandboxd has
    /// ended what ran there. Had only this gateway known of it, the next one would find the lease in the ledger, and
    /// keep the sandbox for nobody until the lease's time is over. A caller that asks again while that is not certain
    /// waits for the same end.
    pub async fn release(self: &Arc<Self>, id: &str) -> Result<(), ErrorBody> {
        let Some(end) = self.leave(id) else {
            // A lease that this gateway does not know is none, if it is the pool's.
            return self.owns_pool().await;
        };
        match tokio::time::timeout(TAKEN_WITHIN, end).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(unavailable(format!(
                "lease {id} is given back, but its sandbox has not been ended yet; that is tried again, and you may ask again"
            ))),
        }
    }

    /// Begins the end of a lease, or finds the one that an earlier call has begun.
    fn leave(self: &Arc<Self>, id: &str) -> Option<End> {
        let mut leaving = self.leaving();
        let actions = self.with(|index| index.release(id, now()));
        if actions.is_empty() {
            return leaving.get(id).cloned();
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
