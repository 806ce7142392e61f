//! Secrets and ConfigMaps that a run's pods mount because the spec names them. A pod that mounts a missing one would
//! wait on its node, with the capacity of the whole run.

use grpo_crds::common::SecretKeyRef;
use grpo_crds::grpo_run::{Dataset, GrpoRunSpec, Select};

/// An object that the spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub kind: ReferenceKind,
    pub name: String,
    pub key: String,
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
    found
}

fn of_rows(path: &str, dataset: &Dataset, select: &Select, found: &mut Vec<Reference>) {
    let token = dataset.hub.as_ref().and_then(|hub| hub.token_secret_ref.as_ref());
    found.extend(token.map(|token| secret(token, format!("{path}.dataset.hub.tokenSecretRef"))));
    for (field, ids) in [("instanceIds", &select.instance_ids), ("exclude", &select.exclude)] {
        let list = ids.as_ref().and_then(|ids| ids.config_map_ref.as_ref());
        found.extend(list.map(|list| Reference {
            kind: ReferenceKind::ConfigMap,
            name: list.name.clone(),
            key: list.key.clone(),
            path: format!("{path}.select.{field}.configMapRef"),
        }));
    }
}

fn secret(named: &SecretKeyRef, path: String) -> Reference {
    Reference {
        kind: ReferenceKind::Secret,
        name: named.name.clone(),
        key: named.key.clone(),
        path,
    }
}

impl Reference {
    /// What is missing, and what to do.
    pub fn message(&self, namespace: &str) -> String {
        let Self { kind, name, key, path } = self;
        format!("{path}: there is no {kind:?} {name} with the key {key} in namespace {namespace}; create it")
    }
}
