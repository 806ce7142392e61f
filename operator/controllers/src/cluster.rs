//! The operator's requests, each defined once: apply, create, delete, read, write a status, publish an event.

use std::sync::{Mutex, PoisonError};

use grpo_operator_core::{desired_object::Owner, names, ownership::is_owned_by};
use k8s_openapi::{
    api::{
        core::v1::{NodeSelectorTerm, PersistentVolume},
        resource::v1::DeviceClass,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
    core::{ApiResource, PartialObjectMeta},
    runtime::events::{Event, Recorder, Reporter},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    applied::{Applied, Key},
    error::{Error, is_missing},
};

/// Access to the API server.
pub struct Cluster {
    pub client: Client,
    pub events: Events,
    pub applied: Applied,
}

/// Publishes Events. A recorder keeps each Event whole for six minutes, to count repetitions instead of publishing
/// them: when a thousand runs begin at once, that would take more memory than all other state of these runs.
pub struct Events {
    client: Client,
    reporter: Reporter,
    current: Mutex<(Recorder, usize)>,
}

/// Number of Events after which a new recorder replaces the old one.
const EVENTS_REMEMBERED: usize = 512;

impl Events {
    pub fn new(client: Client, reporter: Reporter) -> Self {
        let recorder = Recorder::new(client.clone(), reporter.clone());
        Self {
            client,
            reporter,
            current: Mutex::new((recorder, 0)),
        }
    }

    fn recorder(&self) -> Recorder {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.1 >= EVENTS_REMEMBERED {
            *current = (Recorder::new(self.client.clone(), self.reporter.clone()), 0);
        }
        current.1 += 1;
        current.0.clone()
    }
}

impl Cluster {
    pub(crate) fn dynamic(&self, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    /// Deletes an object; a missing object is no error.
    pub async fn delete<K>(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        // If the object is wanted again, it must be created again.
        self.applied.forget(&Key::of(&K::kind(&()), namespace, name));
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let params = DeleteParams {
            preconditions: uid.map(|uid| Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::background()
        };
        match api.delete(name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(source) => Err(Error::Delete {
                what: format!("{} {namespace}/{name}", K::kind(&())),
                source: Box::new(source),
            }),
        }
    }

    /// Deletes an object if its controller has this uid. An object of another owner stays.
    pub async fn delete_owned<K>(&self, namespace: &str, name: &str, owner: &str) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let existing = self.metadata::<K>(namespace, name).await?;
        match existing.filter(|existing| is_owned_by(&existing.metadata, owner)) {
            Some(existing) => {
                self.delete::<K>(namespace, name, existing.metadata.uid.as_deref())
                    .await
            }
            None => Ok(()),
        }
    }

    /// Makes sure that an owner's object stays deleted. Makes no request while no watch shows the object.
    pub async fn keep_deleted<K>(&self, owner: &Owner, name: &str) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let key = Key::of(&K::kind(&()), &owner.namespace, name);
        if !self.applied.is_absent(&key) {
            self.delete_owned::<K>(&owner.namespace, name, &owner.uid).await?;
            self.applied.record_absent(key);
        }
        Ok(())
    }

    /// Reads the metadata alone: nothing else of a Secret may be read.
    pub async fn metadata<K>(&self, namespace: &str, name: &str) -> Result<Option<PartialObjectMeta<K>>, Error>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        api.get_metadata_opt(name).await.map_err(|source| Error::Read {
            what: format!("{} {namespace}/{name}", K::kind(&())),
            source: Box::new(source),
        })
    }

    /// An object; none also in a cluster that does not serve its kind.
    pub async fn get<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        match api.get(name).await {
            Ok(found) => Ok(Some(found)),
            Err(kube::Error::Api(status)) if is_missing(&status) => Ok(None),
            Err(source) => Err(Error::Read {
                what: format!("{} {namespace}/{name}", K::kind(&())),
                source: Box::new(source),
            }),
        }
    }

    /// Node requirements of a PersistentVolume: any of these terms. Empty: no requirement, or no such volume.
    pub async fn volume_terms(&self, name: &str) -> Result<Vec<NodeSelectorTerm>, Error> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let found = volumes.get_opt(name).await.map_err(|source| Error::Read {
            what: format!("PersistentVolume {name}"),
            source: Box::new(source),
        })?;
        let affinity = found.and_then(|volume| volume.spec?.node_affinity?.required);
        Ok(affinity
            .map(|required| required.node_selector_terms)
            .unwrap_or_default())
    }

    /// Whether the cluster has a class of devices. A cluster that does not serve the API has none.
    pub async fn has_device_class(&self, name: &str) -> Result<bool, Error> {
        let classes: Api<DeviceClass> = Api::all(self.client.clone());
        match classes.get_metadata(name).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if is_missing(&status) => Ok(false),
            Err(source) => Err(Error::Read {
                what: format!("DeviceClass {name}"),
                source: Box::new(source),
            }),
        }
    }

    /// Writes the operator's part of a status. Fields of other managers stay unchanged.
    pub async fn write_status<K>(
        &self,
        object: &K,
        manager: &str,
        status: Value,
        version: Option<&str>,
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Serialize
            + std::fmt::Debug,
    {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let api: Api<K> = Api::namespaced(self.client.clone(), &namespace);
        let mut body = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {"name": name, "uid": object.uid()},
            "status": status,
        });
        if let Some(version) = version {
            body["metadata"]["resourceVersion"] = json!(version);
        }
        match api
            .patch_status(&name, &PatchParams::apply(manager).force(), &Patch::Apply(&body))
            .await
        {
            Ok(_) => Ok(()),
            // Deleted meanwhile, or deleted and created again: this object needs no status any more.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            // Another client wrote after our read; its write triggers another reconcile.
            Err(kube::Error::Api(status)) if version.is_some() && status.is_conflict() => Ok(()),
            Err(source) => Err(Error::Status {
                what: format!("{} {namespace}/{name}", K::kind(&())),
                source: Box::new(source),
            }),
        }
    }

    /// Writes the conditions of an object whose other fields cannot be parsed, by any field manager.
    pub async fn overwrite_conditions<K>(
        &self,
        namespace: &str,
        name: &str,
        conditions: &[Condition],
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        let api = self.dynamic(namespace, &ApiResource::erase::<K>(&()));
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        let params = PatchParams {
            field_manager: Some(names::STATUS_FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let written = api.patch_status(name, &params, &patch).await;
        written.map(drop).map_err(|source| Error::Status {
            what: format!("{} {namespace}/{name}", K::kind(&())),
            source: Box::new(source),
        })
    }

    /// Publishes Events. They are not essential: a failure is only logged.
    pub async fn tell<K: Resource<DynamicType = ()>>(&self, object: &K, events: Vec<Event>) {
        for mut event in events {
            event.note = event.note.map(|note| note.chars().take(1000).collect());
            if let Err(error) = self.events.recorder().publish(&event, &object.object_ref(&())).await {
                tracing::warn!(object = object.name_any(), reason = event.reason, %error, "could not publish an event");
            }
        }
    }
}
