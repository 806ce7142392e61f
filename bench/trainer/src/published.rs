//! Published geometries, and rows of a step on them. Weights do not change what a step computes, so none are needed.

use clap::ValueEnum;
use grpo_model::Config;
use grpo_model::lora::Lora;
use grpo_trainer::train_row::TrainRow;

use crate::Failure;

/// A geometry, and how it is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Model {
    /// Qwen3-0.6B, all weights.
    #[value(name = "0.6b")]
    Full06B,
    /// Qwen3-4B, an adapter.
    #[value(name = "4b-lora")]
    Lora4B,
    /// Qwen3-8B, an adapter.
    #[value(name = "8b-lora")]
    Lora8B,
    /// Qwen3-32B, an adapter.
    #[value(name = "32b-lora")]
    Lora32B,
    /// Qwen3-30B-A3B, an adapter beside its attention.
    #[value(name = "30b-a3b-lora")]
    LoraMixture,
}

/// Of an adapter on every linear layer, or on a mixture's attention.
const RANK: usize = 32;

impl Model {
    pub fn name(self) -> &'static str {
        match self {
            Self::Full06B => "Qwen3-0.6B's geometry",
            Self::Lora4B => "Qwen3-4B's geometry beside an adapter",
            Self::Lora8B => "Qwen3-8B's geometry beside an adapter",
            Self::Lora32B => "Qwen3-32B's geometry beside an adapter",
            Self::LoraMixture => "Qwen3-30B-A3B's geometry beside an adapter",
        }
    }

    /// The bar in tokens per second, on an H200.
    pub fn tokens_per_second(self) -> Option<&'static str> {
        match self {
            Self::Full06B => Some(">= 24000"),
            Self::Lora4B => Some(">= 9000"),
            Self::Lora8B | Self::Lora32B | Self::LoraMixture => None,
        }
    }

    pub fn config(self, layers: Option<usize>, positions: usize) -> Result<Config, Failure> {
        // Hidden size, intermediate size, layers, heads, groups of keys and values, whether head and embedding are
        // tied.
        let (hidden, intermediate, own, heads, groups, tied) = match self {
            Self::Full06B => (1024, 3072, 28, 16, 8, true),
            Self::Lora4B => (2560, 9728, 36, 32, 8, true),
            Self::Lora8B => (4096, 12_288, 36, 32, 8, false),
            Self::Lora32B => (5120, 25_600, 64, 64, 8, false),
            Self::LoraMixture => (2048, 6144, 48, 32, 4, false),
        };
        let mut json = serde_json::json!({
            "model_type": "qwen3", "vocab_size": 151_936, "hidden_size": hidden, "intermediate_size": intermediate,
            "num_hidden_layers": layers.unwrap_or(own), "num_attention_heads": heads, "num_key_value_heads": groups,
            "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": positions,
            "tie_word_embeddings": tied
        });
        if self == Self::LoraMixture {
            json["model_type"] = "qwen3_moe".into();
            json["num_experts"] = 128.into();
            json["num_experts_per_tok"] = 8.into();
            json["moe_intermediate_size"] = 768.into();
            json["norm_topk_prob"] = true.into();
        }
        Ok(Config::parse(json.to_string().as_bytes(), "config.json")?)
    }

    /// The geometry with its adapter, if it is trained by one.
    pub fn trained(self, layers: Option<usize>, positions: usize) -> Result<Config, Failure> {
        let config = self.config(layers, positions)?;
        Ok(match self.lora()? {
            Some(lora) => config.with_lora(lora)?,
            None => config,
        })
    }

    pub fn lora(self) -> Result<Option<Lora>, Failure> {
        let attention = ["q_proj", "k_proj", "v_proj", "o_proj"];
        let mlp = ["gate_proj", "up_proj", "down_proj"];
        Ok(match self {
            Self::Full06B => None,
            Self::LoraMixture => Some(Lora::new(RANK, 2.0 * RANK as f64, &attention)?),
            Self::Lora4B | Self::Lora8B | Self::Lora32B => {
                Some(Lora::new(RANK, 2.0 * RANK as f64, &[&attention[..], &mlp].concat())?)
            }
        })
    }
}

/// A row whose first `prompt` tokens are the same in every row, and whose other tokens, all trained, are its own.
pub fn row(at: usize, prompt: usize, completion: usize) -> TrainRow {
    let token = |seed: usize, i: usize| ((seed + 1) * 7919 + i * 104_729 + i * i % 977) as u32 % 150_000;
    let shared = (0..prompt).map(|i| token(0, i));
    let own = (0..completion).map(|i| token(at + 1, i));
    let before = vec![0.0; prompt];
    TrainRow {
        tokens: shared.chain(own).collect(),
        weights: [before, vec![1e-4; completion]].concat(),
        temperature: 1.0,
        ..Default::default()
    }
}

pub const ONE_ROW: &str = "one row";

/// A case's rows, with `tokens` unique tokens.
pub fn cases(tokens: usize) -> [(&'static str, Vec<TrainRow>); 2] {
    let completion = tokens / 16;
    [
        (ONE_ROW, vec![row(0, 16, tokens - 16)]),
        (
            "eight samples of one prompt",
            (0..8).map(|at| row(at, tokens - 8 * completion, completion)).collect(),
        ),
    ]
}
