//! A model directory, packed for decoding.

use super::{Decoder, Shape};
use crate::config::{Config, ModelError};
use crate::weights;
use std::path::Path;

/// Why a model directory cannot be decoded with.
pub type OpenError = ModelError;

impl Decoder {
    /// Reads config and weights; answers the decoder and the weights' checksum.
    pub fn open(dir: &Path, max_context: usize) -> Result<(Self, String), OpenError> {
        let config = Config::read(dir)?;
        let tensors = weights::read(dir, &config)?;
        let shape = Shape {
            hidden: config.hidden_size,
            layers: config.num_hidden_layers,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim(),
            intermediate: config.intermediate_size,
            vocabulary: config.vocab_size,
            epsilon: config.rms_norm_eps as f32,
            rope_theta: config.rope_theta,
            tied: config.tie_word_embeddings,
        };
        let decoder = Self::new(shape, max_context, |name| {
            let missing = || ModelError::MissingTensor { path: dir.display().to_string(), name: name.to_owned() };
            tensors.get(name).map(|array| array.values.clone()).ok_or_else(missing)
        })?;
        Ok((decoder, weights::checksum(&tensors)))
    }
}
