//! Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685): beside a linear layer's frozen weight W, two trained matrices
//! whose product is added to it, W + alpha / rank * B A. A is `[rank, inputs]`, B `[outputs, rank]` and zero at the
//! start, so that training begins at the base model.
//!
//! Names and configuration are PEFT's, so that an adapter is a directory that others read.
//!
//! **Dropout** of what an adapter is given: which values are dropped is a function of seed, step, layer, linear layer
//! and token (with all that is before it in its row), not of a generator's state. So all passes over a token within a
//! step drop alike: their ratio is the weights' doing, not the mask's. And it does not matter what a token is packed
//! with, which rank computes it, or whether it is computed again.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::config::{Config, ModelError};
use crate::weights::{Array, Source, Unit, Weights};

/// A linear layer of a block that may have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Linear {
    Query,
    Key,
    Value,
    Output,
    Gate,
    Up,
    Down,
}

impl Linear {
    pub const ALL: [Self; 7] = [
        Self::Query,
        Self::Key,
        Self::Value,
        Self::Output,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// PEFT's name of the target, and the last part of the tensor's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "q_proj",
            Self::Key => "k_proj",
            Self::Value => "v_proj",
            Self::Output => "o_proj",
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }

    /// Its place in a layer: `self_attn.q_proj`.
    pub fn path(self) -> String {
        match self {
            Self::Query | Self::Key | Self::Value | Self::Output => format!("self_attn.{}", self.name()),
            Self::Gate | Self::Up | Self::Down => format!("mlp.{}", self.name()),
        }
    }

    /// `[outputs, inputs]` of its weight.
    pub fn shape(self, config: &Config) -> [usize; 2] {
        let (h, d, f) = (config.hidden_size, config.head_dim(), config.intermediate_size);
        match self {
            Self::Query => [config.num_attention_heads * d, h],
            Self::Key | Self::Value => [config.num_key_value_heads * d, h],
            Self::Output => [h, config.num_attention_heads * d],
            Self::Gate | Self::Up => [f, h],
            Self::Down => [h, f],
        }
    }
}

/// The adapters of a model: the same rank and targets in every layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    pub rank: usize,
    pub alpha: f64,
    /// Share of an adapter's inputs that are dropped where it is trained.
    pub dropout: f64,
    /// In the order of [`Linear::ALL`].
    targets: Vec<Linear>,
}

impl Lora {
    /// `targets` by PEFT's names; nothing is dropped.
    pub fn new<T: AsRef<str>>(rank: usize, alpha: f64, targets: &[T]) -> Result<Self, ModelError> {
        let mut found = Vec::new();
        for name in targets.iter().map(AsRef::as_ref) {
            match Linear::ALL.into_iter().find(|linear| linear.name() == name) {
                Some(linear) if !found.contains(&linear) => found.push(linear),
                Some(_) => return Err(refuse("target_modules", name, "each may be named once")),
                None => {
                    let wanted = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj are";
                    return Err(refuse("target_modules", name, wanted));
                }
            }
        }
        found.sort();
        Ok(Self {
            rank,
            alpha,
            dropout: 0.0,
            targets: found,
        })
    }

    pub fn with_dropout(self, dropout: f64) -> Self {
        Self { dropout, ..self }
    }

    pub fn targets(&self) -> &[Linear] {
        &self.targets
    }

