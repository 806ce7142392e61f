//! A published version of the weights: `weights/<version>/manifest.json`, written last, names every file and its
//! checksum.

use serde::{Deserialize, Serialize};

/// One file of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightsFile {
    pub name: String,
    pub bytes: u64,
    /// Hex.
    pub sha256: String,
}

/// A delta (crate `grpo-weights-delta`) that makes a file of this version from the file of that name of an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightsDelta {
    /// The name of the file in both versions; one of this version's [`WeightsManifest::files`].
    pub of: String,
    /// The earlier version.
    pub base: String,
    /// Checksum of the earlier version's file.
    pub base_sha256: String,
    /// The delta, in this version's folder.
    pub file: WeightsFile,
}

impl WeightsDelta {
    /// The name of the delta of a file. Engines load files that end in `.safetensors`, and so not this one.
    pub fn name_of(file: &str) -> String {
        format!("{file}.delta")
    }
}

/// Logprobs of a fixed prompt by the trainer under a version's weights. An engine that has loaded the version computes
/// nearly the same ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    pub tokens: Vec<u32>,
    /// Natural logarithm of the probability of each token after those before it, from the second token on, at
    /// temperature 1.
    pub logprobs: Vec<f32>,
}

/// The contents and the origin of a version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightsManifest {
    /// `<lineage>-v<step>`.
    pub version: String,
    pub lineage: String,
    pub step: u32,
    /// The version this one was trained from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// What engines load. Every file is whole, so each version can be fetched without an earlier one.
    pub files: Vec<WeightsFile>,
    /// Ways to get some of the files with fewer bytes. A store that was copied may lack them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deltas: Vec<WeightsDelta>,
    /// The files of the folder `additional_chat_templates` in the version's folder, by their names in that folder.
    /// They are for copies of the version, and for runs that begin with it. Engines do not pull them: they keep the
    /// templates of the model that they booted with, and load only tensors from a version. So these files are not in
    /// [`Self::files`], where agents refuse a name with a folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chat_templates: Vec<WeightsFile>,
    /// Checksum of names, shapes and values, independent of their layout in files. An engine reports it after loading.
    pub tensors_sha256: String,
    /// Versions of earlier releases have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

impl WeightsManifest {
    /// Total size of what engines load.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}
