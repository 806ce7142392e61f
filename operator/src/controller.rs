//! What the three controllers have in common: how a kind is watched, reconciled, retried and measured.

use std::{
    collections::HashMap,
    fmt::Debug,
    future::Future,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{DeserializeGuard, object::HasStatus},
    runtime::{
        Controller,
        controller::{Action, Config},
        reflector::ObjectRef,
        watcher,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;

use crate::{
    admission::Admission,
    cluster::{Cluster, Note},
    error::Error,
    inference_pool::agents::Agents,
    memory::Memory,
    metrics::Metrics,
    settings::Settings,
    watches::{Ledgers, Parent, PodIndex, requests},
};

/// One reconcile; what takes longer has met a stuck API server.
const LONGEST_RECONCILE: Duration = Duration::from_secs(60);
/// Changes within this time are reconciled once.
const DEBOUNCE: Duration = Duration::from_millis(100);
const CONCURRENCY: u16 = 16;
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(120);

/// What every reconcile works with.
pub struct Context {
    pub cluster: Arc<Cluster>,
    pub settings: Settings,
    pub pods: Arc<PodIndex>,
    pub ledgers: Arc<Ledgers>,
    pub memory: Memory,
    pub agents: Agents,
    pub metrics: Metrics,
    pub admission: Arc<Admission>,
    failures: Mutex<HashMap<String, u32>>,
}

impl Context {
    pub fn new(
        cluster: Arc<Cluster>,
        settings: Settings,
        pods: Arc<PodIndex>,
        ledgers: Arc<Ledgers>,
        metrics: Metrics,
        admission: Arc<Admission>,
    ) -> Self {
        Self {
            cluster,
            settings,
            pods,
            ledgers,
            memory: Memory::default(),
            agents: Agents::default(),
            metrics,
            admission,
            failures: Mutex::default(),
        }
    }

    fn succeeded(&self, uid: &str) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// How long to wait after one more failure of this object.
    fn failed(&self, uid: &str) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(uid.to_owned()).or_insert(0);
        *count = count.saturating_add(1);
        FIRST_RETRY
            .saturating_mul(1u32.checked_shl(*count - 1).unwrap_or(u32::MAX))
            .min(LONGEST_RETRY)
    }
}

/// A kind this operator reconciles.
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
    /// Brings the cluster closer to what the object says. Some: look again after that time even if nothing happens.
    fn reconcile(&self, context: &Context) -> impl Future<Output = Result<Option<Duration>, Error>> + Send;

    /// Shows an error in the object's conditions.
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

/// A controller of `K` that also listens to triggers. What else it watches is added by the caller.
pub fn controller<K>(
    client: &Client,
    namespace: Option<&str>,
    triggers: mpsc::Receiver<Parent>,
) -> Controller<DeserializeGuard<K>>
where
    K: Kind,
{
    Controller::new(
        api::<DeserializeGuard<K>>(client, namespace),
        watcher::Config::default(),
    )
    .with_config(Config::default().concurrency(CONCURRENCY).debounce(DEBOUNCE))
    .reconcile_on(requests::<K>(triggers))
}

/// Runs a controller until the process ends.
pub async fn run<K: Kind>(controller: Controller<DeserializeGuard<K>>, context: Arc<Context>)
where
    ObjectRef<DeserializeGuard<K>>: Hash + Eq,
{
    controller
        .run(reconcile::<K>, retry::<K>, context)
        .for_each(|result| async move {
            if let Err(error) = result {
                tracing::debug!(kind = %K::kind(&()), %error, "a reconcile ended with an error");
            }
        })
        .await;
}

async fn reconcile<K: Kind>(object: Arc<DeserializeGuard<K>>, context: Arc<Context>) -> Result<Action, Error> {
    let kind = K::kind(&()).into_owned();
    let object = match &object.0 {
        Ok(object) => object,
        Err(invalid) => {
            // Accepted by an older CRD than this operator's: it is left alone until somebody changes it.
            let name = invalid.metadata.name.as_deref().unwrap_or_default();
            tracing::error!(
                kind,
                name,
                error = invalid.error,
                "the object cannot be read; correct it, or delete it"
            );
            context.metrics.unreadable(&kind);
            return Ok(Action::await_change());
        }
    };
    let begun = Instant::now();
    let result = match tokio::time::timeout(LONGEST_RECONCILE, object.reconcile(&context)).await {
        Ok(result) => result,
        Err(_) => Err(Error::TooSlow {
            after: LONGEST_RECONCILE,
        }),
    };
    context
        .metrics
        .reconciled(&kind, begun.elapsed(), result.as_ref().err().map(Error::reason));
    let uid = object.uid().unwrap_or_default();
    match result {
        Ok(again) => {
            context.succeeded(&uid);
            Ok(again.map_or_else(Action::await_change, Action::requeue))
        }
        Err(error) => {
            let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
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

fn retry<K: Kind>(object: Arc<DeserializeGuard<K>>, _: &Error, context: Arc<Context>) -> Action {
    Action::requeue(context.failed(&object.uid().unwrap_or_default()))
}

/// The note that tells of an error.
pub fn note_of(error: &Error) -> Note {
    Note {
        warning: true,
        reason: error.reason().to_owned(),
        action: "Reconcile",
        text: error.to_string(),
    }
}
