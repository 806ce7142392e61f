//! Pod volumes, including the volumes with datasets and ConfigMap texts in a driver's pod.
//!
//! The operator adds those to a run's driver. `kubectl grpo tasks` adds them to a pod that reads the same rows before a
//! run exists.

use grpo_crds::common::{ConfigMapKeyRef, ObjectRef, SecretKeyRef};
use serde_json::{Value, json};

use crate::{ConfigMapMount, DatasetMount, RunConfig};

/// The volumes with a run's datasets, their Secrets and its ConfigMap texts, each with its mount. `pull_policy` applies
/// to datasets that are images.
pub fn dataset_volumes(config: &RunConfig, pull_policy: &str) -> Vec<(Value, Value)> {
    let mut volumes = Vec::new();
    for (n, dataset) in config.datasets.iter().enumerate() {
        let name = format!("dataset-{n}");
        let token = dataset.hub.as_ref().and_then(|hub| hub.token_secret_ref.as_ref());
        let bucket = dataset.object_store.as_ref();
        let keys = bucket.and_then(|bucket| bucket.credentials_secret_ref.as_ref());
        let volume = match (&dataset.image, &dataset.claim_name, token, keys) {
            (Some(reference), ..) => image_volume(&name, reference, pull_policy),
            (None, Some(claim), ..) => claim_volume(&name, claim, true),
            (None, None, Some(secret), _) => secret_volume(&name, secret, DatasetMount::TOKEN),
            (None, None, None, Some(secret)) => secret_folder_volume(&name, secret),
            (None, None, None, None) => continue,
        };
        volumes.push((volume, mount(&name, &dataset.path, true)));
    }
    for (n, text) in config.config_maps.iter().enumerate() {
        let name = format!("config-map-{n}");
        let volume = config_map_volume(&name, &text.config_map_ref, ConfigMapMount::FILE);
        volumes.push((volume, mount(&name, &text.path, true)));
    }
    volumes
}

/// An image mounted as a volume.
pub fn image_volume(name: &str, reference: &str, pull_policy: &str) -> Value {
    json!({"name": name, "image": {"reference": reference, "pullPolicy": pull_policy}})
}

/// A volume claim mounted as a volume.
pub fn claim_volume(name: &str, claim: &str, read_only: bool) -> Value {
    let mut volume = json!({"name": name, "persistentVolumeClaim": {"claimName": claim}});
    if read_only {
        volume["persistentVolumeClaim"]["readOnly"] = json!(true);
    }
    volume
}

/// One value of a ConfigMap, as the file `path`.
pub fn config_map_volume(name: &str, from: &ConfigMapKeyRef, path: &str) -> Value {
    json!({"name": name, "configMap": {"name": from.name, "items": [{"key": from.key, "path": path}]}})
}

/// One value of a Secret, as the file `path`.
pub fn secret_volume(name: &str, secret: &SecretKeyRef, path: &str) -> Value {
    json!({"name": name, "secret": {"secretName": secret.name, "items": [{"key": secret.key, "path": path}], "defaultMode": 0o440}})
}

/// All values of a Secret, one file for each key.
pub fn secret_folder_volume(name: &str, secret: &ObjectRef) -> Value {
    json!({"name": name, "secret": {"secretName": secret.name, "defaultMode": 0o440}})
}

pub fn scratch_volume(name: &str) -> Value {
    json!({"name": name, "emptyDir": {}})
}

pub fn mount(name: &str, path: &str, read_only: bool) -> Value {
    let mut mount = json!({"name": name, "mountPath": path});
    if read_only {
        mount["readOnly"] = json!(true);
    }
    mount
}
