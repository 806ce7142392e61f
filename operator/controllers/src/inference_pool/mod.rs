//! The controller of `InferencePool` (`grpo.dev`): [`read`] the pods and their agents' reports, [`decide`], [`apply`],
//! write the [`status`].

mod apply;
mod read;
mod status;

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt, future::ready};
use grpo_crds::{GrpoRun, InferencePool};
use grpo_operator_core::{conditions::is_true, inference_pool::decide};
use kube::{
    Client, ResourceExt,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        reflector::ObjectRef,
        watcher::{self, Event, watcher},
    },
};
use tokio::sync::mpsc;

use crate::{
    context::Context,
    controller::{self, Kind, api},
    error::Error,
    parent::Parent,
    watched_store::WatchedStore,
    watches::config::{Pauses, every_object},
};

/// How often to check that the run of a claim exists: its deletion may have been missed while a watch was interrupted.
const CLAIM_CHECK: Duration = Duration::from_secs(300);

/// Runs the controller until the process ends.
pub async fn control(
    client: &Client,
    namespace: Option<&str>,
    shown: impl Stream<Item = Result<DeserializeGuard<InferencePool>, watcher::Error>> + Send + 'static,
    triggers: mpsc::Receiver<Parent>,
    context: Arc<Context>,
) {
    let controller = controller::controller(&context.watched.inference_pools, shown, triggers);
    let pools = controller.store();
    // A deleted run no longer claims its pool. The run itself writes all other changes of its claim into the pool.
    let runs = watcher(api::<PartialObjectMeta<GrpoRun>>(client, namespace), every_object())
        .backoff(Pauses::default())
        .filter_map(|event| {
            ready(match event {
                Ok(Event::Delete(run)) => Some(Ok(run)),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            })
        });
    let controller = controller.watches_stream(runs, move |run| {
        let claimed: Vec<ObjectRef<DeserializeGuard<InferencePool>>> = pools
            .state()
            .iter()
            .filter_map(|pool| pool.0.as_ref().ok())
            .filter(|pool| pool.namespace() == run.namespace())
            .filter(|pool| {
                let claim = pool.status.as_ref().and_then(|status| status.claimed_by.as_ref());
                claim.is_some_and(|claim| Some(&claim.name) == run.metadata.name.as_ref())
            })
            .map(|pool| ObjectRef::new(&pool.name_any()).within(&pool.namespace().unwrap_or_default()))
            .collect();
        claimed
    });
    controller::run(controller, context).await;
}

async fn reconcile_once(pool: &InferencePool, context: &Context) -> Result<Option<Duration>, Error> {
    let seen = read::read(pool, context).await?;
    let decision = decide::decide(&seen, &context.settings);
    apply::apply(&seen, &decision, context).await?;
    let again = decision.again;
    status::write(&seen, decision, context).await?;
    let claimed = pool.status.as_ref().is_some_and(|status| status.claimed_by.is_some());
    Ok(again.into_iter().chain(claimed.then_some(CLAIM_CHECK)).min())
}

impl Kind for InferencePool {
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
        &context.watched.inference_pools
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
