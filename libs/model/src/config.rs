//! Reads `config.json` of a Hugging Face model directory strictly: a setting that this crate would compute differently
//! is refused by name and field.
//!
//! Three families are supported: Qwen2.5 (`qwen2`), Qwen3 dense (`qwen3`) and Qwen3 mixture-of-experts (`qwen3_moe`),
//! as transformers 4 and 5 write them. The result is a [`Config`]: the geometry, with every default filled in.

mod fields;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::error::ModelError;
use crate::lora::{Linear, Lora};
use crate::yarn::Yarn;
use fields::Fields;

/// The model family of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Qwen2.5: biases on queries, keys and values; no norms per head.
    Qwen2,
    /// Qwen3, dense.
    Qwen3,
    /// Qwen3 with a mixture of experts in place of some or all MLPs.
    Qwen3Moe,
}

impl Family {
    pub const ALL: [Self; 3] = [Self::Qwen2, Self::Qwen3, Self::Qwen3Moe];

    /// The value of `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
        }
    }

    /// The value of `architectures` for a causal language model.
    fn architecture(self) -> &'static str {
        match self {
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen3Moe => "Qwen3MoeForCausalLM",
        }
    }
}

/// The experts of a mixture (Shazeer et al., arXiv 1701.06538; with softmax before the choice, as in Qwen3).
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    pub count: usize,
    /// Experts that compute each token.
    pub per_token: usize,
    /// Width of one expert.
    pub intermediate_size: usize,
    /// Whether the weights of a token's experts are normalised to sum to one.
    pub normalised: bool,
    /// For every layer, whether it has experts; the others have one MLP of `Config::intermediate_size`.
    pub layers: Vec<bool>,
}

/// The geometry of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub family: Family,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub(crate) head_dim: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub yarn: Option<Yarn>,
    /// Maximum number of positions; with YaRN, the extended number.
    pub max_position_embeddings: usize,
    pub tie_word_embeddings: bool,
    pub initializer_range: Option<f64>,
    pub experts: Option<Experts>,
    /// The adapter that is trained while the model's own weights are frozen. Not part of `config.json`.
    pub lora: Option<Lora>,
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
        let fields = Fields::parse(bytes, path)?;
        let found: String = fields.optional("model_type", "a name")?.unwrap_or_default();
        let Some(family) = Family::ALL.into_iter().find(|family| family.name() == found) else {
            return Err(ModelError::UnknownType {
                path: path.to_owned(),
                found,
            });
        };
        refuse_what_is_not_computed(&fields, family)?;
        let num_attention_heads = fields.positive("num_attention_heads")?;
        let num_hidden_layers = fields.positive("num_hidden_layers")?;
        let hidden_size = fields.positive("hidden_size")?;
        let stated = fields.positive("max_position_embeddings")?;
        let (rope_theta, yarn) = fields.rope(stated)?;
        let config = Self {
            family,
            vocab_size: fields.positive("vocab_size")?,
            hidden_size,
            intermediate_size: fields.positive("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: fields
                .optional("num_key_value_heads", "a number of heads")?
                .unwrap_or(num_attention_heads),
            head_dim: head_dim(&fields, family, hidden_size, num_attention_heads)?,
            rms_norm_eps: fields.above("rms_norm_eps", 0.0)?,
            rope_theta,
            max_position_embeddings: yarn.as_ref().map_or(stated, |yarn| stated.max(yarn.positions())),
            yarn,
            tie_word_embeddings: fields
                .optional("tie_word_embeddings", "true or false")?
                .unwrap_or(false),
            initializer_range: fields.optional("initializer_range", "a number")?,
            experts: experts(&fields, family, num_hidden_layers)?,
            lora: None,
        };
        if config.num_key_value_heads == 0 || !num_attention_heads.is_multiple_of(config.num_key_value_heads) {
            let found = format!("{} over {num_attention_heads} heads", config.num_key_value_heads);
            return Err(fields.refuse("num_key_value_heads", found, "it must divide num_attention_heads"));
        }
        if config.head_dim == 0 || !config.head_dim.is_multiple_of(2) {
            return Err(fields.refuse("head_dim", config.head_dim.to_string(), "it must be even"));
        }
        Ok(config)
    }

    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Whether queries, keys and values have biases.
    pub fn biased(&self) -> bool {
        self.family == Family::Qwen2
    }

    /// Whether each head of queries and keys is normed.
    pub fn norms_heads(&self) -> bool {
        self.family != Family::Qwen2
    }

    /// The experts of a layer, if it has any.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts
            .as_ref()
            .filter(|experts| experts.layers.get(layer) == Some(&true))
    }

    /// `[outputs, inputs]` of a linear layer's weight.
    pub fn linear_shape(&self, linear: Linear) -> [usize; 2] {
        let (h, d, f) = (self.hidden_size, self.head_dim(), self.intermediate_size);
        match linear {
            Linear::Query => [self.num_attention_heads * d, h],
            Linear::Key | Linear::Value => [self.num_key_value_heads * d, h],
            Linear::Output => [h, self.num_attention_heads * d],
            Linear::Gate | Linear::Up => [f, h],
            Linear::Down => [h, f],
        }
    }

    /// The same model without its adapter.
    pub fn without_lora(&self) -> Self {
        Self {
            lora: None,
            ..self.clone()
        }
    }

    /// The same model with an adapter; then only the adapter is trained.
    pub fn with_lora(mut self, lora: Lora) -> Result<Self, ModelError> {
        lora.check(self.experts.is_some())?;
        if self.lora.is_some() {
            return Err(ModelError::Unsupported {
                path: "the adapter".to_owned(),
                field: "lora",
                found: "a second one".to_owned(),
                wanted: "one adapter at a time is; merge the first",
            });
        }
        self.lora = Some(lora);
        Ok(self)
    }
}

