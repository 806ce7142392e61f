//! Weights as files: a model's tensors by their Hugging Face names, read from and written to safetensors, fp32 in memory.
//!
//! Independent of libtorch, so the embedded engine reads the same bytes by the same code. [`checksum`] speaks of names, shapes and values,
//! not of how they lie in a file: it is what a weights manifest calls `tensorsSha256` and what an engine reports after loading.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use sha2::{Digest, Sha256};

use crate::config::{Config, ModelError};

/// One tensor, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// A model's tensors by name.
pub type Weights = BTreeMap<String, Array>;

/// One group of parameters that is gathered and freed together.
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

/// The sharding units of a model, in forward order: embedding with final norm and head (needed first, and again at the end), then blocks.
pub fn units(config: &Config) -> Vec<Unit> {
    let (h, d) = (config.hidden_size, config.head_dim());
    let (q, kv, f) = (
        config.num_attention_heads * d,
        config.num_key_value_heads * d,
        config.intermediate_size,
    );
    let mut ends = vec![
        ("model.embed_tokens.weight".to_owned(), vec![config.vocab_size, h]),
        ("model.norm.weight".to_owned(), vec![h]),
    ];
    if !config.tie_word_embeddings {
        ends.push(("lm_head.weight".to_owned(), vec![config.vocab_size, h]));
    }
    let mut units = vec![Unit {
        name: "embedding".to_owned(),
        tensors: ends,
    }];
    for layer in 0..config.num_hidden_layers {
        let part = |name: &str, shape: Vec<usize>| (format!("model.layers.{layer}.{name}.weight"), shape);
        units.push(Unit {
            name: format!("layer {layer}"),
            tensors: vec![
                part("input_layernorm", vec![h]),
                part("self_attn.q_proj", vec![q, h]),
                part("self_attn.k_proj", vec![kv, h]),
                part("self_attn.v_proj", vec![kv, h]),
                part("self_attn.o_proj", vec![h, q]),
                part("self_attn.q_norm", vec![d]),
                part("self_attn.k_norm", vec![d]),
                part("post_attention_layernorm", vec![h]),
                part("mlp.gate_proj", vec![f, h]),
                part("mlp.up_proj", vec![f, h]),
                part("mlp.down_proj", vec![h, f]),
            ],
        });
    }
    units
}

/// Reads `<dir>/model.safetensors` and checks that it holds exactly what the config asks for.
pub fn read(dir: &Path, config: &Config) -> Result<Weights, ModelError> {
    let file = dir.join("model.safetensors");
    let path = file.display().to_string();
    let bytes = std::fs::read(&file).map_err(|source| ModelError::Read {
        path: path.clone(),
        source,
    })?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|e| ModelError::Malformed {
        path: path.clone(),
        message: e.to_string(),
    })?;
    let mut weights = Weights::new();
    for (name, wanted) in units(config).into_iter().flat_map(|unit| unit.tensors) {
        let tensor = tensors.tensor(&name).map_err(|_| ModelError::MissingTensor {
            path: path.clone(),
            name: name.clone(),
        })?;
        if tensor.shape() != wanted {
            let found = tensor.shape().to_vec();
            return Err(ModelError::Shape {
                path,
                name,
                found,
                wanted,
            });
        }
        let values = match tensor.dtype() {
            Dtype::F32 => from_f32(tensor.data()),
            Dtype::BF16 => from_bf16(tensor.data()),
            other => {
                return Err(ModelError::Kind {
                    path,
                    name,
                    found: format!("{other:?}"),
                });
            }
        };
        weights.insert(name, Array { shape: wanted, values });
    }
    Ok(weights)
}

fn from_f32(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

fn from_bf16(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(2)
        .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
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
        .map(|(name, a)| (name, a.values.iter().flat_map(|v| v.to_le_bytes()).collect()))
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

/// Hex sha256 over every tensor in name order: name, a zero byte, dimensions as little-endian u64, values as little-endian f32.
pub fn checksum(weights: &Weights) -> String {
    let mut sha = Sha256::new();
    let mut buffer = Vec::new();
    for (name, array) in weights {
        sha.update(name.as_bytes());
        sha.update([0]);
        for dimension in &array.shape {
            sha.update((*dimension as u64).to_le_bytes());
        }
        buffer.clear();
        buffer.extend(array.values.iter().flat_map(|value| value.to_le_bytes()));
        sha.update(&buffer);
    }
    hex::encode(sha.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights() -> Weights {
        Weights::from([
            (
                "a".to_owned(),
                Array {
                    shape: vec![2, 2],
                    values: vec![1.0, -2.0, 3.5, 0.0],
                },
            ),
            (
                "b".to_owned(),
                Array {
                    shape: vec![1],
                    values: vec![7.0],
                },
            ),
        ])
    }

    #[test]
    fn the_checksum_speaks_of_values_shapes_and_names() {
        let whole = checksum(&weights());
        let changes: [fn(&mut Weights); 3] = [
            |w| w.get_mut("a").unwrap().values[0] = 1.0000001,
            |w| w.get_mut("a").unwrap().shape = vec![4],
            |w| {
                let b = w.remove("b").unwrap();
                w.insert("c".to_owned(), b);
            },
        ];
        for change in changes {
            let mut changed = weights();
            change(&mut changed);
            assert_ne!(checksum(&changed), whole);
        }
        assert_eq!(checksum(&weights()), whole);
    }

    #[test]
    fn written_tensors_read_back_the_same() {
        let bytes = to_safetensors(&weights()).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(from_f32(read.tensor("a").unwrap().data()), weights()["a"].values);
        assert_eq!(read.tensor("a").unwrap().shape(), [2, 2]);
    }
}
