//! Objects that a run's pods need because of the spec: Secrets and ConfigMaps that they mount, and the class of devices
//! that they share. A pod with a missing one would wait, with the capacity of the whole run.

use grpo_crds::common::{ConfigMapKeyRef, SecretKeyRef};
use grpo_crds::grpo_run::{Dataset, GrpoRunSpec, PromptOverrides, Select};
use grpo_crds::sources::ObjectStoreSource;

use super::colocation::SharedGpus;
use crate::device_claims::GPU_CLASS;

/// An object that the spec refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub kind: ReferenceKind,
    pub name: String,
    /// `None` if all values are mounted.
    pub key: Option<String>,
    /// The field of the spec that names it.
    pub path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceKind {
    /// Only its existence is checked, never its values.
    Secret,
    /// It must have the key.
    ConfigMap,
    /// Of the whole cluster.
    DeviceClass,
}

/// All references of a run, in the order of the spec.
pub fn references(spec: &GrpoRunSpec) -> Vec<Reference> {
    let mut found = Vec::new();
    let token = spec.model.hub.as_ref().and_then(|hub| hub.token_secret_ref.as_ref());
    found.extend(token.map(|token| secret(token, "model.hub.tokenSecretRef".to_owned())));
    found.extend(credentials("model", spec.model.object_store.as_ref()));
    if let Some(set) = &spec.tasks.train {
        of_rows("tasks.train", &set.dataset, &set.select, &mut found);
        of_statements("tasks.train", set.prompt_overrides.as_ref(), &mut found);
    }
    for set in &spec.tasks.evaluate {
        let path = format!("tasks.evaluate[{}]", set.name);
        of_rows(&path, &set.dataset, &set.select, &mut found);
        of_statements(&path, set.prompt_overrides.as_ref(), &mut found);
    }
    let token = spec
        .reward
        .http
        .as_ref()
        .and_then(|http| http.token_secret_ref.as_ref());
    found.extend(token.map(|token| secret(token, "reward.http.tokenSecretRef".to_owned())));
    let mlflow = spec.trackers.as_ref().and_then(|trackers| trackers.mlflow.as_ref());
    let token = mlflow.and_then(|mlflow| mlflow.token_secret_ref.as_ref());
    found.extend(token.map(|token| secret(token, "trackers.mlflow.tokenSecretRef".to_owned())));
    let wandb = spec.trackers.as_ref().and_then(|trackers| trackers.wandb.as_ref());
    let upload = wandb.and_then(|wandb| wandb.upload.as_ref());
    let path = "trackers.wandb.upload.apiKeySecretRef";
    found.extend(upload.map(|upload| secret(&upload.api_key_secret_ref, path.to_owned())));
    if let Some(finetune) = &spec.finetune {
        of_dataset("finetune.dataset", &finetune.dataset, &mut found);
        if let Some(validation) = &finetune.validation {
            of_dataset("finetune.validation.dataset", &validation.dataset, &mut found);
        }
    }
    found.extend(SharedGpus::of(spec).map(|_| Reference {
        kind: ReferenceKind::DeviceClass,
        name: GPU_CLASS.to_owned(),
        key: None,
        path: "trainer.colocate".to_owned(),
    }));
    found.extend(credentials("store", spec.store.object_store.as_ref()));
    found
}

fn of_dataset(path: &str, dataset: &Dataset, found: &mut Vec<Reference>) {
    let token = dataset.hub.as_ref().and_then(|hub| hub.token_secret_ref.as_ref());
    found.extend(token.map(|token| secret(token, format!("{path}.hub.tokenSecretRef"))));
    found.extend(credentials(path, dataset.object_store.as_ref()));
}

fn of_statements(path: &str, overrides: Option<&PromptOverrides>, found: &mut Vec<Reference>) {
    let Some(overrides) = overrides else { return };
    if let Some(dataset) = &overrides.dataset {
        of_dataset(&format!("{path}.promptOverrides.dataset"), dataset, found);
    }
    let text = overrides.config_map_ref.as_ref();
    found.extend(text.map(|text| config_map(text, format!("{path}.promptOverrides.configMapRef"))));
}

fn config_map(named: &ConfigMapKeyRef, path: String) -> Reference {
    Reference {
        kind: ReferenceKind::ConfigMap,
        name: named.name.clone(),
        key: Some(named.key.clone()),
        path,
    }
}

fn of_rows(path: &str, dataset: &Dataset, select: &Select, found: &mut Vec<Reference>) {
    of_dataset(&format!("{path}.dataset"), dataset, found);
    for (field, ids) in [("instanceIds", &select.instance_ids), ("exclude", &select.exclude)] {
        let list = ids.as_ref().and_then(|ids| ids.config_map_ref.as_ref());
        found.extend(list.map(|list| config_map(list, format!("{path}.select.{field}.configMapRef"))));
    }
}

fn secret(named: &SecretKeyRef, path: String) -> Reference {
    Reference {
        kind: ReferenceKind::Secret,
        name: named.name.clone(),
        key: Some(named.key.clone()),
        path,
    }
}

/// The Secret with the keys of a bucket.
fn credentials(path: &str, source: Option<&ObjectStoreSource>) -> Option<Reference> {
    let secret = source?.credentials_secret_ref.as_ref()?;
    Some(Reference {
        kind: ReferenceKind::Secret,
        name: secret.name.clone(),
        key: None,
        path: format!("{path}.objectStore.credentialsSecretRef"),
    })
}

impl Reference {
    /// Says what is missing, and what to do.
    pub fn message(&self, namespace: &str) -> String {
        let Self { kind, name, key, path } = self;
        if *kind == ReferenceKind::DeviceClass {
            return format!(
                "{path} shares GPUs by dynamic resource allocation, and the cluster has no DeviceClass {name}; install NVIDIA's DRA driver, or leave {path} out: the device plugin cannot give one GPU to two pods"
            );
        }
        let key = (key.as_ref()).map_or_else(String::new, |key| format!(" with the key {key}"));
        format!("{path}: there is no {kind:?} {name}{key} in namespace {namespace}; create it")
    }
}