/// As in transformers 5.23: Qwen3's default is a number, the other two divide the hidden size.
fn head_dim(fields: &Fields<'_>, family: Family, hidden: usize, heads: usize) -> Result<usize, ModelError> {
    match (fields.optional("head_dim", "a number")?, family) {
        (Some(found), Family::Qwen2) if found * heads != hidden => Err(fields.refuse(
            "head_dim",
            format!("{found} with {heads} heads and hidden_size {hidden}"),
            "of qwen2 it is hidden_size / num_attention_heads",
        )),
        (Some(found), _) => Ok(found),
        (None, Family::Qwen3) => Ok(128),
        (None, _) if !hidden.is_multiple_of(heads) => Err(fields.refuse(
            "hidden_size",
            format!("{hidden} over {heads} heads"),
            "without head_dim, num_attention_heads must divide it",
        )),
        (None, _) => Ok(hidden / heads),
    }
}

fn refuse_what_is_not_computed(fields: &Fields<'_>, family: Family) -> Result<(), ModelError> {
    fields.only("hidden_act", "silu", "silu is")?;
    fields.only("attention_bias", false, "biases of these families are fixed")?;
    fields.only("partial_rotary_factor", 1.0, "all of a head is rotated")?;
    fields.only("attention_dropout", 0.0, "nothing is dropped")?;
    fields.only("output_router_logits", false, "there is no auxiliary loss of routers")?;
    fields.only("shared_expert_intermediate_size", 0, "there is no shared expert")?;
    fields.only(
        "qkv_bias",
        family == Family::Qwen2,
        "biases of these families are fixed",
    )?;
    fields.only(
        "use_qk_norm",
        family != Family::Qwen2,
        "norms of heads go with the family",
    )?;
    if let Some(found) = fields.present("quantization_config") {
        return Err(fields.refuse("quantization_config", found.to_string(), "weights of 16 or 32 bits are"));
    }
    if let Some(found) = fields.present("dual_chunk_attention_config") {
        let wanted = "attention over the whole context is: remove the field, which changes nothing for contexts of at \
                      most its chunk_size - local_size tokens";
        return Err(fields.refuse("dual_chunk_attention_config", found.to_string(), wanted));
    }
    if family != Family::Qwen3Moe {
        fields.only("num_experts", 0, "experts are of model_type qwen3_moe")?;
    }
    let architectures: Vec<String> = fields.optional("architectures", "a list of names")?.unwrap_or_default();
    if architectures.iter().any(|name| name != family.architecture()) {
        let wanted = "it must be the ...ForCausalLM of its model_type";
        return Err(fields.refuse("architectures", architectures.join(", "), wanted));
    }
    refuse_windows(fields, family)
}

