//! Manifests of runs: read from YAML, changed where a bench or test needs other counts, and applied.

use super::{ClusterError, FIELD_MANAGER, api};
use grpo_crds::GrpoRun;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{path} cannot be read: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not YAML: {source}")]
    Yaml {
        path: PathBuf,
        source: serde_yaml_ng::Error,
    },
    #[error("the manifest is not a GrpoRun of this version: {0}")]
    NotARun(serde_json::Error),
}

/// A GrpoRun's manifest as a user writes it, so that a wrong one can be applied too.
#[derive(Clone, Debug, PartialEq)]
pub struct RunManifest(pub Value);

impl RunManifest {
    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        let text = std::fs::read_to_string(path).map_err(|source| ManifestError::Read {
            path: path.to_owned(),
            source,
        })?;
        let value = serde_yaml_ng::from_str(&text).map_err(|source| ManifestError::Yaml {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self(value))
    }

    pub fn named(mut self, name: &str) -> Self {
        self.0["metadata"]["name"] = json!(name);
        self
    }

    /// Sets a field below `spec`, given as a JSON pointer; creates missing objects on the way.
    pub fn with(mut self, pointer: &str, value: Value) -> Self {
        let mut at = &mut self.0["spec"];
        for part in pointer.split('/').filter(|p| !p.is_empty()) {
            at = match part.parse::<usize>() {
                Ok(index) if at.is_array() => &mut at[index],
                _ => &mut at[part],
            };
        }
        *at = value;
        self
    }

    /// Changes every evaluated set.
    pub fn for_each_set(mut self, change: impl Fn(&mut Value)) -> Self {
        if let Some(sets) = self.0["spec"]["tasks"]["evaluate"].as_array_mut() {
            sets.iter_mut().for_each(change);
        }
        self
    }

    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Applies it, and returns the object as the API server stored it.
    pub async fn apply(&self, client: &Client, namespace: &str) -> Result<GrpoRun, ClusterError> {
        let runs: Api<GrpoRun> = Api::namespaced(client.clone(), namespace);
        let object = format!("GrpoRun {namespace}/{}", self.name());
        runs.patch(
            self.name(),
            &PatchParams::apply(FIELD_MANAGER).force(),
            &Patch::Apply(&self.0),
        )
        .await
        .map_err(api("applying", object))
    }
}

/// Deletes a run and waits until it is gone.
pub async fn delete_run(client: &Client, run: &GrpoRun, limit: std::time::Duration) -> Result<(), ClusterError> {
    let namespace = run.namespace().unwrap_or_default();
    let name = run.name_any();
    let runs: Api<GrpoRun> = Api::namespaced(client.clone(), &namespace);
    match runs.delete(&name, &kube::api::DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(api("deleting", format!("GrpoRun {namespace}/{name}"))(error)),
    }
    let what = format!("GrpoRun {name} to be gone");
    let nothing = |there: &super::wait::Objects<GrpoRun>| there.is_empty().then_some(());
    Ok(super::wait::until(runs, super::wait::named(&name), limit, &what, nothing).await?)
}

#[cfg(test)]
mod tests;
