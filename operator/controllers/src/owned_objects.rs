//! Writes the objects that the operator creates for an owner: apply, create once, create a pod.
//!
//! Every write first reads the owner of the existing object. A missing object is created, which fails if another writer
//! was faster; an existing object is applied only to the uid that was read. So another owner's object with the same
//! name is never touched, whenever it appears: see [`ownership`].

use grpo_operator_core::{
    desired_object::{DesiredObject, Keep},
    digest::number,
    names,
    ownership::{self, Write},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ObjectMeta, PartialObjectMeta},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{
    applied::{Key, version},
    cluster::Cluster,
    error::Error,
    parent::Parent,
};

/// Maximum decisions for one write that conflicts with other writers.
const TRIES: usize = 3;

impl Cluster {
    /// Brings a child to its desired state. Makes no request if it already has it.
    pub async fn apply(&self, namespace: &str, desired: &DesiredObject) -> Result<(), Error> {
        let key = key(namespace, desired);
        let content = match desired.keep {
            Keep::Applied => number(&desired.object),
            Keep::CreatedOnce => number(&desired.object["metadata"]["ownerReferences"]),
        };
        if self.applied.is_current(&key, content) {
            return Ok(());
        }
        let api = self.dynamic(namespace, &desired.resource);
        let version = make(&api, desired).await?;
        self.applied.record(key, content, version, owner_of(desired));
        Ok(())
    }

    /// Forgets what was applied, so that the next apply reads the object again: for objects that no watch reports.
    pub fn distrust(&self, namespace: &str, desired: &DesiredObject) {
        self.applied.forget(&key(namespace, desired));
    }

    /// Creates a pod. An existing pod with this name and owner counts as success.
    pub async fn create_pod(&self, namespace: &str, desired: &DesiredObject) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let what = || what(desired);
        let pod: Pod =
            serde_json::from_value(desired.object.clone()).map_err(|source| Error::Json { what: what(), source })?;
        match pods.create(&creation(), &pod).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let existing = metadata(&pods, desired).await?.map(|existing| existing.metadata);
                let going = |pod: &ObjectMeta| pod.deletion_timestamp.is_some();
                match &existing {
                    Some(pod) if ownership::is_owned_as(pod, desired) && !going(pod) => Ok(()),
                    existing => Err(ownership::taken(existing.as_ref(), desired).into()),
                }
            }
            Err(source) => Err(Error::Create {
                what: what(),
                source: Box::new(source),
            }),
        }
    }
}

/// Reads the owner, then creates or applies; returns the resulting version.
async fn make(api: &Api<DynamicObject>, desired: &DesiredObject) -> Result<Option<String>, Error> {
    let mut left = TRIES;
    loop {
        left -= 1;
        let existing = metadata(api, desired).await?.map(|existing| existing.metadata);
        let written = match (ownership::write(existing.as_ref(), desired)?, existing) {
            (Write::Apply { .. }, Some(existing)) if desired.keep == Keep::CreatedOnce => {
                return Ok(version(desired.kind(), &existing));
            }
            (Write::Apply { uid }, Some(existing)) => apply_to(api, desired, &existing, &uid).await,
            _ => api.create(&creation(), &parsed(desired)?).await,
        };
        match written {
            Ok(object) => return Ok(version(desired.kind(), &object.metadata)),
            Err(kube::Error::Api(status)) if left > 0 && is_of_another_writer(&status) => {}
            Err(source) => {
                return Err(Error::Apply {
                    what: what(desired),
                    source: Box::new(source),
                });
            }
        }
    }
}

/// Applies to the object with this uid only, not to one that took its name meanwhile.
async fn apply_to(
    api: &Api<DynamicObject>,
    desired: &DesiredObject,
    existing: &ObjectMeta,
    uid: &str,
) -> Result<DynamicObject, kube::Error> {
    if let Some(managers) = ownership::as_applied(existing.managed_fields.as_deref()) {
        let version = &existing.resource_version;
        let managers = json!({"metadata": {"uid": uid, "resourceVersion": version, "managedFields": managers}});
        let params = PatchParams {
            field_manager: Some(names::FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        api.patch_metadata(&desired.name, &params, &Patch::Merge(&managers))
            .await?;
    }
    let mut object = desired.object.clone();
    object["metadata"]["uid"] = json!(uid);
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    api.patch(&desired.name, &params, &Patch::Apply(&object)).await
}

/// Whether the object was created, changed or replaced between the read and the write.
fn is_of_another_writer(status: &kube::core::Status) -> bool {
    let another_uid = status.is_invalid() && status.message.contains("metadata.uid");
    status.is_already_exists() || status.is_conflict() || another_uid
}

async fn metadata<K>(api: &Api<K>, desired: &DesiredObject) -> Result<Option<PartialObjectMeta<K>>, Error>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    api.get_metadata_opt(&desired.name).await.map_err(|source| Error::Read {
        what: what(desired),
        source: Box::new(source),
    })
}

fn parsed(desired: &DesiredObject) -> Result<DynamicObject, Error> {
    serde_json::from_value(desired.object.clone()).map_err(|source| Error::Json {
        what: what(desired),
        source,
    })
}

fn what(desired: &DesiredObject) -> String {
    let namespace = desired.object["metadata"]["namespace"].as_str().unwrap_or_default();
    format!("{} {namespace}/{}", desired.kind(), desired.name)
}

fn key(namespace: &str, desired: &DesiredObject) -> Key {
    Key::of(desired.kind(), namespace, &desired.name)
}

fn owner_of(desired: &DesiredObject) -> Option<Parent> {
    let metadata = serde_json::from_value(desired.object["metadata"].clone()).ok()?;
    Parent::of_owned(&metadata)
}

fn creation() -> PostParams {
    PostParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}
