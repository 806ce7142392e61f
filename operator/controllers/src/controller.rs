//! The shared part of the three controllers: watching, reconciling, retrying and measuring a kind.

use std::{
    fmt::Debug,
    future::Future,
    hash::Hash,
    panic::AssertUnwindSafe,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use futures::{FutureExt, Stream, StreamExt};
use grpo_contracts::reason::Reason;
use grpo_operator_core::{
    conditions::{ConditionStatus, Conditions},
    events::warning,
};
use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{DeserializeGuard, error_boundary::InvalidObject, object::HasStatus},
    runtime::{
        Controller,
        controller::{self, Action, Config},
        events::Event,
        reflector::ObjectRef,
        watcher,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;

use crate::{context::Context, error::Error, parent::Parent, watched_store::WatchedStore, watches::triggers::requests};

/// Limit of one reconcile; beyond it, the API server is stuck.
const LONGEST_RECONCILE: Duration = Duration::from_secs(60);
const CONCURRENCY: u16 = 16;

/// A kind that this operator reconciles.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + HasStatus
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// The condition that says whether the object is healthy.
    const HEALTH: &'static str;

    /// The object's state, as one word of a fixed list.
    fn state(&self) -> &'static str;

    /// The watched store of this kind.
    fn watched(context: &Context) -> &WatchedStore<Self>;

    /// Brings the cluster closer to the object's spec. `Some`: reconcile again after that time even without an event.
    fn reconcile(&self, context: &Context) -> impl Future<Output = Result<Option<Duration>, Error>> + Send;

    /// Writes an error into the object's conditions.
    fn show(&self, error: &Error, context: &Context) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The API for one namespace, or for all.
pub fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(
    client: &Client,
    namespace: Option<&str>,
) -> Api<K> {
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// A controller over a watched store, which also reacts to triggers. The caller adds further watches.
pub fn controller<K: Kind>(
    watched: &WatchedStore<K>,
    shown: impl Stream<Item = Result<DeserializeGuard<K>, watcher::Error>> + Send + 'static,
    triggers: mpsc::Receiver<Parent>,
) -> Controller<DeserializeGuard<K>> {
    Controller::for_stream(shown, watched.store())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .reconcile_on(requests::<K>(triggers))
}

/// Runs a controller until the process ends.
pub async fn run<K: Kind>(controller: Controller<DeserializeGuard<K>>, context: Arc<Context>)
where
    ObjectRef<DeserializeGuard<K>>: Hash + Eq,
{
    let (objects, metrics) = (controller.store(), context.metrics.clone());
    let listed = K::watched(&context).listed();
    metrics.at_each_look(move |census| {
        // Before the objects: a list that ends in between must not look like a list of nothing.
        census.listed(&K::kind(&()), *listed.borrow());
        for object in objects.state() {
            census.objects(
                &K::kind(&()),
                object.0.as_ref().map_or(Reason::Unreadable.text(), Kind::state),
            );
        }
    });
    controller
        .run(reconcile::<K>, retry::<K>, context)
        .for_each(|result| {
            if let Err(controller::Error::QueueError(error)) = result {
                tracing::warn!(kind = %K::kind(&()), %error, "a watch was interrupted; it begins anew");
                metrics.interrupted(&K::kind(&()));
            }
            std::future::ready(())
        })
        .await;
}

async fn reconcile<K: Kind>(object: Arc<DeserializeGuard<K>>, context: Arc<Context>) -> Result<Action, Error> {
    let kind = K::kind(&()).into_owned();
    let object = match &object.0 {
        Ok(object) => object,
        Err(invalid) => {
            explain::<K>(&object, invalid, &context).await;
            return Ok(Action::await_change());
        }
    };
    let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
    context.metrics.begun(&kind, &namespace, &name);
    let begun = Instant::now();
    let result = contained(object.reconcile(&context)).await;
    context.metrics.reconciled(
        &kind,
        begun.elapsed(),
        result.as_ref().err().map(|error| error.reason().text()),
    );
    let uid = object.uid().unwrap_or_default();
    if !K::watched(&context).holds(&namespace, &name, &uid) {
        // The object was deleted meanwhile, and this reconcile may have recorded facts after the deletion.
        context.forget(&uid);
        return Ok(Action::await_change());
    }
    match result {
        Ok(again) => {
            context.succeeded(&uid);
            Ok(again.map_or_else(Action::await_change, Action::requeue))
        }
        Err(error) => {
            tracing::warn!(kind, namespace, name, %error, "could not reconcile");
            if error.is_for_people()
                && let Err(unshown) = object.show(&error, &context).await
            {
                tracing::warn!(kind, namespace, name, error = %unshown, "could not show an error in the object's conditions");
            }
            Err(error)
        }
    }
}

/// A fault caused by one object must neither end the reconciles of all others nor block one of their slots for ever.
async fn contained<T>(reconcile: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let guarded = AssertUnwindSafe(reconcile).catch_unwind();
    match tokio::time::timeout(LONGEST_RECONCILE, guarded).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(Error::Panicked {
            what: in_words(panic.as_ref()),
        }),
        Err(_) => Err(Error::TooSlow {
            after: LONGEST_RECONCILE,
        }),
    }
}

fn in_words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without words".to_owned())
}

/// Reports once what is wrong with an object that cannot be parsed; it is then left alone until it changes. An older
/// CRD accepted it, or a client with wide rights wrote it.
async fn explain<K: Kind>(object: &DeserializeGuard<K>, invalid: &InvalidObject, context: &Context) {
    let kind = K::kind(&());
    let meta = &invalid.metadata;
    let (name, namespace) = (
        meta.name.as_deref().unwrap_or_default(),
        meta.namespace.as_deref().unwrap_or_default(),
    );
    context.metrics.unreadable(&kind);
    let uid = meta.uid.clone().unwrap_or_default();
    {
        let mut said = context.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        if said.insert(uid, invalid.error.clone()).as_ref() == Some(&invalid.error) {
            return;
        }
    }
    let message = format!(
        "this {kind} ({}) cannot be read, and nothing is done about it until it can: {}. Correct the field, or delete it",
        grpo_crds::GROUP,
        invalid.error
    );
    tracing::error!(%kind, namespace, name, message);
    context
        .cluster
        .tell(object, vec![warning(Reason::Unreadable, &*message)])
        .await;
    // If even the shape of the spec is wrong, the API server refuses every write; then only the event reports it.
    let health = Conditions::after(&[], meta.generation, Time(Timestamp::now()))
        .set(K::HEALTH, ConditionStatus::False, Reason::Unreadable, &message)
        .done();
    let written = context
        .cluster
        .overwrite_conditions::<K>(namespace, name, &health)
        .await;
    if let Err(error) = written {
        tracing::warn!(%kind, namespace, name, %error, "could not say so in its conditions");
    }
}

fn retry<K: Kind>(object: Arc<DeserializeGuard<K>>, _: &Error, context: Arc<Context>) -> Action {
    Action::requeue(context.failed(&object.uid().unwrap_or_default()))
}

/// The event that reports an error.
pub fn event_of(error: &Error) -> Event {
    warning(error.reason(), error.to_string())
}

#[cfg(test)]
mod tests;
