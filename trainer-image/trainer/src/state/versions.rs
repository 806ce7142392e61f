//! Weights versions, which engines load.

use std::fs;
use std::path::Path;

use grpo_contracts::weights::WEIGHTS_KEPT;
use grpo_model::weights::companions::{COMPANIONS, named_template, named_templates};
use grpo_model::weights::export::{Named, header};
use grpo_model::weights::{Precision, TensorsDigest};
use grpo_records::paths;
use grpo_records::store::Uploaded;
use grpo_records::weights::{Canary, WeightsFile, WeightsManifest};

use super::delta::DeltaUpload;
use super::store::{DamagedFile, FileUpload, TrainerStore, json, lineage_number, sha256};
use crate::error::TrainError;

/// The content of a version's folder.
pub enum Form<'a> {
    /// A model, with config and tokenizer from this directory.
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

    /// The other files, if any.
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

    /// The chat templates other than the default, by their names.
    fn chat_templates(&self) -> Result<Vec<(String, Vec<u8>)>, TrainError> {
        let Self::Model(dir) = self else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for name in named_templates(dir)? {
            let file = dir.join(named_template(&name));
            if !paths::is_plain_name(&name) {
                tracing::warn!(
                    "{} is not published with the weights: rename it, with letters, digits, '.', '_' and '-' only",
                    file.display()
                );
                continue;
            }
            let bytes = fs::read(&file).map_err(TrainError::disk("reading", &file))?;
            found.push((name, bytes));
        }
        Ok(found)
    }
}

/// A version whose manifest cannot be read. Its folder names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedVersion {
    pub lineage: String,
    pub step: u32,
    pub file: DamagedFile,
}

/// A version in publication, with a piece of one tensor in memory at a time. It counts once it is finished.
pub struct Publication<'a> {
    store: &'a TrainerStore,
    form: Form<'a>,
    precision: Precision,
    /// Names of the tensors to come, the next one last, and how many values of that one are there.
    rest: Vec<String>,
    given: usize,
    /// The version that has this name already, and the checksum of its manifest.
    known: Option<(WeightsManifest, String)>,
    /// `None` if the version is already published, with all its files.
    files: Option<Files<'a>>,
    digest: TensorsDigest,
    /// A piece as it is written.
    bytes: Vec<u8>,
    manifest: WeightsManifest,
}

/// The file with the tensors, and its delta.
struct Files<'a> {
    whole: FileUpload<'a>,
    delta: DeltaUpload<'a>,
}

impl Files<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TrainError> {
        let Self { whole, delta } = self;
        // The base is read, and compared, while the whole file is written.
        std::thread::scope(|scope| {
            scope.spawn(|| delta.add(bytes));
            whole.write(bytes)
        })
    }
}

