//! The controller of `GrpoRun`: [`read`] the observed state, [`decide`], [`apply`], write the [`status`].

mod apply;
mod read;
mod status;

use std::{sync::Arc, time::Duration};

use futures::Stream;
use grpo_crds::{GrpoRun, grpo_run::Phase};
use grpo_operator_core::grpo_run::{decide, decision, status::with_refusal};
use kube::{core::DeserializeGuard, runtime::watcher};
use tokio::sync::mpsc;

use crate::{
    context::Context,
    controller::{self, Kind},
    error::Error,
    parent::Parent,
    watched_store::WatchedStore,
};

/// Runs the controller until the process ends.
pub async fn control(
    shown: impl Stream<Item = Result<DeserializeGuard<GrpoRun>, watcher::Error>> + Send + 'static,
    triggers: mpsc::Receiver<Parent>,
    context: Arc<Context>,
) {
    // Pools trigger the run through the watched stores from which it reads them.
    let controller = controller::controller(&context.watched.runs, shown, triggers);
    controller::run(controller, context).await;
}

async fn reconcile_once(run: &GrpoRun, context: &Context) -> Result<Option<Duration>, Error> {
    let seen = read::read(run, context).await?;
    let decision = decide::decide(&seen, &context.settings);
    apply::give_back(&seen, &decision, context).await?;
    let retry_in = decision.retry_in;
    match apply::make(&seen, &decision, context).await {
        Ok(()) => {
            status::write(&seen, decision, context).await?;
            Ok(retry_in)
        }
        // The run has given all back, and its phase says so although an object is refused.
        Err(error) if decision.delete_pools && error.is_for_people() => {
            let decision = with_refusal(&seen, decision, error.reason(), &error.to_string());
            status::write(&seen, decision, context).await?;
            Err(Error::Shown(Box::new(error)))
        }
        Err(error) => {
            // Pods that the run gave back are not lost: the next reconcile begins from these counts.
            if !decision.give_back.is_empty()
                && let Some(attempts) = decision.status.attempts
            {
                context.attempts.count(&seen.owner.uid, attempts);
            }
            Err(error)
        }
    }
}

impl Kind for GrpoRun {
    const HEALTH: &'static str = decision::PROVISIONED;

    fn state(&self) -> &'static str {
        match self.status.as_ref().and_then(|status| status.phase) {
            None | Some(Phase::Pending) => "Pending",
            Some(Phase::Queued) => "Queued",
            Some(Phase::Provisioning) => "Provisioning",
            Some(Phase::Running) => "Running",
            Some(Phase::Suspended) => "Suspended",
            Some(Phase::Succeeded) => "Succeeded",
            Some(Phase::Failed) => "Failed",
            Some(Phase::Terminating) => "Terminating",
        }
    }

    fn watched(context: &Context) -> &WatchedStore<Self> {
        &context.watched.runs
    }

    async fn reconcile(&self, context: &Context) -> Result<Option<Duration>, Error> {
        match reconcile_once(self, context).await {
            // Decided again: pods that are not on a node are deleted.
            Err(error) if context.quotas.refused(&read::maker(self), &error) => reconcile_once(self, context).await,
            result => result,
        }
    }

    async fn show(&self, error: &Error, context: &Context) -> Result<(), Error> {
        status::show(self, error, context).await
    }
}
