//! Writes directories for other programs: a model in Hugging Face's format, an adapter in PEFT's.
//!
//! Tensors arrive one after the other and are written at once; a file's header is known beforehand from the units. A
//! directory is written beside its final name and renamed last, so the name has all content or does not exist.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Unit;
use super::companions::{COMPANIONS, copy_named_templates};
use super::precision::Precision;
use crate::config::Config;
use crate::error::ModelError;
use crate::lora::Lora;

/// A tensor's name and shape.
pub type Named = (String, Vec<usize>);

/// Values that are encoded at a time.
const PIECE: usize = 1 << 20;

/// A directory being written.
pub struct Export {
    target: PathBuf,
    staged: PathBuf,
    precision: Precision,
    /// Files in order, each with its tensors in order.
    plan: Vec<(String, Vec<Named>)>,
    /// The open file, and the number of its tensors that are written.
    open: Option<(BufWriter<File>, usize)>,
    file: usize,
}

impl Export {
    /// A Hugging Face directory at `target`, which must not exist: config, tokenizer and so on from `model_dir`, then
    /// `units`' tensors in files of at most `file_bytes` (a larger tensor has its own file), with an index if there are
    /// several files.
    pub fn model(
        target: &Path,
        model_dir: &Path,
        units: &[Unit],
        precision: Precision,
        file_bytes: u64,
    ) -> Result<Self, ModelError> {
        let groups = grouped(units, precision, file_bytes);
        let count = groups.len();
        let name = |at: usize| match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
        };
        let plan: Vec<_> = groups
            .into_iter()
            .enumerate()
            .map(|(at, group)| (name(at), group))
            .collect();
        let export = Self::begin(target, precision, plan)?;
        let mut config: Value = read_json(&model_dir.join("config.json"))?;
        for field in ["torch_dtype", "dtype"] {
            if config.get(field).is_some() {
                config[field] = precision.names().1.into();
            }
        }
        export.put("config.json", &config)?;
        for name in COMPANIONS {
            let from = model_dir.join(name);
            if from.exists() {
                let to = export.staged.join(name);
                std::fs::copy(&from, &to).map_err(failed(&to))?;
            }
        }
        copy_named_templates(model_dir, &export.staged)?;
        if count > 1 {
            let mut map = BTreeMap::new();
            let mut bytes = 0;
            for (file, tensors) in &export.plan {
                for (name, shape) in tensors {
                    map.insert(name, file);
                    bytes += precision.bytes() * shape.iter().product::<usize>() as u64;
                }
            }
            let index = json!({"metadata": {"total_size": bytes}, "weight_map": map});
            export.put("model.safetensors.index.json", &index)?;
        }
        Ok(export)
    }

    /// PEFT's directory of an adapter. `base` is the name of the adapter's model in it.
    pub fn adapter(
        target: &Path,
        config: &Config,
        lora: &Lora,
        base: &str,
        precision: Precision,
    ) -> Result<Self, ModelError> {
        let tensors = crate::adapter::units(config, lora)
            .into_iter()
            .flat_map(|unit| unit.tensors);
        let plan = vec![("adapter_model.safetensors".to_owned(), tensors.collect())];
        let export = Self::begin(target, precision, plan)?;
        export.put("adapter_config.json", &lora.peft_config(base))?;
        Ok(export)
    }

    fn begin(target: &Path, precision: Precision, plan: Vec<(String, Vec<Named>)>) -> Result<Self, ModelError> {
        let taken = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        let Some(name) = target.file_name().filter(|_| !target.exists()) else {
            return Err(failed(target)(taken));
        };
        let staged = target.with_file_name(format!(".{}-{}", std::process::id(), name.to_string_lossy()));
        std::fs::create_dir_all(&staged).map_err(failed(&staged))?;
        Ok(Self {
            target: target.to_owned(),
            staged,
            precision,
            plan,
            open: None,
            file: 0,
        })
    }

    fn put(&self, name: &str, value: &Value) -> Result<(), ModelError> {
        let path = self.staged.join(name);
        std::fs::write(&path, format!("{value:#}\n")).map_err(failed(&path))
    }

    /// Writes the next tensor; they come in the order of the units.
    pub fn tensor(&mut self, name: &str, values: &[f32]) -> Result<(), ModelError> {
        let path = || self.plan.get(self.file).map(|(file, _)| self.staged.join(file));
        let (Some(path), precision) = (path(), self.precision) else {
            return Err(self.out_of_order(name));
        };
        let (mut out, at) = match self.open.take() {
            Some(open) => open,
            None => {
                let mut out = BufWriter::new(File::create(&path).map_err(failed(&path))?);
                out.write_all(&header(&self.plan[self.file].1, precision))
                    .map_err(failed(&path))?;
                (out, 0)
            }
        };
        let tensors = &self.plan[self.file].1;
        if tensors
            .get(at)
            .is_none_or(|(next, shape)| next != name || shape.iter().product::<usize>() != values.len())
        {
            return Err(self.out_of_order(name));
        }
        let last = at + 1 == tensors.len();
        let mut bytes = Vec::new();
        for piece in values.chunks(PIECE) {
            precision.encode(piece, &mut bytes);
            out.write_all(&bytes).map_err(failed(&path))?;
        }
        match last {
            false => self.open = Some((out, at + 1)),
            true => {
                let file = out.into_inner().map_err(|e| failed(&path)(e.into_error()))?;
                file.sync_all().map_err(failed(&path))?;
                self.file += 1;
            }
        }
        Ok(())
    }

    fn out_of_order(&self, name: &str) -> ModelError {
        ModelError::UnexpectedTensor {
            path: self.target.display().to_string(),
            name: name.to_owned(),
        }
    }

    /// Gives the directory its name.
    pub fn finish(mut self) -> Result<(), ModelError> {
        if let Some((_, tensors)) = self.plan.get(self.file) {
            let at = self.open.as_ref().map_or(0, |(_, at)| *at);
            return Err(ModelError::MissingTensor {
                path: self.target.display().to_string(),
                name: tensors[at].0.clone(),
            });
        }
        let synced = File::open(&self.staged).and_then(|folder| folder.sync_all());
        synced.map_err(failed(&self.staged))?;
        std::fs::rename(&self.staged, &self.target).map_err(failed(&self.target))?;
        // Nothing is left to remove.
        self.staged = PathBuf::new();
        Ok(())
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if self.staged.as_os_str().is_empty() {
            return;
        }
        // Frees space for the next try; the original error is the one to report.
        let _ = std::fs::remove_dir_all(&self.staged);
    }
}