impl Publication<'_> {
    /// Adds the next values of the next tensor: all of them, or a part that the next calls complete.
    pub fn tensor(&mut self, name: &str, shape: &[usize], values: &[f32]) -> Result<(), TrainError> {
        let (given, whole) = (self.given + values.len(), shape.iter().product::<usize>());
        if self.rest.last().map(String::as_str) != Some(name) || given > whole {
            return Err(self.damaged(format!("tensor {name} came out of order")));
        }
        self.given = given;
        if given == whole {
            self.rest.pop();
            self.given = 0;
        }
        let Self {
            files,
            digest,
            precision,
            bytes,
            ..
        } = self;
        // Writes the encoded values and digests the values that readers will see, in parallel.
        std::thread::scope(|scope| {
            scope.spawn(|| digest.add(name, shape, values));
            match files {
                Some(files) => {
                    precision.encode(values, bytes);
                    files.write(bytes)
                }
                None => Ok(()),
            }
        })
    }

    /// Adds the trainer's logprobs, by which engines check a load.
    pub fn canary(&mut self, canary: Option<Canary>) {
        self.manifest.canary = canary;
    }

    /// Writes the manifest, and returns it with its checksum.
    pub fn finish(mut self) -> Result<(WeightsManifest, String), TrainError> {
        if let Some(name) = self.rest.last() {
            return Err(self.damaged(format!("tensor {name} is missing")));
        }
        self.manifest.tensors_sha256 = self.digest.finish();
        let target = paths::weights(&self.manifest.version);
        let known = self.known.take();
        if known
            .as_ref()
            .is_some_and(|(known, _)| known.tensors_sha256 != self.manifest.tensors_sha256)
        {
            return Err(self.damaged("other weights were published under this name".to_owned()));
        }
        let Some(Files { whole, delta }) = self.files.take() else {
            return known.ok_or_else(|| self.damaged("its manifest is missing".to_owned()));
        };
        let Uploaded { bytes, sha256: digest } = whole.finish()?;
        let name = self.form.file().to_owned();
        self.manifest.files.push(WeightsFile {
            name,
            bytes,
            sha256: digest,
        });
        self.manifest.deltas = delta.finish().into_iter().collect();
        for (name, bytes) in self.form.companions()? {
            let file = self.put(&name.clone(), name, bytes)?;
            self.manifest.files.push(file);
        }
        for (name, bytes) in self.form.chat_templates()? {
            let file = self.put(&named_template(&name), name, bytes)?;
            self.manifest.chat_templates.push(file);
        }
        // Only a file was missing or cut. The journal and engines know the manifest by its checksum: it stays, also if
        // it is of an earlier release, which published no chat templates with names.
        let has = |known: &[WeightsFile], now: &[WeightsFile]| known.is_empty() || known == now;
        let is_same = |known: &WeightsManifest| {
            known.files == self.manifest.files && has(&known.chat_templates, &self.manifest.chat_templates)
        };
        if let Some(known) = known.filter(|(known, _)| is_same(known)) {
            return Ok(known);
        }
        let text = json(&self.manifest)?;
        let checksum = sha256(&text);
        self.store.put(&format!("{target}/{}", paths::MANIFEST), text)?;
        Ok((self.manifest, checksum))
    }

    /// Writes a small file to a path in the version's folder.
    fn put(&self, path: &str, name: String, bytes: Vec<u8>) -> Result<WeightsFile, TrainError> {
        let file = WeightsFile {
            name,
            bytes: bytes.len() as u64,
            sha256: sha256(&bytes),
        };
        self.store
            .put(&paths::weights_file(&self.manifest.version, path), bytes)?;
        Ok(file)
    }

    fn damaged(&self, message: String) -> TrainError {
        TrainError::Damaged {
            path: paths::weights(&self.manifest.version),
            message,
        }
    }
}

impl TrainerStore {
    /// Every published version with a manifest that can be read.
    pub fn versions(&self) -> Result<Vec<WeightsManifest>, TrainError> {
        Ok(self.published()?.0)
    }

    /// Every published version; those whose manifest cannot be read apart. A folder without a version's name is left
    /// out.
    pub fn published(&self) -> Result<(Vec<WeightsManifest>, Vec<DamagedVersion>), TrainError> {
        let (mut readable, mut damaged) = (Vec::new(), Vec::new());
        for (folder, manifest) in self.manifests::<WeightsManifest>(paths::WEIGHTS)? {
            let file = match manifest {
                Ok(manifest) if manifest.version == folder => {
                    readable.push(manifest);
                    continue;
                }
                Ok(manifest) => DamagedFile {
                    path: paths::weights_manifest(&folder),
                    message: format!("it is the manifest of {}", manifest.version),
                },
                Err(file) => file,
            };
            let named = paths::step_of_weights(&folder).zip(folder.rsplit_once("-v"));
            match named.filter(|(_, (lineage, _))| lineage_number(lineage) > 0) {
                Some((step, (lineage, _))) => damaged.push(DamagedVersion {
                    lineage: lineage.to_owned(),
                    step,
                    file,
                }),
                None => tracing::warn!("{} is damaged ({}), and is left out", file.path, file.message),
            }
        }
        Ok((readable, damaged))
    }