    /// What B A is multiplied by.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    pub(crate) fn check(&self, config: &Config) -> Result<(), ModelError> {
        if self.rank == 0 {
            return Err(refuse("r", "0", "a positive rank is"));
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return Err(refuse("lora_alpha", &self.alpha.to_string(), "a positive number is"));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(refuse("lora_dropout", &self.dropout.to_string(), "a share below 1 is"));
        }
        if self.targets.is_empty() {
            return Err(refuse("target_modules", "empty", "one layer at least is"));
        }
        let in_mlp = self.targets.iter().find(|target| **target >= Linear::Gate);
        match in_mlp.filter(|_| config.experts.is_some()) {
            Some(target) => Err(refuse(
                "target_modules",
                target.name(),
                "in a mixture, layers of the attention are",
            )),
            None => Ok(()),
        }
    }

    /// What PEFT's `adapter_config.json` says, as far as it is computed here. `path` is for messages.
    pub fn from_peft(value: Value, path: &str) -> Result<Self, ModelError> {
        let unsupported = |field: &'static str, found: String, wanted: &'static str| ModelError::Unsupported {
            path: path.to_owned(),
            field,
            found,
            wanted,
        };
        let peft: PeftConfig = serde_json::from_value(value).map_err(|e| ModelError::Malformed {
            path: path.to_owned(),
            message: e.to_string(),
        })?;
        if peft.peft_type != "LORA" {
            return Err(unsupported("peft_type", peft.peft_type, "LORA is"));
        }
        if !(0.0..1.0).contains(&peft.lora_dropout) {
            let found = peft.lora_dropout.to_string();
            return Err(unsupported("lora_dropout", found, "a share below 1 is"));
        }
        let says = |value: &Value| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
            _ => true,
        };
        for field in MUST_BE_EMPTY {
            if let Some(found) = peft.rest.get(field).filter(|value| says(value)) {
                return Err(unsupported(
                    field,
                    found.to_string(),
                    "one plain adapter beside each target is",
                ));
            }
        }
        if let Some(bias) = peft.rest.get("bias").filter(|bias| *bias != "none") {
            return Err(unsupported("bias", bias.to_string(), "none is"));
        }
        let targets: Vec<String> = serde_json::from_value(peft.target_modules.clone())
            .map_err(|_| unsupported("target_modules", peft.target_modules.to_string(), "a list of names is"))?;
        Ok(Self::new(peft.r, peft.lora_alpha, &targets)?.with_dropout(peft.lora_dropout))
    }

    /// PEFT's `adapter_config.json`. `base` is what it calls the model the adapter belongs to.
    pub fn peft_config(&self, base: &str) -> serde_json::Value {
        let targets: Vec<&str> = self.targets.iter().map(|target| target.name()).collect();
        serde_json::json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "inference_mode": true, "r": self.rank,
            "lora_alpha": self.alpha, "lora_dropout": self.dropout, "target_modules": targets, "bias": "none", "use_rslora": false, "use_dora": false,
            "fan_in_fan_out": false, "modules_to_save": null, "init_lora_weights": true
        })
    }
}

