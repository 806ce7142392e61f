//! A model's weights by their Hugging Face names, read from and written to safetensors files, fp32 in memory.
//!
//! Independent of libtorch, so the embedded engine reads the same bytes with the same code. [`Source`] reads any range
//! of a directory's tensors, so that a rank reads only its shard; [`export`] writes directories for other programs,
//! with the [`companions`] of their model.
//! [`checksum`] covers names, shapes and values, not the layout in files. It is `tensorsSha256` in a weights manifest,
//! and an engine reports it after loading. [`TensorsDigest`] computes it from tensors that arrive one by one.

pub mod companions;
pub mod export;
mod precision;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::error::ModelError;
use crate::lora::Linear;
pub use precision::Precision;
pub use source::Source;

/// One tensor, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// The embedding's table, and the vocabulary head, which a tied model does not have.
const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A model's tensors by name.
pub type Weights = BTreeMap<String, Array>;

/// One group of parameters that are gathered and freed together.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// `embedding` or `layer <n>`.
    pub name: String,
    /// Tensors in order, with their shapes.
    pub tensors: Vec<(String, Vec<usize>)>,
}

impl Unit {
    /// Values in the unit.
    pub fn numel(&self) -> usize {
        self.tensors
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    }
}

/// The sharding units of a model, in forward order: embedding with final norm and head (needed first, and again at the
/// end), then blocks.
pub fn units(config: &Config) -> Vec<Unit> {
    let h = config.hidden_size;
    let mut ends = vec![
        (EMBEDDING.to_owned(), vec![config.vocab_size, h]),
        ("model.norm.weight".to_owned(), vec![h]),
    ];
    if !config.tie_word_embeddings {
        ends.push((HEAD.to_owned(), vec![config.vocab_size, h]));
    }
    let ends = Unit {
        name: "embedding".to_owned(),
        tensors: ends,
    };
    let layers = (0..config.num_hidden_layers).map(|layer| Unit {
        name: format!("layer {layer}"),
        tensors: layer_tensors(config, layer),
    });
    std::iter::once(ends).chain(layers).collect()
}

/// The tensors of one block, in the order in which [`crate::model`] takes them.
fn layer_tensors(config: &Config, layer: usize) -> Vec<(String, Vec<usize>)> {
    let (h, d) = (config.hidden_size, config.head_dim());
    let named = |name: &str, shape: Vec<usize>| (format!("model.layers.{layer}.{name}"), shape);
    let linear = |linear: Linear| {
        named(
            &format!("{}.weight", linear.path()),
            config.linear_shape(linear).to_vec(),
        )
    };
    let mut tensors = vec![named("input_layernorm.weight", vec![h])];
    for part in [Linear::Query, Linear::Key, Linear::Value, Linear::Output] {
        tensors.push(linear(part));
        if config.biased() && part != Linear::Output {
            tensors.push(named(
                &format!("{}.bias", part.path()),
                vec![config.linear_shape(part)[0]],
            ));
        }
    }
    if config.norms_heads() {
        tensors.push(named("self_attn.q_norm.weight", vec![d]));
        tensors.push(named("self_attn.k_norm.weight", vec![d]));
    }
    tensors.push(named("post_attention_layernorm.weight", vec![h]));
    match config.experts_of(layer) {
        None => tensors.extend([Linear::Gate, Linear::Up, Linear::Down].map(linear)),
        Some(experts) => {
            let f = experts.intermediate_size;
            tensors.push(named("mlp.gate.weight", vec![experts.count, h]));
            for expert in 0..experts.count {
                let part = |name: &str, shape| named(&format!("mlp.experts.{expert}.{name}.weight"), shape);
                tensors.push(part("gate_proj", vec![f, h]));
                tensors.push(part("up_proj", vec![f, h]));
                tensors.push(part("down_proj", vec![h, f]));
            }
        }
    }
    tensors
}

/// Reads the whole model of a directory, which must hold exactly the tensors that the config requires.
pub fn read(dir: &Path, config: &Config) -> Result<Weights, ModelError> {
    let source = Source::open(dir, config)?;
    let tensors = units(config).into_iter().flat_map(|unit| unit.tensors);
    tensors
        .map(|(name, shape)| {
            let values = source.read(&name, 0..shape.iter().product())?;
            Ok((name, Array { shape, values }))
        })
        .collect()
}

/// The bytes of `model.safetensors`, fp32.
pub fn to_safetensors(weights: &Weights) -> Result<Vec<u8>, ModelError> {
    let failed = |message: String| ModelError::Malformed {
        path: "model.safetensors".to_owned(),
        message,
    };
    let data: Vec<(&String, Vec<u8>)> = weights
        .iter()
        .map(|(name, array)| (name, Precision::F32.encoded(&array.values)))
        .collect();
    let views = data
        .iter()
        .map(|(name, bytes)| {
            let shape = weights[*name].shape.clone();
            TensorView::new(Dtype::F32, shape, bytes)
                .map(|view| (name.as_str(), view))
                .map_err(|e| failed(e.to_string()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let metadata = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views, Some(metadata)).map_err(|e| failed(e.to_string()))
}

/// Values that are hashed at a time.
const HASHED: usize = 1 << 14;

/// [`checksum`] of tensors that arrive one by one, in any order, as a reader of a file of this precision gets them.
#[derive(Clone, Debug, Default)]
pub struct TensorsDigest {
    precision: Precision,
    by_name: BTreeMap<String, [u8; 32]>,
    /// A tensor of which values are missing: its name, the digest so far, how many are missing.
    open: Option<(String, Sha256, usize)>,
}

impl TensorsDigest {
    pub fn of(precision: Precision) -> Self {
        Self {
            precision,
            ..Self::default()
        }
    }

    /// Adds the next values of a tensor: all of them, or a part that the next calls complete.
    pub fn add(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let (mut sha, missing) = match self.open.take().filter(|(open, ..)| open == name) {
            Some((_, sha, missing)) => (sha, missing),
            None => {
                let mut sha = Sha256::new();
                sha.update(name.as_bytes());
                sha.update([0]);
                for dimension in shape {
                    sha.update((*dimension as u64).to_le_bytes());
                }
                (sha, shape.iter().product())
            }
        };
        let mut buffer = Vec::new();
        for piece in values.chunks(HASHED) {
            self.precision.encode_as_read(piece, &mut buffer);
            sha.update(&buffer);
        }
        match missing.saturating_sub(values.len()) {
            0 => {
                self.by_name.insert(name.to_owned(), sha.finalize().into());
            }
            missing => self.open = Some((name.to_owned(), sha, missing)),
        }
    }

    pub fn finish(&self) -> String {
        let mut sha = Sha256::new();
        self.by_name.values().for_each(|digest| sha.update(digest));
        hex::encode(sha.finalize())
    }
}

/// Hex SHA-256 over the tensors' SHA-256 in name order. A tensor's SHA-256 is over its name, a zero byte, dimensions as
/// little-endian u64, values as little-endian f32.
pub fn checksum(weights: &Weights) -> String {
    let mut digest = TensorsDigest::default();
    for (name, array) in weights {
        digest.add(name, &array.shape, &array.values);
    }
    digest.finish()
}