    /// Begins to publish `tensors`, in this order, in the form that engines load. Publishing the same version again
    /// writes nothing, unless its manifest or a file of it is damaged: then it is written again. Other weights under a
    /// published name are refused, because tokens were sampled from that version.
    pub fn begin_version<'a>(
        &'a self,
        form: Form<'a>,
        tensors: &[Named],
        precision: Precision,
        lineage: &str,
        step: u32,
        parent: Option<String>,
    ) -> Result<Publication<'a>, TrainError> {
        let version = paths::weights_version(lineage, step);
        let target = paths::weights(&version);
        let known = self.known(&version)?;
        let is_whole = match &known {
            Some((manifest, _)) => self.has_files(manifest)?,
            None => false,
        };
        let header = header(tensors, precision);
        let files = match is_whole {
            true => None,
            false => {
                let values: usize = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
                let bytes = header.len() as u64 + precision.bytes() * values as u64;
                // Of fp32 values a step changes nearly all; an adapter is small.
                let base = parent.as_deref().filter(|_| precision == Precision::Bf16);
                let mut files = Files {
                    whole: self.begin_file(&format!("{target}/{}", form.file()))?,
                    delta: DeltaUpload::begin(self, &version, form.file(), bytes, base),
                };
                files.write(&header)?;
                Some(files)
            }
        };
        Ok(Publication {
            store: self,
            form,
            precision,
            rest: tensors.iter().rev().map(|(name, _)| name.clone()).collect(),
            given: 0,
            known,
            files,
            digest: TensorsDigest::of(precision),
            bytes: Vec::new(),
            manifest: WeightsManifest {
                version,
                lineage: lineage.to_owned(),
                step,
                parent,
                files: Vec::new(),
                deltas: Vec::new(),
                chat_templates: Vec::new(),
                tensors_sha256: String::new(),
                canary: None,
            },
        })
    }

    /// The version that has this name, and the checksum of its manifest; `None` if its manifest is damaged.
    fn known(&self, version: &str) -> Result<Option<(WeightsManifest, String)>, TrainError> {
        let path = paths::weights_manifest(version);
        let Some(bytes) = self.read_if_there(&path)? else {
            return Ok(None);
        };
        match serde_json::from_slice::<WeightsManifest>(&bytes) {
            Ok(manifest) if manifest.version == version => Ok(Some((manifest, sha256(&bytes)))),
            _ => {
                tracing::warn!("{path} is damaged: the version is written again");
                Ok(None)
            }
        }
    }

    /// Whether every file of a version is there in its length.
    fn has_files(&self, manifest: &WeightsManifest) -> Result<bool, TrainError> {
        let files = manifest.files.iter().map(|file| (file.name.clone(), file));
        let templates = manifest.chat_templates.iter();
        let templates = templates.map(|file| (named_template(&file.name), file));
        for (path, file) in files.chain(templates) {
            let path = paths::weights_file(&manifest.version, &path);
            if self.length(&path)? != Some(file.bytes) {
                tracing::warn!("{path} is missing or cut: the version is written again");
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes old versions; keeps the newest, step 0, and every lineage's versions of the last two steps that any
    /// lineage has reached. Until a new lineage has passed them, engines may serve those of an older one: the last
    /// step, or the one before as long as the driver does not know that the last step is done. The last step also says
    /// how far to replay.
    pub fn prune_versions(&self) -> Result<(), TrainError> {
        self.still_ours("removing old versions")?;
        let (readable, damaged) = self.published()?;
        let readable = readable.into_iter().map(|version| (version.lineage, version.step));
        let damaged = damaged.into_iter().map(|version| (version.lineage, version.step));
        let mut all: Vec<(String, u32)> = readable.chain(damaged).collect();
        all.sort_by_key(|(lineage, step)| (lineage_number(lineage), *step));
        let last = all.iter().map(|(_, step)| *step).max().unwrap_or(0);
        for (lineage, step) in all.iter().rev().skip(WEIGHTS_KEPT) {
            if *step > 0 && step + 1 < last {
                self.take_away(&paths::weights(&paths::weights_version(lineage, *step)))?;
            }
        }
        Ok(())
    }
}
