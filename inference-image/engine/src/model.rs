//! One weights version in memory: read from a folder, checked, and packed for decoding.

use grpo_model::decode::{Chunk, Decoder, Scratch, Sequence};
use grpo_model::{Config, ModelError, weights};
use serde::Deserialize;
use std::path::Path;

/// The vocabulary and context that requests are checked against.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub vocabulary: usize,
    pub max_context: usize,
}

pub struct Model {
    pub version: String,
    /// Checksum of the tensors as read: a manifest's `tensorsSha256`.
    pub sha256: String,
    pub decoder: Decoder,
    pub max_context: usize,
    /// Tokens that end a row, unless a request sets others.
    pub end_tokens: Vec<u32>,
}

/// Why a folder cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("{path}: eos_token_id is neither a token nor a list of tokens: {cause}")]
    EndTokens { path: String, cause: String },
    #[error("--max-context {asked} is more than the model's max_position_embeddings {limit}; lower it")]
    ContextBeyondModel { asked: usize, limit: usize },
    #[error(
        "version {version} has a vocabulary of {found} and reads {context} tokens, this engine was started with {expected} and {needed}; \
         it can be served only by an engine whose model image has the same config.json"
    )]
    OtherModel {
        version: String,
        found: usize,
        context: usize,
        expected: usize,
        needed: usize,
    },
    #[error("version {version} has tensors with sha256 {found}, ordered was {expected}; it is not served")]
    OtherTensors {
        version: String,
        found: String,
        expected: String,
    },
    #[error(
        "version {version} gives logits that are not finite; it is not served. An earlier version must be trained on from"
    )]
    NonFinite { version: String },
}

/// The fields of config.json that only an engine reads.
#[derive(Deserialize)]
struct EndTokenConfig {
    #[serde(default)]
    eos_token_id: EndTokens,
}

#[derive(Default, Deserialize)]
#[serde(untagged)]
enum EndTokens {
    #[default]
    None,
    One(u32),
    Many(Vec<u32>),
}

impl Model {
    /// Reads and packs the model in `dir`. Takes as long as reading the file; the engine keeps running.
    pub fn load(dir: &Path, version: &str, max_context: Option<usize>) -> Result<Self, LoadError> {
        let config = Config::read(dir)?;
        let limit = config.max_position_embeddings;
        let max_context = max_context.unwrap_or(limit);
        if max_context > limit {
            return Err(LoadError::ContextBeyondModel {
                asked: max_context,
                limit,
            });
        }
        let weights = weights::read(dir, &config)?;
        let model = Self {
            version: version.to_owned(),
            sha256: weights::checksum(&weights),
            decoder: Decoder::new(&config, &weights, max_context)?,
            max_context,
            end_tokens: end_tokens(dir)?,
        };
        model.must_give_numbers()?;
        Ok(model)
    }

    /// Requests are checked against the first model's bounds, so a later model must have the same vocabulary and at
    /// least the same context.
    pub fn must_fit(&self, bounds: Bounds) -> Result<(), LoadError> {
        match self.decoder.vocabulary() == bounds.vocabulary && self.max_context >= bounds.max_context {
            true => Ok(()),
            false => Err(LoadError::OtherModel {
                version: self.version.clone(),
                found: self.decoder.vocabulary(),
                context: self.max_context,
                expected: bounds.vocabulary,
                needed: bounds.max_context,
            }),
        }
    }

    /// Checks the tensors against the ordered checksum, if any.
    pub fn must_have(&self, sha256: Option<&str>) -> Result<(), LoadError> {
        match sha256.filter(|sha256| !sha256.eq_ignore_ascii_case(&self.sha256)) {
            None => Ok(()),
            Some(expected) => Err(LoadError::OtherTensors {
                version: self.version.clone(),
                found: self.sha256.clone(),
                expected: expected.to_owned(),
            }),
        }
    }

    fn must_give_numbers(&self) -> Result<(), LoadError> {
        let mut logits = Vec::new();
        let chunk = Chunk {
            sequence: &mut Sequence::new(),
            tokens: &[0],
            logits: Some(&mut logits),
        };
        self.decoder.forward(&mut [chunk], &mut [Scratch::default()]);
        match logits.iter().all(|logit| logit.is_finite()) {
            true => Ok(()),
            false => Err(LoadError::NonFinite {
                version: self.version.clone(),
            }),
        }
    }
}

/// The model's own end tokens.
fn end_tokens(dir: &Path) -> Result<Vec<u32>, LoadError> {
    let path = dir.join("config.json");
    let wrong = |cause: String| LoadError::EndTokens {
        path: path.display().to_string(),
        cause,
    };
    let bytes = std::fs::read(&path).map_err(|error| wrong(error.to_string()))?;
    let config: EndTokenConfig = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    Ok(match config.eos_token_id {
        EndTokens::None => Vec::new(),
        EndTokens::One(token) => vec![token],
        EndTokens::Many(tokens) => tokens,
    })
}
