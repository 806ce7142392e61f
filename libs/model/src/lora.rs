//! Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685): two trained matrices for a linear layer's frozen weight W,
//! whose product is added to it, W + alpha / rank * B A. A is `[rank, inputs]`; B is `[outputs, rank]` and initially
//! zero, so training begins at the base model.
//!
//! Names and configuration are PEFT's, so other programs can read an adapter's directory.
//!
//! **Dropout** of an adapter's input: the dropped values are a function of seed, step, layer, linear layer and token
//! (with all tokens before it in its row), not of a generator's state. So all passes over a token within a step drop
//! the same values: their ratio reflects the weights, not the mask. It does not matter with which tokens a token is
//! packed, which rank computes it, or whether it is recomputed.

use serde::Deserialize;
use serde_json::Value;

use crate::error::ModelError;

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

    /// Its path in a layer: `self_attn.q_proj`.
    pub fn path(self) -> String {
        match self {
            Self::Query | Self::Key | Self::Value | Self::Output => format!("self_attn.{}", self.name()),
            Self::Gate | Self::Up | Self::Down => format!("mlp.{}", self.name()),
        }
    }
}

/// The adapters of a model: the same rank and targets in every layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    pub rank: usize,
    pub alpha: f64,
    /// Share of an adapter's inputs that are dropped in training.
    pub dropout: f64,
    /// In the order of [`Linear::ALL`].
    targets: Vec<Linear>,
}

impl Lora {
    /// `targets` by PEFT's names; no dropout.
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

    /// The factor of B A.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// `in_mixture`: whether a layer of the model has experts.
    pub(crate) fn check(&self, in_mixture: bool) -> Result<(), ModelError> {
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
        match in_mlp.filter(|_| in_mixture) {
            Some(target) => Err(refuse(
                "target_modules",
                target.name(),
                "in a mixture, layers of the attention are",
            )),
            None => Ok(()),
        }
    }

    /// Reads PEFT's `adapter_config.json`; unsupported settings are refused. `path` is for messages.
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
        // Others also change the model's own weights, and PEFT changes them again when it loads the adapter.
        let plain = |init: &Value| match init {
            Value::String(name) => ["gaussian", "orthogonal", "eva"]
                .iter()
                .any(|known| name.eq_ignore_ascii_case(known)),
            _ => true,
        };
        if let Some(init) = peft.rest.get("init_lora_weights").filter(|init| !plain(init)) {
            return Err(unsupported(
                "init_lora_weights",
                init.to_string(),
                "convert it to an adapter of the unchanged model (PEFT: path_initial_model_for_weight_conversion)",
            ));
        }
        if let Some(bias) = peft.rest.get("bias").filter(|bias| *bias != "none") {
            return Err(unsupported("bias", bias.to_string(), "none is"));
        }
        let targets: Vec<String> = serde_json::from_value(peft.target_modules.clone())
            .map_err(|_| unsupported("target_modules", peft.target_modules.to_string(), "a list of names is"))?;
        Ok(Self::new(peft.r, peft.lora_alpha, &targets)?.with_dropout(peft.lora_dropout))
    }

    /// PEFT's `adapter_config.json`. `base` is the name of the adapter's model in it.
    pub fn peft_config(&self, base: &str) -> serde_json::Value {
        let targets: Vec<&str> = self.targets.iter().map(|target| target.name()).collect();
        serde_json::json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "inference_mode": true, "r": self.rank,
            "lora_alpha": self.alpha, "lora_dropout": self.dropout, "target_modules": targets, "bias": "none", "use_rslora": false, "use_dora": false,
            "fan_in_fan_out": false, "modules_to_save": null, "init_lora_weights": true
        })
    }
}

/// The supported fields of `adapter_config.json`; any other field must be empty.
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

/// Fields that change an adapter's computation, or the modules that it applies to.
const MUST_BE_EMPTY: [&str; 16] = [
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
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

fn refuse(field: &'static str, found: &str, wanted: &'static str) -> ModelError {
    ModelError::Unsupported {
        path: "the adapter".to_owned(),
        field,
        found: found.to_owned(),
        wanted,
    }
}