/// Splits the units' tensors into groups of at most `most` bytes, in order; a larger tensor has its own group.
fn grouped(units: &[Unit], precision: Precision, most: u64) -> Vec<Vec<(String, Vec<usize>)>> {
    let mut groups: Vec<(u64, Vec<Named>)> = Vec::new();
    for (name, shape) in units.iter().flat_map(|unit| &unit.tensors) {
        let bytes = precision.bytes() * shape.iter().product::<usize>() as u64;
        let tensor = (name.clone(), shape.clone());
        match groups.last_mut() {
            Some((sum, group)) if *sum + bytes <= most => {
                *sum += bytes;
                group.push(tensor);
            }
            _ => groups.push((bytes, vec![tensor])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The header of a safetensors file with these tensors in this order, padded so that the values begin at a multiple of
/// eight.
pub fn header(tensors: &[Named], precision: Precision) -> Vec<u8> {
    let mut entries = serde_json::Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut begin = 0;
    for (name, shape) in tensors {
        let end = begin + precision.bytes() * shape.iter().product::<usize>() as u64;
        let entry = json!({"dtype": precision.names().0, "shape": shape, "data_offsets": [begin, end]});
        entries.insert(name.clone(), entry);
        begin = end;
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text].concat()
}

fn read_json(path: &Path) -> Result<Value, ModelError> {
    let shown = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|source| ModelError::Read {
        path: shown.clone(),
        source,
    })?;
    serde_json::from_slice(&bytes).map_err(|e| ModelError::Malformed {
        path: shown,
        message: e.to_string(),
    })
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> ModelError {
    let path = path.display().to_string();
    move |source| ModelError::Write {
        path: path.clone(),
        source,
    }
}
