//! A directory's safetensors files. At first only headers are read; values are read on request.
//!
//! One file `model.safetensors`, or several with `model.safetensors.index.json`, which names the file of each tensor. A
//! file has eight bytes with the header's length, a JSON header with each tensor's type, shape and range, then the
//! values (<https://huggingface.co/docs/safetensors>). The header is checked fully when the directory is opened, so
//! that a damaged file is refused before a rank has joined anything.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorInfo};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{EMBEDDING, HEAD, units};
use crate::config::Config;
use crate::error::ModelError;

/// Maximum accepted header length, bytes.
const HEADER_BYTES: u64 = 100_000_000;

/// Values that are read at once, so that a large tensor needs no second copy.
const PIECE: usize = 1 << 20;

/// Places where a stored head is compared with the embedding, and the values of each.
const COMPARED: (usize, usize) = (16, 1 << 12);

/// The tensors of a model directory, readable in ranges.
pub struct Source {
    tensors: BTreeMap<String, Place>,
    files: Vec<(PathBuf, File)>,
}

/// The location of a tensor.
struct Place {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Its first byte in the file.
    begin: u64,
}

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: Entries<String>,
}

impl Source {
    /// Reads the headers of `dir` and checks that its files hold exactly the tensors that the config requires.
    pub fn open(dir: &Path, config: &Config) -> Result<Self, ModelError> {
        let source = Self::of_tensors(
            dir,
            "model",
            units(config).into_iter().flat_map(|unit| unit.tensors),
            config.tie_word_embeddings,
        )?;
        if config.tie_word_embeddings {
            source.check_tied_head(config)?;
        }
        Ok(source)
    }

    /// Refuses a tied model's head that is not a copy of the embedding: transformers 5 computes with it, and engines
    /// ignore it. A head that was trained by itself differs nearly everywhere, so a few places are enough.
    fn check_tied_head(&self, config: &Config) -> Result<(), ModelError> {
        let Some(head) = self.tensors.get(HEAD) else {
            return Ok(());
        };
        let mut same = head.shape == [config.vocab_size, config.hidden_size] && bytes_of(head.dtype).is_some();
        let numel = config.vocab_size * config.hidden_size;
        let (places, values) = (COMPARED.0, COMPARED.1.min(numel));
        for place in 0..places {
            let from = (numel - values) / (places - 1) * place;
            let read = |name: &str| self.read(name, from..from + values);
            same = same && read(HEAD)? == read(EMBEDDING)?;
        }
        match same {
            true => Ok(()),
            false => Err(ModelError::Unsupported {
                path: self.path(head.file),
                field: "tie_word_embeddings",
                found: format!("true beside a tensor {HEAD} that is no copy of {EMBEDDING}"),
                wanted: "set it to false, or remove the tensor",
            }),
        }
    }

    /// `stem` is `model`, or `adapter_model` in a PEFT directory. `tied`: a copy of the embedding as head is ignored.
    pub(crate) fn of_tensors(
        dir: &Path,
        stem: &str,
        wanted: impl Iterator<Item = (String, Vec<usize>)>,
        tied: bool,
    ) -> Result<Self, ModelError> {
        let index_path = dir.join(format!("{stem}.safetensors.index.json"));
        let index = match index_path.exists() {
            true => Some(read_index(&index_path)?),
            false => None,
        };
        let mut names: Vec<String> = match &index {
            Some(index) => index.iter().map(|(_, file)| file.clone()).collect(),
            None => vec![format!("{stem}.safetensors")],
        };
        names.sort();
        names.dedup();
        let mut source = Self {
            tensors: BTreeMap::new(),
            files: Vec::new(),
        };
        for name in names {
            source.add_file(dir.join(name))?;
        }
        let whole = index
            .as_ref()
            .map_or_else(|| source.path(0), |_| index_path.display().to_string());
        if let Some(index) = &index {
            source.check_index(index, &index_path)?;
        }
        source.check(wanted, &whole, tied)?;
        Ok(source)
    }

    fn path(&self, file: usize) -> String {
        self.files[file].0.display().to_string()
    }

