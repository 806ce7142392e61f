//! Where a run keeps everything that is finished.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{cel, sources::ObjectStoreSource};

/// Where everything that is finished is kept: exactly one volume or object store, and a path on it.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = cel::exactly_one(&["volumeClaimTemplate", "persistentVolumeClaim", "objectStore"]),
    validation = Rule::new("!self.retain || has(self.volumeClaimTemplate)").message("store.retain keeps a volume of the run's own, but there is no volumeClaimTemplate: leave retain out, what exists already is never deleted"),
    validation = cel::stays_below("path", "store.path"),
    validation = cel::immutable(&["persistentVolumeClaim?", "objectStore?"], "the store's volume or object store is immutable: make another run"),
    validation = cel::immutable(&["path?"], "store.path is immutable: make another run")
)]
pub struct Store {
    /// A volume of the run's own, deleted with it unless `retain` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_template: Option<VolumeClaimTemplate>,
    /// A volume that exists and is never deleted by the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ExistingClaim>,
    /// A bucket, which is never deleted by the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_store: Option<ObjectStoreSource>,
    /// Keep the volume of `volumeClaimTemplate` when the run is deleted.
    #[serde(default)]
    pub retain: bool,
    /// Folder on the volume or below the bucket's prefix. Default: `<namespace>/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$"))]
    pub path: Option<String>,
}

/// An existing PersistentVolumeClaim of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExistingClaim {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
}

/// A PersistentVolumeClaim to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = cel::immutable(&["storageClassName?", "accessModes"], "of store.volumeClaimTemplate only resources may change: make another run")
)]
pub struct VolumeClaimTemplate {
    /// StorageClass. Default: the cluster's default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
    /// How the volume is mounted. The driver and the trainer's pods mount it, and ReadWriteOnce puts them on one node.
    /// Engines and sandboxes do not mount it, and may run on other nodes.
    #[serde(default = "default_access_modes")]
    #[schemars(length(min = 1, max = 4))]
    pub access_modes: Vec<AccessMode>,
    /// `requests.storage` says how much.
    pub resources: ClaimResources,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    ReadWriteOnce,
    ReadWriteMany,
}

fn default_access_modes() -> Vec<AccessMode> {
    vec![AccessMode::ReadWriteOnce]
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimResources {
    /// What the volume must have.
    pub requests: ClaimRequests,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRequests {
    /// For example `20Gi`.
    #[schemars(length(min = 1, max = 32))]
    pub storage: String,
}
