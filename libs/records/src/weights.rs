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

/// The contents and the origin of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightsManifest {
    /// `<lineage>-v<step>`.
    pub version: String,
    pub lineage: String,
    pub step: u32,
    /// The version this one was trained from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    pub files: Vec<WeightsFile>,
    /// Checksum of names, shapes and values, independent of their layout in files. An engine reports it after loading.
    pub tensors_sha256: String,
}

impl WeightsManifest {
    /// Total size of the version's files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}
