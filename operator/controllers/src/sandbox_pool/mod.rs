//! The controller of `SandboxPool` (`grpo.dev`): [`read`], [`decide`], [`apply`], write the [`status`].
//!
//! The pool's gateway owns the sandbox pods; this controller only counts them.

mod apply;
mod read;
mod status;

use std::{sync::Arc, time::Duration};

use futures::Stream;
use grpo_crds::SandboxPool;
use grpo_operator_core::{conditions::is_true, sandbox_pool::decide};
use kube::{core::DeserializeGuard, runtime::watcher};
use tokio::sync::mpsc;

use crate::{
    context::Context,
    controller::{self, Kind},
    error::Error,
    parent::Parent,
    watched_store::WatchedStore,
};

/// Period of the check while no gateway serves: no watch shows its Secret.
const RECHECK: Duration = Duration::from_secs(30);

/// Runs the controller until the process ends.
pub async fn control(
    shown: impl Stream<Item = Result<DeserializeGuard<SandboxPool>, watcher::Error>> + Send + 'static,
    triggers: mpsc::Receiver<Parent>,
    context: Arc<Context>,
) {
    let controller = controller::controller(&context.watched.sandbox_pools, shown, triggers);
    controller::run(controller, context).await;
}

impl Kind for SandboxPool {
    const HEALTH: &'static str = decide::READY;

    fn state(&self) -> &'static str {
        let conditions = self.status.as_ref().map(|status| status.conditions.as_slice());
        if is_true(conditions.unwrap_or_default(), decide::READY) {
            "Ready"
        } else {
            "NotReady"
        }
    }

    fn watched(context: &Context) -> &WatchedStore<Self> {
        &context.watched.sandbox_pools
    }

    async fn reconcile(&self, context: &Context) -> Result<Option<Duration>, Error> {
        let seen = read::read(self, context)?;
        let decision = decide::decide(&seen, &context.settings);
        apply::apply(&seen, &decision, context).await?;
        let recheck = (!decision.serves).then_some(RECHECK);
        status::write(&seen, decision, context).await?;
        Ok(recheck)
    }

    async fn show(&self, error: &Error, context: &Context) -> Result<(), Error> {
        status::show(self, error, context).await
    }
}
