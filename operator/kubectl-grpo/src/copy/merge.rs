//! Adds an adapter to the weights of its base model: W + alpha / rank * B A, on files alone.
//!
//! A file of the result has the header of the base's file, so tensors keep their names, shapes, types and offsets.
//! Tensors with an adapter are computed in single precision, a few rows at a time, and rounded to the base's type; all
//! others are copied. The folder gets its name when it is complete.

mod error;
mod safetensors_file;
mod values;

pub use self::error::MergeError;

use self::error::disk;
use self::safetensors_file::{Header, Tensor};
use grpo_model::lora::Lora;
use grpo_model::weights::companions::copy_named_templates;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

const CONFIG: &str = "adapter_config.json";
const ADAPTER: &str = "adapter_model.safetensors";
/// PEFT's prefix of an adapter's tensor names.
const PREFIX: &str = "base_model.model.";
/// Endings of a model's other files.
const COMPANIONS: [&str; 4] = ["json", "jinja", "txt", "model"];
/// Approximate number of values in memory at once.
const BLOCK: usize = 4 << 20;

/// The two matrices of one adapter, in single precision.
#[derive(Clone, Debug, Default)]
struct Matrices {
    /// `[rank, inputs]`
    a: Vec<f32>,
    /// `[outputs, rank]`
    b: Vec<f32>,
}

/// `adapter` is a folder in PEFT's format. `target` must not exist.
pub fn merge(base: &Path, adapter: &Path, target: &Path) -> Result<(), MergeError> {
    if target.exists() {
        return Err(MergeError::There {
            target: target.to_owned(),
        });
    }
    let (lora, mut matrices) = read_adapter(adapter)?;
    let mut names: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(base).map_err(disk("reading", base))? {
        names.push(entry.map_err(disk("reading", base))?.path());
    }
    names.sort();
    let ends = |path: &Path, endings: &[&str]| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        path.is_file() && ending.is_some_and(|ending| endings.contains(&ending))
    };
    let weights: Vec<&PathBuf> = names.iter().filter(|path| ends(path, &["safetensors"])).collect();
    if weights.is_empty() {
        return Err(MergeError::NoWeights { base: base.to_owned() });
    }
    let unfinished = crate::output::part(target);
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(disk("removing", &unfinished))?;
    }
    fs::create_dir_all(&unfinished).map_err(disk("making", &unfinished))?;
    for (number, from) in weights.iter().enumerate() {
        let to = unfinished.join(from.file_name().unwrap_or_default());
        eprintln!("Merging file {} of {}: {}", number + 1, weights.len(), from.display());
        merge_file(from, &to, lora.scale() as f32, &mut matrices)?;
    }
    if let Some(name) = matrices.keys().next() {
        return Err(MergeError::OtherModel {
            tensor: name.clone(),
            what: format!("{} has no such tensor", base.display()),
        });
    }
    for from in names.iter().filter(|path| ends(path, &COMPANIONS)) {
        let to = unfinished.join(from.file_name().unwrap_or_default());
        fs::copy(from, &to).map_err(disk("copying", from))?;
    }
    copy_named_templates(base, &unfinished)?;
    fs::rename(&unfinished, target).map_err(disk("renaming", &unfinished))
}

