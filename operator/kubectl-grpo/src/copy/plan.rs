//! Selects the files of a store to copy, and the missing part of each. Pure.

use super::error::CopyError;
use crate::arguments::tools::{LATEST, WeightsFormat};
use grpo_model::weights::companions::named_template;
use grpo_records::look::files::StoredFile;
use grpo_records::paths;
use grpo_records::weights::{WeightsFile, WeightsManifest};

/// The wanted parts of a store, except weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    pub episodes: bool,
    pub metrics: bool,
    pub rows: bool,
}

impl Kinds {
    /// Folders of the store. A copy with episodes also has the journal, because `--from` reads it as a store.
    pub fn folders(self) -> Vec<&'static str> {
        let of = |wanted: bool, folders: &[&'static str]| if wanted { folders.to_vec() } else { Vec::new() };
        let episodes = of(
            self.episodes,
            &[
                paths::JOURNAL,
                paths::BATCHES,
                paths::CONVERSATIONS,
                paths::ROLLOUTS,
                paths::EVALUATIONS,
                paths::TOKEN_STATS,
            ],
        );
        let metrics = of(self.metrics, &[paths::METRICS, paths::TENSORBOARD, paths::WANDB]);
        let rows = of(
            self.rows,
            &[paths::TASKS, paths::DATASETS, paths::MODELS, paths::VALIDATION],
        );
        [episodes, metrics, rows].concat()
    }
}

/// A file of the store, with the known facts about its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub path: String,
    pub bytes: u64,
    pub sha256: Option<String>,
}

impl From<StoredFile> for Wanted {
    fn from(file: StoredFile) -> Self {
        Self {
            path: file.path,
            bytes: file.bytes,
            sha256: None,
        }
    }
}

/// The next step for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The file exists here already.
    Keep,
    /// Fetch the file from this byte on, after the part of an earlier call.
    Fetch { from: u64 },
}

/// `here` and `part` are the lengths of the file and of its unfinished part on this machine, if they exist. A file of a
/// store never changes, so a part is always its beginning; a log that grew has another length.
pub fn step(wanted: &Wanted, here: Option<u64>, part: Option<u64>) -> Step {
    match (here, part) {
        (Some(length), _) if length == wanted.bytes => Step::Keep,
        (_, Some(length)) if length <= wanted.bytes => Step::Fetch { from: length },
        _ => Step::Fetch { from: 0 },
    }
}

/// The manifest of the selected version.
pub fn chosen<'a>(
    run: &str,
    manifests: &'a [WeightsManifest],
    version: &str,
) -> Result<&'a WeightsManifest, CopyError> {
    let newest = |manifest: &&WeightsManifest| (paths::lineage_number(&manifest.lineage), manifest.step);
    let found = match version {
        LATEST => manifests.iter().max_by_key(newest),
        version => manifests.iter().find(|manifest| manifest.version == version),
    };
    found.ok_or_else(|| {
        let mut there: Vec<&WeightsManifest> = manifests.iter().collect();
        there.sort_by_key(newest);
        let there: Vec<&str> = there.iter().map(|manifest| manifest.version.as_str()).collect();
        CopyError::NoVersion {
            run: run.to_owned(),
            version: version.to_owned(),
            there: there.join(", "),
        }
    })
}

/// Whether the version is an adapter; an error if that contradicts the requested format.
pub fn is_adapter(
    manifest: &WeightsManifest,
    format: Option<WeightsFormat>,
    has_base: bool,
) -> Result<bool, CopyError> {
    let is_adapter = manifest.files.iter().any(|file| file.name == "adapter_config.json");
    let other = |is: &'static str, advice: &'static str| {
        Err(CopyError::Format {
            version: manifest.version.clone(),
            is,
            advice,
        })
    };
    match (format, is_adapter) {
        (Some(WeightsFormat::Adapter), false) => other("a whole model", "--format hf"),
        (Some(WeightsFormat::Hf), true) => other("an adapter", "--format adapter, or --format merged --base DIR"),
        (Some(WeightsFormat::Merged), false) => other("a whole model, which needs no merging", "--format hf"),
        (Some(WeightsFormat::Merged), true) if !has_base => other(
            "an adapter, and the store does not have its base model",
            "--base DIR, the folder with the model that the run began with",
        ),
        _ => Ok(is_adapter),
    }
}

/// The files of a version, the manifest last: only a folder with a manifest counts as a version.
pub fn files(manifest: &WeightsManifest, manifest_bytes: u64) -> Result<Vec<Wanted>, CopyError> {
    let mut all = manifest.files.iter().chain(&manifest.chat_templates);
    if let Some(file) = all.find(|file| !paths::is_plain_name(&file.name)) {
        return Err(CopyError::FileName {
            version: manifest.version.clone(),
            name: file.name.clone(),
        });
    }
    let wanted = |path: &str, file: &WeightsFile| Wanted {
        path: paths::weights_file(&manifest.version, path),
        bytes: file.bytes,
        sha256: Some(file.sha256.clone()),
    };
    let whole = manifest.files.iter().map(|file| wanted(&file.name, file));
    let templates = manifest.chat_templates.iter();
    let templates = templates.map(|file| wanted(&named_template(&file.name), file));
    let mut files: Vec<Wanted> = whole.chain(templates).collect();
    files.push(Wanted {
        path: paths::weights_manifest(&manifest.version),
        bytes: manifest_bytes,
        sha256: None,
    });
    Ok(files)
}

#[cfg(test)]
mod tests;
