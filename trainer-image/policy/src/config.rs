//! `config.json` of a Hugging Face model directory, read strictly: what this crate would compute differently is refused by name.

use std::path::Path;

use serde::Deserialize;

/// Why a model directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("reading {path}: {source}; is the model mounted there?")]
    Read { path: String, source: std::io::Error },
    #[error("{path} is not what it should be: {message}")]
    Malformed { path: String, message: String },
    #[error("{path}: model_type {found:?} is not known here; known: qwen3")]
    UnknownType { path: String, found: String },
    #[error("{path}: {field} is {found}, which this model code does not compute; {wanted}")]
    Unsupported {
        path: String,
        field: &'static str,
        found: String,
        wanted: &'static str,
    },
    #[error("{path}: tensor {name} is missing")]
    MissingTensor { path: String, name: String },
    #[error("{path}: tensor {name} has shape {found:?}, the config asks for {wanted:?}")]
    Shape {
        path: String,
        name: String,
        found: Vec<usize>,
        wanted: Vec<usize>,
    },
    #[error("{path}: tensor {name} holds {found}; F32 and BF16 can be read")]
    Kind { path: String, name: String, found: String },
    #[error("writing {path}: {source}; is the disk full?")]
    Write { path: String, source: std::io::Error },
}

/// The geometry of a Qwen3-shaped model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Config {
    pub model_type: String,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    #[serde(default)]
    pub head_dim: Option<usize>,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    #[serde(default)]
    pub rope_scaling: Option<serde_json::Value>,
    pub max_position_embeddings: usize,
    #[serde(default)]
    pub tie_word_embeddings: bool,
    #[serde(default)]
    pub attention_bias: bool,
    #[serde(default)]
    pub use_sliding_window: bool,
    #[serde(default = "silu")]
    pub hidden_act: String,
    #[serde(default)]
    pub initializer_range: Option<f64>,
}

fn silu() -> String {
    "silu".to_owned()
}

impl Config {
    /// Reads and checks `<dir>/config.json`.
    pub fn read(dir: &Path) -> Result<Self, ModelError> {
        let file = dir.join("config.json");
        let path = file.display().to_string();
        let bytes = std::fs::read(&file).map_err(|source| ModelError::Read {
            path: path.clone(),
            source,
        })?;
        Self::parse(&bytes, &path)
    }

    /// `path` is for messages.
    pub fn parse(bytes: &[u8], path: &str) -> Result<Self, ModelError> {
        let malformed = |message: String| ModelError::Malformed {
            path: path.to_owned(),
            message,
        };
        // The type first: another family's config need not have these fields at all.
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| malformed(e.to_string()))?;
        let found = value["model_type"].as_str().unwrap_or_default();
        if found != "qwen3" {
            return Err(ModelError::UnknownType {
                path: path.to_owned(),
                found: found.to_owned(),
            });
        }
        let config: Self = serde_json::from_value(value).map_err(|e| malformed(e.to_string()))?;
        config.check(path)?;
        Ok(config)
    }

    fn check(&self, path: &str) -> Result<(), ModelError> {
        let refuse = |field, found: String, wanted| {
            Err(ModelError::Unsupported {
                path: path.to_owned(),
                field,
                found,
                wanted,
            })
        };
        if self.hidden_act != "silu" {
            return refuse("hidden_act", self.hidden_act.clone(), "silu is");
        }
        if self.attention_bias {
            return refuse("attention_bias", "true".to_owned(), "Qwen3 has none");
        }
        if self.use_sliding_window {
            return refuse("use_sliding_window", "true".to_owned(), "full attention is");
        }
        if let Some(scaling) = self.rope_scaling.as_ref().filter(|scaling| !scaling.is_null()) {
            return refuse("rope_scaling", scaling.to_string(), "plain rotary positions are");
        }
        if self.num_key_value_heads == 0 || !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let found = format!("{} over {} heads", self.num_key_value_heads, self.num_attention_heads);
            return refuse("num_key_value_heads", found, "it must divide num_attention_heads");
        }
        if self.head_dim() == 0 || !self.head_dim().is_multiple_of(2) {
            return refuse("head_dim", self.head_dim().to_string(), "it must be even");
        }
        if self.vocab_size == 0 || self.hidden_size == 0 || self.num_hidden_layers == 0 {
            return refuse(
                "vocab_size, hidden_size, num_hidden_layers",
                "zero".to_owned(),
                "all must be positive",
            );
        }
        Ok(())
    }

    pub fn head_dim(&self) -> usize {
        self.head_dim
            .unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(change: impl FnOnce(&mut serde_json::Value)) -> Result<Config, ModelError> {
        let mut value = serde_json::json!({
            "model_type": "qwen3", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
            "max_position_embeddings": 64, "tie_word_embeddings": true
        });
        change(&mut value);
        Config::parse(value.to_string().as_bytes(), "/model/config.json")
    }

    #[test]
    fn a_qwen3_config_is_read() {
        assert_eq!(config(|_| ()).unwrap().head_dim(), 4);
    }

    #[test]
    fn what_would_be_computed_differently_is_refused_by_name() {
        type Change = fn(&mut serde_json::Value);
        let cases: [(Change, &str); 5] = [
            (|c| c["model_type"] = "llama".into(), "llama"),
            (|c| c["attention_bias"] = true.into(), "attention_bias"),
            (
                |c| c["rope_scaling"] = serde_json::json!({"type": "yarn"}),
                "rope_scaling",
            ),
            (|c| c["num_key_value_heads"] = 3.into(), "num_key_value_heads"),
            (|c| c["hidden_act"] = "gelu".into(), "hidden_act"),
        ];
        for (change, word) in cases {
            let message = config(change).unwrap_err().to_string();
            assert!(
                message.contains(word) && message.contains("/model/config.json"),
                "{message}"
            );
        }
    }
}