/// A layer uses a sliding window if `use_sliding_window` is on and the layer comes after the first `max_window_layers`
/// (in a mixture of experts: every layer).
fn refuse_windows(fields: &Fields<'_>, family: Family) -> Result<(), ModelError> {
    let kinds: Option<Vec<String>> = fields.optional("layer_types", "a list of names")?;
    let layers = fields.positive("num_hidden_layers")?;
    if let Some(kinds) = kinds {
        if let Some(kind) = kinds.iter().find(|kind| *kind != "full_attention") {
            return Err(fields.refuse("layer_types", kind.clone(), "full_attention is"));
        }
        if kinds.len() != layers {
            let found = format!("of {} layers, num_hidden_layers is {layers}", kinds.len());
            return Err(fields.refuse("layer_types", found, "the two must agree"));
        }
        return Ok(());
    }
    let on = fields.optional("use_sliding_window", "true or false")?.unwrap_or(false);
    let window = fields.optional::<usize>("sliding_window", "a number of positions")?;
    let first = fields
        .optional("max_window_layers", "a number of layers")?
        .unwrap_or(28);
    // An absent field means transformers' default, 4096; null means no window.
    if on && (window.is_some() || fields.absent("sliding_window")) && (first < layers || family == Family::Qwen3Moe) {
        return Err(fields.refuse("use_sliding_window", "true".to_owned(), "full attention is"));
    }
    Ok(())
}

fn experts(fields: &Fields<'_>, family: Family, layers: usize) -> Result<Option<Experts>, ModelError> {
    if family != Family::Qwen3Moe {
        return Ok(None);
    }
    let count = match (
        fields.optional("num_experts", "a number")?,
        fields.optional("num_local_experts", "a number")?,
    ) {
        (Some(a), Some(b)) if a != b => {
            return Err(fields.refuse(
                "num_local_experts",
                format!("{b} and num_experts {a}"),
                "the two must agree",
            ));
        }
        (a, b) => a.or(b).unwrap_or(0),
    };
    if count == 0 {
        return Err(fields.refuse("num_experts", "0 or missing".to_owned(), "a mixture has experts"));
    }
    let per_token = fields.positive("num_experts_per_tok")?;
    if per_token > count {
        let found = format!("{per_token} of {count} experts");
        return Err(fields.refuse("num_experts_per_tok", found, "it may be num_experts at most"));
    }
    let step = fields
        .optional("decoder_sparse_step", "a number of layers")?
        .unwrap_or(1usize);
    if step == 0 {
        return Err(fields.refuse("decoder_sparse_step", "0".to_owned(), "it must be positive"));
    }
    let dense: Vec<usize> = fields
        .optional("mlp_only_layers", "a list of layers")?
        .unwrap_or_default();
    if let Some(layer) = dense.iter().find(|layer| **layer >= layers) {
        return Err(fields.refuse(
            "mlp_only_layers",
            layer.to_string(),
            "it must be below num_hidden_layers",
        ));
    }
    Ok(Some(Experts {
        count,
        per_token,
        intermediate_size: fields.positive("moe_intermediate_size")?,
        normalised: fields.optional("norm_topk_prob", "true or false")?.unwrap_or(false),
        layers: (0..layers)
            .map(|layer| (layer + 1).is_multiple_of(step) && !dense.contains(&layer))
            .collect(),
    }))
}
