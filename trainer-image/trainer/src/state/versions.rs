//! Weights versions: what engines load.

use std::fs;
use std::path::Path;

use grpo_contracts::weights::WEIGHTS_KEPT;
use grpo_model::weights::export::COMPANIONS;
use grpo_model::weights::{self, Weights};
use grpo_records::paths;
use grpo_records::weights::{WeightsFile, WeightsManifest};

use super::store::{TrainerStore, json, lineage_number, sha256};
use crate::error::TrainError;

/// What a version's folder is to those who load it.
pub enum Form<'a> {
    /// A model: config and tokenizer are those of this directory.
    Model(&'a Path),
    /// An adapter to the model that the run began with, and its `adapter_config.json`.
    Adapter(serde_json::Value),
}

impl Form<'_> {
    fn file(&self) -> &'static str {
        match self {
            Self::Model(_) => "model.safetensors",
            Self::Adapter(_) => "adapter_model.safetensors",
        }
    }

    /// The other files, as far as there are any.
    fn companions(&self) -> Result<Vec<(String, Vec<u8>)>, TrainError> {
        let dir = match self {
            Self::Adapter(config) => return Ok(vec![("adapter_config.json".to_owned(), json(config)?)]),
            Self::Model(dir) => dir,
        };
        let mut found = Vec::new();
        for name in std::iter::once("config.json").chain(COMPANIONS) {
            let file = dir.join(name);
            match fs::read(&file) {
                Ok(bytes) => found.push((name.to_owned(), bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(TrainError::disk("reading", &file)(error)),
            }
        }
        Ok(found)
    }
}

impl TrainerStore {
    /// Every published version.
    pub fn versions(&self) -> Result<Vec<WeightsManifest>, TrainError> {
        self.manifests(paths::WEIGHTS)
    }

    /// Publishes `weights`, in the form that engines load, and answers the manifest with its checksum. Publishing the
    /// same version again is a no-op; other weights under a published name are refused, because tokens were sampled
    /// from what the name meant.
    pub fn publish(
        &self,
        weights: &Weights,
        form: Form<'_>,
        lineage: &str,
        step: u32,
        parent_version: Option<String>,
    ) -> Result<(WeightsManifest, String), TrainError> {
        let version = paths::weights_version(lineage, step);
        let tensors_sha256 = weights::checksum(weights);
        let target = paths::weights(&version);
        if let Some(bytes) = self.read_if_there(&paths::weights_manifest(&version))? {
            let damaged = |message: String| TrainError::Damaged {
                path: target.clone(),
                message,
            };
            let manifest: WeightsManifest = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
            return match manifest.tensors_sha256 == tensors_sha256 {
                true => Ok((manifest, sha256(&bytes))),
                false => Err(damaged("other weights were published under this name".to_owned())),
            };
        }
        let mut files = vec![(form.file().to_owned(), weights::to_safetensors(weights)?)];
        files.extend(form.companions()?);
        let manifest = WeightsManifest {
            version: version.clone(),
            lineage: lineage.to_owned(),
            step,
            parent: parent_version,
            files: files
                .iter()
                .map(|(name, bytes)| WeightsFile {
                    name: name.clone(),
                    bytes: bytes.len() as u64,
                    sha256: sha256(bytes),
                })
                .collect(),
            tensors_sha256,
        };
        let text = json(&manifest)?;
        let checksum = sha256(&text);
        self.put_folder(&target, files, text)?;
        Ok((manifest, checksum))
    }

    /// Removes old versions: kept are the newest, and step 0.
    pub fn prune_versions(&self) -> Result<(), TrainError> {
        self.still_ours("removing old versions")?;
        let mut all = self.versions()?;
        all.sort_by_key(|v| (lineage_number(&v.lineage), v.step));
        for old in all.iter().rev().skip(WEIGHTS_KEPT).filter(|version| version.step > 0) {
            self.take_away(&paths::weights(&old.version))?;
        }
        Ok(())
    }
}
