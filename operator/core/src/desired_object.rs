//! An object the operator wants to exist, as data: what the pure `decide` functions return and `apply` writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt, core::ApiResource};
use serde_json::{Value, json};

use crate::names::Labels;

/// How an object is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Applied whenever it differs from what is wanted.
    Applied,
    /// Made when it does not exist and never touched again: others write it, or it is random.
    CreatedOnce,
}

/// An object the operator wants to exist.
#[derive(Clone, Debug)]
pub struct DesiredObject {
    pub resource: ApiResource,
    pub name: String,
    pub keep: Keep,
    /// Uid of what it is made for, also where the object itself has no owner.
    pub made_for: String,
    pub object: Value,
}

/// The owner of desired objects: deleting it deletes them.
#[derive(Clone, Debug)]
pub struct Owner {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    reference: OwnerReference,
}

impl Owner {
    /// None while the API server has not given the object a name and a uid, which cannot be for one that was read from
    /// it.
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Option<Self> {
        Some(Self {
            namespace: object.namespace()?,
            name: object.name_any(),
            uid: object.uid()?,
            reference: object.controller_owner_ref(&())?,
        })
    }

    /// An object of kind `K` that it owns; `body` is everything besides apiVersion, kind and metadata.
    pub fn object<K: Resource<DynamicType = ()>>(
        &self,
        name: impl Into<String>,
        labels: &Labels,
        body: Value,
    ) -> DesiredObject {
        let name = name.into();
        let resource = ApiResource::erase::<K>(&());
        let mut object = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": labels,
                "ownerReferences": [self.reference],
            },
        });
        if let (Some(object), Value::Object(body)) = (object.as_object_mut(), body) {
            object.extend(body);
        }
        DesiredObject {
            resource,
            name,
            keep: Keep::Applied,
            made_for: self.uid.clone(),
            object,
        }
    }
}

impl DesiredObject {
    pub fn created_once(mut self) -> Self {
        self.keep = Keep::CreatedOnce;
        self
    }

    /// The same object with one more annotation.
    pub fn annotated(mut self, key: &str, value: &str) -> Self {
        self.object["metadata"]["annotations"][key] = json!(value);
        self
    }

    pub fn kind(&self) -> &str {
        &self.resource.kind
    }
}