/// The adapter's matrices, by the name of the weight that they are added to.
fn read_adapter(folder: &Path) -> Result<(Lora, BTreeMap<String, Matrices>), MergeError> {
    let config = folder.join(CONFIG);
    let bytes = fs::read(&config).map_err(disk("reading", &config))?;
    let malformed = |path: &Path, what: String| MergeError::Malformed {
        path: path.to_owned(),
        what,
    };
    let value = serde_json::from_slice(&bytes).map_err(|error| malformed(&config, error.to_string()))?;
    let lora = Lora::from_peft(value, &config.display().to_string())?;
    let file = folder.join(ADAPTER);
    let mut input = BufReader::new(File::open(&file).map_err(disk("reading", &file))?);
    let header = Header::read(&mut input, &file)?;
    let mut matrices = BTreeMap::<String, Matrices>::new();
    for tensor in &header.tensors {
        let values = tensor.values(tensor.numbers(), &mut input, &file)?;
        let parts = tensor.name.strip_prefix(PREFIX).and_then(|name| {
            let of = |ending| Some((name.strip_suffix(ending)?, ending));
            of(".lora_A.weight").or_else(|| of(".lora_B.weight"))
        });
        let Some((layer, ending)) = parts else {
            return Err(malformed(&file, format!("{} is no matrix of an adapter", tensor.name)));
        };
        let pair = matrices.entry(format!("{layer}.weight")).or_default();
        match ending {
            ".lora_A.weight" => pair.a = values,
            _ => pair.b = values,
        }
    }
    if let Some(name) = matrices.iter().find(|(_, pair)| pair.a.is_empty() || pair.b.is_empty()) {
        return Err(malformed(&file, format!("{} has one of its two matrices only", name.0)));
    }
    Ok((lora, matrices))
}

/// Writes one file of the result, and takes the matrices that belong to it.
fn merge_file(from: &Path, to: &Path, scale: f32, matrices: &mut BTreeMap<String, Matrices>) -> Result<(), MergeError> {
    let mut input = BufReader::new(File::open(from).map_err(disk("reading", from))?);
    let mut output = BufWriter::new(File::create(to).map_err(disk("writing", to))?);
    let header = Header::read(&mut input, from)?;
    output.write_all(&header.bytes).map_err(disk("writing", to))?;
    for tensor in &header.tensors {
        match matrices.remove(&tensor.name) {
            None => {
                let copied = io::copy(&mut input.by_ref().take(tensor.bytes), &mut output);
                if copied.map_err(disk("copying", from))? != tensor.bytes {
                    return Err(tensor.cut(from));
                }
            }
            Some(pair) => add(tensor, &pair, scale, (&mut input, from), (&mut output, to))?,
        }
    }
    output.flush().map_err(disk("writing", to))
}

/// Reads a weight, adds its adapter's product, and writes it.
fn add(
    tensor: &Tensor,
    pair: &Matrices,
    scale: f32,
    (input, from): (&mut impl Read, &Path),
    (output, to): (&mut impl Write, &Path),
) -> Result<(), MergeError> {
    let other = |what: String| MergeError::OtherModel {
        tensor: tensor.name.clone(),
        what,
    };
    let &[outputs, inputs] = tensor.shape.as_slice() else {
        return Err(other(format!("its shape is {:?}, not that of a matrix", tensor.shape)));
    };
    let rank = pair.a.len() / inputs.max(1);
    if rank == 0 || pair.a.len() != rank * inputs || pair.b.len() != outputs * rank {
        let (a, b) = (pair.a.len(), pair.b.len());
        return Err(other(format!(
            "its shape is {:?}, and the adapter has {a} and {b} values",
            tensor.shape
        )));
    }
    let rows = (BLOCK / inputs).clamp(1, outputs.max(1));
    for first in (0..outputs).step_by(rows) {
        let block = rows.min(outputs - first);
        let mut values = tensor.values(block * inputs, input, from)?;
        for (row, weights) in values.chunks_exact_mut(inputs).enumerate() {
            let factors = &pair.b[(first + row) * rank..][..rank];
            // The product first, then the sum: W is rounded only once.
            let mut product = vec![0.0_f32; inputs];
            for (factor, line) in factors.iter().zip(pair.a.chunks_exact(inputs)) {
                product
                    .iter_mut()
                    .zip(line)
                    .for_each(|(sum, value)| *sum += factor * value);
            }
            weights
                .iter_mut()
                .zip(&product)
                .for_each(|(weight, sum)| *weight += scale * sum);
        }
        let bytes = values::encoded(tensor.kind(from)?, &values);
        output.write_all(&bytes).map_err(disk("writing", to))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
