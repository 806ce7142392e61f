//! Reads and writes the Workloads by which runs with `queueName` ask Kueue for quota, and the classes and
//! ResourceFlavors that they name.
//!
//! Kueue need not be in the cluster: nothing is asked, and nothing is watched, before the first run with a queue.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use futures::StreamExt;
use grpo_operator_core::{
    digest::number,
    grpo_run::{
        observation::{Asked, QueueState, RunObservation},
        workload,
    },
    kueue::{Flavor, GROUP, Placements, VERSION, Workload},
    names,
    ownership::is_owned_by,
};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{
    cluster::Cluster,
    error::{Error, is_missing},
    parent::Parent,
    watches::{
        config::{Pauses, every_object},
        triggers::Triggers,
    },
};

/// What is known of Kueue between reconciles.
#[derive(Default)]
pub struct Kueue {
    wanted: Notify,
    /// Runs with a Workload, by uid: the placements of the admitted ones, with the number of the admission that they
    /// are of. ResourceFlavors may change later, and pods of one run must not differ.
    placements: Mutex<HashMap<String, (u64, Placements)>>,
}

impl Kueue {
    /// The run's Workload. Without one: the value of the class that its Workload will have.
    pub async fn ask(
        &self,
        seen: &RunObservation,
        cluster: &Cluster,
        all_namespaces: bool,
    ) -> Result<(QueueState, Option<i32>), Error> {
        if !all_namespaces {
            return Ok((QueueState::NotAllowed, None));
        }
        self.wanted.notify_one();
        let (run, name) = (&seen.owner, workload::name(&seen.owner.name));
        let found = cluster.get::<Workload>(&run.namespace, &name).await?;
        if let Some(workload) = found.filter(|found| is_owned_by(&found.metadata, &run.uid)) {
            let (placements, lacks_flavor) = match self.placements(&run.uid, &workload, cluster).await? {
                Ok(placements) => (placements, None),
                Err(flavor) => (Placements::new(), Some(flavor)),
            };
            let asked = Asked {
                workload,
                placements,
                lacks_flavor,
            };
            return Ok((QueueState::Asked(Box::new(asked)), None));
        }
        self.known().remove(&run.uid);
        if !cluster.serves_kueue().await? {
            return Ok((QueueState::NotServed, None));
        }
        let Some(class) = workload::priority_class(&seen.run) else {
            return Ok((QueueState::Unasked, None));
        };
        let text = |field: &str| class[field].as_str().unwrap_or_default();
        let version = if text("group") == GROUP { VERSION } else { "v1" };
        let class = GroupVersionKind::gvk(text("group"), version, text("kind"));
        match cluster.of_the_cluster(&class, text("name")).await? {
            Some(found) => {
                let value = found.data["value"].as_i64().and_then(|value| i32::try_from(value).ok());
                Ok((QueueState::Unasked, Some(value.unwrap_or(0))))
            }
            None => Ok((
                QueueState::LacksClass(format!("{} {}", text("kind"), text("name"))),
                None,
            )),
        }
    }

    /// Whether a run had a Workload when it was last asked for. It may have left the queue since.
    pub fn has_asked(&self, run: &str) -> bool {
        self.known().contains_key(run)
    }

    /// The placements of an admitted run, or the ResourceFlavor that is missing.
    async fn placements(
        &self,
        run: &str,
        workload: &Workload,
        cluster: &Cluster,
    ) -> Result<Result<Placements, String>, Error> {
        if !workload.is_admitted() {
            self.known().entry(run.to_owned()).or_default();
            return Ok(Ok(Placements::new()));
        }
        let of = number(&json!([
            workload.metadata.uid,
            workload.status.admission,
            workload.status.admission_checks
        ]));
        if let Some((known, placements)) = self.known().get(run)
            && *known == of
        {
            return Ok(Ok(placements.clone()));
        }
        let kind = GroupVersionKind::gvk(GROUP, VERSION, "ResourceFlavor");
        let mut flavors = BTreeMap::new();
        for name in workload.flavors() {
            if flavors.contains_key(name) {
                continue;
            }
            // Without its labels the pods would be placed anywhere.
            let Some(found) = cluster.of_the_cluster(&kind, name).await? else {
                return Ok(Err(name.clone()));
            };
            let spec = found.data["spec"].clone();
            let flavor = serde_json::from_value::<Option<Flavor>>(spec).map_err(|source| Error::Json {
                what: format!("ResourceFlavor {name}"),
                source,
            })?;
            flavors.insert(name.clone(), flavor.unwrap_or_default());
        }
        let placements = workload.placements(&flavors);
        self.known().insert(run.to_owned(), (of, placements.clone()));
        Ok(Ok(placements))
    }

    pub fn forget(&self, run: &str) {
        self.known().remove(run);
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, (u64, Placements)>> {
        self.placements.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cluster {
    async fn serves_kueue(&self) -> Result<bool, Error> {
        let version = format!("{GROUP}/{VERSION}");
        match self.client.list_api_group_resources(&version).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if is_missing(&status) => Ok(false),
            Err(source) => Err(Error::Read {
                what: format!("the resources of {version}"),
                source: Box::new(source),
            }),
        }
    }

    /// An object without a namespace.
    async fn of_the_cluster(&self, kind: &GroupVersionKind, name: &str) -> Result<Option<DynamicObject>, Error> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::from_gvk(kind));
        api.get_opt(name).await.map_err(|source| Error::Read {
            what: format!("{} {name}", kind.kind),
            source: Box::new(source),
        })
    }

    /// Changes the status of the Workload that was read. If another writer was faster, its write leads to another try.
    pub async fn patch_workload(&self, namespace: &str, known: &Workload, patch: &Value) -> Result<(), Error> {
        let workloads: Api<Workload> = Api::namespaced(self.client.clone(), namespace);
        let mut patch = patch.clone();
        patch["metadata"] = json!({"uid": known.metadata.uid, "resourceVersion": known.metadata.resource_version});
        let params = PatchParams {
            field_manager: Some(names::STATUS_FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match workloads
            .patch_status(&known.name_any(), &params, &Patch::Merge(&patch))
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if is_missing(&status) || status.is_conflict() => Ok(()),
            Err(source) => Err(Error::Status {
                what: format!("Workload {namespace}/{}", known.name_any()),
                source: Box::new(source),
            }),
        }
    }
}

/// Lets runs look at their Workloads whenever these change. Begins with the first run with a queue, and ends only with
/// the process.
pub async fn follow_workloads(api: Api<PartialObjectMeta<Workload>>, kueue: Arc<Kueue>, triggers: Triggers) {
    kueue.wanted.notified().await;
    let config = every_object().labels(names::MANAGED_SELECTOR);
    let mut events = watcher(api, config).backoff(Pauses::default()).boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitApply(workload) | Event::Apply(workload) | Event::Delete(workload)) => {
                if let Some(parent) = Parent::of_owned(&workload.metadata) {
                    triggers.pull(parent).await;
                }
            }
            Ok(Event::Init | Event::InitDone) => {}
            // Kueue is not installed yet, or not any more: the run says so.
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if is_missing(&status) => {}
            Err(error) => {
                tracing::warn!(%error, "the watch of Workloads was interrupted; it begins anew");
                triggers.metrics.interrupted("Workload");
            }
        }
    }
}