/// What is computed of `adapter_config.json`; any other field must say nothing.
#[derive(Deserialize)]
struct PeftConfig {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: f64,
    target_modules: Value,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// Fields that change what an adapter computes, or what it belongs to.
const MUST_BE_EMPTY: [&str; 14] = [
    "alpha_pattern",
    "rank_pattern",
    "exclude_modules",
    "fan_in_fan_out",
    "layer_replication",
    "layers_to_transform",
    "lora_bias",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "use_rslora",
];

/// Reads an adapter's directory: `adapter_config.json` and `adapter_model.safetensors`. What would be computed
/// differently is refused by name.
pub fn read(dir: &Path, config: &Config) -> Result<(Lora, Weights), ModelError> {
    let file = dir.join("adapter_config.json");
    let path = file.display().to_string();
    let bytes = std::fs::read(&file).map_err(|source| ModelError::Read {
        path: path.clone(),
        source,
    })?;
    let value = serde_json::from_slice(&bytes).map_err(|e| ModelError::Malformed {
        path: path.clone(),
        message: e.to_string(),
    })?;
    let lora = Lora::from_peft(value, &path)?;
    lora.check(config)?;
    let tensors = || units(config, &lora).into_iter().flat_map(|unit| unit.tensors);
    let source = Source::of_tensors(dir, "adapter_model", tensors(), false)?;
    let weights = tensors()
        .map(|(name, shape)| {
            let values = source.read_finite(&name, 0..shape.iter().product())?;
            Ok((name, Array { shape, values }))
        })
        .collect::<Result<_, ModelError>>()?;
    Ok((lora, weights))
}

/// The adapters' tensors, one unit a unit of the model: none in the embedding's, A and B of every target in a layer's.
pub fn units(config: &Config, lora: &Lora) -> Vec<Unit> {
    let layer = |layer: usize| Unit {
        name: format!("adapter of layer {layer}"),
        tensors: lora
            .targets
            .iter()
            .flat_map(|target| {
                let [outputs, inputs] = target.shape(config);
                [
                    (tensor(layer, *target, "A"), vec![lora.rank, inputs]),
                    (tensor(layer, *target, "B"), vec![outputs, lora.rank]),
                ]
            })
            .collect(),
    };
    let ends = Unit {
        name: "adapter of embedding".to_owned(),
        tensors: Vec::new(),
    };
    std::iter::once(ends)
        .chain((0..config.num_hidden_layers).map(layer))
        .collect()
}

/// PEFT's name of one matrix of an adapter.
fn tensor(layer: usize, target: Linear, matrix: &str) -> String {
    format!(
        "base_model.model.model.layers.{layer}.{}.lora_{matrix}.weight",
        target.path()
    )
}

fn refuse(field: &'static str, found: &str, wanted: &'static str) -> ModelError {
    ModelError::Unsupported {
        path: "the adapter".to_owned(),
        field,
        found: found.to_owned(),
        wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(model_type: &str) -> Config {
        let value = json!({
            "model_type": model_type, "vocab_size": 7, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
            "max_position_embeddings": 64, "num_experts_per_tok": 1, "moe_intermediate_size": 4,
            "num_local_experts": 2
        });
        Config::parse(value.to_string().as_bytes(), "config.json").unwrap()
    }

    #[test]
    fn an_adapter_has_two_matrices_a_target_in_every_layer() {
        let lora = Lora::new(2, 4.0, &["down_proj", "k_proj"]).unwrap();
        assert_eq!(lora.scale(), 2.0);
        let units = units(&config("qwen3"), &lora);
        let shapes: Vec<_> = units[2]
            .tensors
            .iter()
            .map(|(name, shape)| (name.as_str(), shape.as_slice()))
            .collect();
        let layer = "base_model.model.model.layers.1";
        assert_eq!(
            shapes,
            [
                (&*format!("{layer}.self_attn.k_proj.lora_A.weight"), &[2, 4][..]),
                (&*format!("{layer}.self_attn.k_proj.lora_B.weight"), &[4, 2]),
                (&*format!("{layer}.mlp.down_proj.lora_A.weight"), &[2, 6]),
                (&*format!("{layer}.mlp.down_proj.lora_B.weight"), &[4, 2]),
            ]
        );
        assert!(units[0].tensors.is_empty() && units.len() == 3);
    }

    #[test]
    fn adapters_that_make_no_sense_are_refused_by_name() {
        let refused = |rank, alpha, targets: &[&str], family: &str| {
            let lora = Lora::new(rank, alpha, targets);
            lora.and_then(|lora| config(family).with_lora(lora))
                .unwrap_err()
                .to_string()
        };
        assert!(refused(0, 1.0, &["q_proj"], "qwen3").contains("r is 0"));
        assert!(refused(1, f64::NAN, &["q_proj"], "qwen3").contains("lora_alpha"));
        assert!(refused(1, 1.0, &[], "qwen3").contains("target_modules"));
        assert!(refused(1, 1.0, &["q_proj", "q_proj"], "qwen3").contains("q_proj"));
        assert!(refused(1, 1.0, &["lm_head"], "qwen3").contains("lm_head"));
        assert!(refused(1, 1.0, &["up_proj"], "qwen3_moe").contains("up_proj"));
        let all_dropped = Lora::new(1, 1.0, &["q_proj"]).unwrap().with_dropout(1.0);
        let error = config("qwen3").with_lora(all_dropped).unwrap_err();
        assert!(error.to_string().contains("lora_dropout"), "{error}");
    }

    #[test]
    fn other_kinds_of_adapters_are_refused_by_field() {
        let dir = std::env::temp_dir().join(format!("grpo-lora-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let good = Lora::new(2, 4.0, &["q_proj"]).unwrap().peft_config("base");
        let refused = |field: &str, value: Value| {
            let mut changed = good.clone();
            changed[field] = value;
            std::fs::write(dir.join("adapter_config.json"), changed.to_string()).unwrap();
            read(&dir, &config("qwen3")).unwrap_err().to_string()
        };
        for (field, value) in [
            ("peft_type", json!("IA3")),
            ("lora_dropout", json!(1.0)),
            ("use_dora", json!(true)),
            ("rank_pattern", json!({"q_proj": 8})),
            ("modules_to_save", json!(["lm_head"])),
            ("bias", json!("all")),
            ("target_modules", json!("all-linear")),
        ] {
            let message = refused(field, value);
            assert!(
                message.contains(field) && message.contains("adapter_config.json"),
                "{message}"
            );
        }
        // As it is, only the tensors are missing.
        assert!(refused("r", json!(2)).contains("adapter_model.safetensors"));
        let _ = std::fs::remove_dir_all(&dir);
    }
}
