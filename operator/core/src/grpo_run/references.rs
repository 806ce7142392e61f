//! Secrets and ConfigMaps that a run's pods mount because the spec names them. A pod that mounts a missing one would
//! wait on its node, with the capacity of the whole run.

use grpo_crds::common::SecretKeyRef;
use grpo_crds::grpo_run::{Dataset, GrpoRunSpec, Select};
use grpo_crds::sources::ObjectStoreSource;

/// An object that the spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub kind: ReferenceKind,
    pub name: String,
    /// None where all values are mounted.
    pub key: Option<String>,
    /// Where the spec names it.
    pub path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceKind {
    /// Only its existence is looked at, never its values.
    Secret,
    /// It must have the key.
    ConfigMap,
}

/// All of a run, in the order of the spec.
pub fn references(spec: &GrpoRunSpec) -> Vec<Reference> {
    let mut found = Vec::new();
    let token = spec.model.hub.as_ref().and_then(|hub| hub.token_secret_ref.as_ref());
    found.extend(token.map(|token| secret(token, "model.hub.tokenSecretRef".to_owned())));
    found.extend(credentials("model", spec.model.object_store.as_ref()));
    if let Some(set) = &spec.tasks.train {
        of_rows("tasks.train", &set.dataset, &set.select, &mut found);
    }
    for set in &spec.tasks.evaluate {
        of_rows(
            &format!("tasks.evaluate[{}]", set.name),
            &set.dataset,
            &set.select,
            &mut found,
        );
    }
    found.extend(credentials("store", spec.store.object_store.as_ref()));
    found
}

fn of_rows(path: &str, dataset: &Dataset, select: &Select, found: &mut Vec<Reference>) {
    let token = dataset.hub.as_ref().and_then(|hub| hub.token_secret_ref.as_ref());
    found.extend(token.map(|token| secret(token, format!("{path}.dataset.hub.tokenSecretRef"))));
    found.extend(credentials(&format!("{path}.dataset"), dataset.object_store.as_ref()));
    for (field, ids) in [("instanceIds", &select.instance_ids), ("exclude", &select.exclude)] {
        let list = ids.as_ref().and_then(|ids| ids.config_map_ref.as_ref());
        found.extend(list.map(|list| Reference {
            kind: ReferenceKind::ConfigMap,
            name: list.name.clone(),
            key: Some(list.key.clone()),
            path: format!("{path}.select.{field}.configMapRef"),
        }));
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
    /// What is missing, and what to do.
    pub fn message(&self, namespace: &str) -> String {
        let Self { kind, name, key, path } = self;
        let key = (key.as_ref()).map_or_else(String::new, |key| format!(" with the key {key}"));
        format!("{path}: there is no {kind:?} {name}{key} in namespace {namespace}; create it")
    }
}
