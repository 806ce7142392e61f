//! A desired object as data: the pure `decide` functions return it and `apply` writes it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt, core::ApiResource};
use serde_json::{Value, json};

use crate::names::Labels;

/// How the operator keeps an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Applied whenever it differs from the desired object.
    Applied,
    /// Created if missing and never written again: others write it, or it is random.
    CreatedOnce,
}

/// An object that the operator wants to exist.
#[derive(Clone, Debug)]
pub struct DesiredObject {
    pub resource: ApiResource,
    pub name: String,
    pub keep: Keep,
    /// Uid of the object that it is created for, even without an owner reference.
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
    /// Returns `None` if the API server has not given the object a name and a uid yet; an object read from it always
    /// has both.
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Option<Self> {
        Some(Self {
            namespace: object.namespace()?,
            name: object.name_any(),
            uid: object.uid()?,
            reference: object.controller_owner_ref(&())?,
        })
    }

    /// An object of kind `K` with this owner; `body` is everything besides apiVersion, kind and metadata.
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

    /// Adds an annotation.
    pub fn annotated(mut self, key: &str, value: &str) -> Self {
        self.object["metadata"]["annotations"][key] = json!(value);
        self
    }

    pub fn kind(&self) -> &str {
        &self.resource.kind
    }
}