    fn add_file(&mut self, path: PathBuf) -> Result<(), ModelError> {
        let shown = path.display().to_string();
        let failed = |source| ModelError::Read {
            path: shown.clone(),
            source,
        };
        let malformed = |message: String| ModelError::Malformed {
            path: shown.clone(),
            message,
        };
        let file = File::open(&path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let mut length = [0; 8];
        if size < 8 {
            return Err(malformed(format!(
                "{size} bytes are no safetensors file; it is cut off or empty"
            )));
        }
        file.read_exact_at(&mut length, 0).map_err(failed)?;
        let length = u64::from_le_bytes(length);
        if length > HEADER_BYTES || length > size - 8 {
            return Err(malformed(format!(
                "its header would be {length} bytes of {size}; it is cut off or damaged"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8).map_err(failed)?;
        let mut entries: Entries<TensorInfo> =
            serde_json::from_slice(&header).map_err(|e| malformed(format!("its header cannot be read: {e}")))?;
        entries.0.sort_by_key(|(_, info)| info.data_offsets);

        let (index, begin) = (self.files.len(), 8 + length);
        let mut end = 0;
        for (name, info) in entries.0 {
            let damaged = |message: String| ModelError::DamagedTensor {
                path: shown.clone(),
                name: name.clone(),
                message,
            };
            if let Some(there) = self.tensors.get(&name) {
                let other = match there.file == index {
                    true => "the same file".to_owned(),
                    false => self.path(there.file),
                };
                return Err(ModelError::DuplicateTensor {
                    path: shown,
                    name,
                    other,
                });
            }
            let (from, to) = info.data_offsets;
            if from != end {
                return Err(damaged(format!("it begins at byte {from}, where {end} is free")));
            }
            let numel = info.shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
            let bits = numel.and_then(|numel| numel.checked_mul(info.dtype.bitsize()));
            if to < from || bits != (to - from).checked_mul(8) {
                let Some(bytes) = to.checked_sub(from) else {
                    return Err(damaged(format!("it ends at byte {to}, before it begins")));
                };
                return Err(damaged(format!(
                    "{bytes} bytes for {:?} of shape {:?}",
                    info.dtype, info.shape
                )));
            }
            if begin.checked_add(to as u64).is_none_or(|last| last > size) {
                return Err(damaged(format!("the file ends before it: {size} bytes are there")));
            }
            end = to;
            let place = Place {
                file: index,
                dtype: info.dtype,
                shape: info.shape,
                begin: begin + from as u64,
            };
            self.tensors.insert(name, place);
        }
        if begin + end as u64 != size {
            return Err(malformed(format!(
                "{} bytes belong to no tensor",
                size - begin - end as u64
            )));
        }
        self.files.push((path, file));
        Ok(())
    }

    /// Checks that every tensor is in the file that the index names.
    fn check_index(&self, index: &[(String, String)], path: &Path) -> Result<(), ModelError> {
        for (at, (name, file)) in index.iter().enumerate() {
            let found = self.tensors.get(name).map(|place| &self.files[place.file].0);
            if found
                .and_then(|found| found.file_name())
                .is_none_or(|found| found != file.as_str())
            {
                return Err(ModelError::MissingTensor {
                    path: path.with_file_name(file).display().to_string(),
                    name: name.clone(),
                });
            }
            if index[..at].last().is_some_and(|(before, _)| before == name) {
                return Err(ModelError::DuplicateTensor {
                    path: path.display().to_string(),
                    name: name.clone(),
                    other: "the same file".to_owned(),
                });
            }
        }
        Ok(())
    }

    fn check(
        &self,
        wanted: impl Iterator<Item = (String, Vec<usize>)>,
        whole: &str,
        tied: bool,
    ) -> Result<(), ModelError> {
        let mut known = std::collections::BTreeSet::new();
        for (name, wanted) in wanted {
            let Some(place) = self.tensors.get(&name) else {
                let path = whole.to_owned();
                return Err(ModelError::MissingTensor { path, name });
            };
            let path = self.path(place.file);
            if place.shape != wanted {
                let found = place.shape.clone();
                return Err(ModelError::Shape {
                    path,
                    name,
                    found,
                    wanted,
                });
            }
            if bytes_of(place.dtype).is_none() {
                let found = format!("{:?}", place.dtype);
                return Err(ModelError::Kind { path, name, found });
            }
            known.insert(name);
        }
        // Tensors that older writers store with a model and the model does not use.
        let idle = |name: &str| (tied && name == HEAD) || name.ends_with("rotary_emb.inv_freq");
        match self
            .tensors
            .iter()
            .find(|(name, _)| !known.contains(*name) && !idle(name))
        {
            Some((name, place)) => Err(ModelError::UnexpectedTensor {
                path: self.path(place.file),
                name: name.clone(),
            }),
            None => Ok(()),
        }
    }

    /// A range of a tensor's values in row-major order, as fp32.
    pub fn read(&self, name: &str, range: Range<usize>) -> Result<Vec<f32>, ModelError> {
        let Some(place) = self.tensors.get(name) else {
            let path = self.files.first().map(|(path, _)| path.display().to_string());
            return Err(ModelError::MissingTensor {
                path: path.unwrap_or_default(),
                name: name.to_owned(),
            });
        };
        let (path, file) = &self.files[place.file];
        let damaged = |message: String| ModelError::DamagedTensor {
            path: path.display().to_string(),
            name: name.to_owned(),
            message,
        };
        let numel: usize = place.shape.iter().product();
        let (Some(width), true) = (bytes_of(place.dtype), range.end <= numel) else {
            return Err(damaged(format!("values {range:?} of {numel}")));
        };
        let mut values = Vec::with_capacity(range.len());
        let mut bytes = vec![0; PIECE.min(range.len()) * width];
        let mut at = range.start;
        while at < range.end {
            let piece = &mut bytes[..PIECE.min(range.end - at) * width];
            // The file was long enough when it was opened; it may have been truncated since.
            file.read_exact_at(piece, place.begin + (at * width) as u64)
                .map_err(|e| damaged(format!("reading values from {at}: {e}")))?;
            at += piece.len() / width;
            match place.dtype {
                Dtype::F32 => values.extend(
                    piece
                        .chunks_exact(4)
                        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                ),
                Dtype::F16 => {
                    values.extend(
                        piece
                            .chunks_exact(2)
                            .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()),
                    );
                }
                _ => values.extend(
                    piece
                        .chunks_exact(2)
                        .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()),
                ),
            }
        }
        Ok(values)
    }

    /// Like [`Source::read`]; refuses infinite values and NaN, which would spread to every parameter in one step.
    pub fn read_finite(&self, name: &str, range: Range<usize>) -> Result<Vec<f32>, ModelError> {
        let first = range.start;
        let values = self.read(name, range)?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => Err(ModelError::DamagedTensor {
                path: self
                    .tensors
                    .get(name)
                    .map(|place| self.path(place.file))
                    .unwrap_or_default(),
                name: name.to_owned(),
                message: format!("value {} is {}", first + at, values[at]),
            }),
        }
    }
}

/// Bytes per value, for types that can be read.
fn bytes_of(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        _ => None,
    }
}

fn read_index(path: &Path) -> Result<Vec<(String, String)>, ModelError> {
    let shown = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|source| ModelError::Read {
        path: shown.clone(),
        source,
    })?;
    let index: Index = serde_json::from_slice(&bytes).map_err(|e| ModelError::Malformed {
        path: shown.clone(),
        message: e.to_string(),
    })?;
    let mut entries = index.weight_map.0;
    entries.sort();
    // A name with a folder in it would leave the directory.
    let outside = |(_, file): &&(String, String)| Path::new(file).file_name().is_none_or(|name| name != file.as_str());
    match entries.iter().find(outside) {
        Some((name, file)) => Err(ModelError::DamagedTensor {
            path: shown,
            name: name.clone(),
            message: format!("it lies in {file:?}, which is no file beside the index"),
        }),
        None => Ok(entries),
    }
}

/// An object's entries as written, duplicates included; `__metadata__` is skipped.
struct Entries<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Reader(std::marker::PhantomData))
    }
}
