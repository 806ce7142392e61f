//! The cases: models, rows and settings, written as files that every trainer reads.

use std::io::Write;
use std::path::Path;

use clap::ValueEnum;
use grpo_model::Config;
use grpo_model::weights;
use grpo_trainer::initial::initial_weights;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::Failure;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Eight completions of one prompt.
    Group,
    /// One row for each of 30 turns, each with its whole history.
    Turns,
    /// The same, but the outputs of all but the last four turns are cut short in the history.
    Trimmed,
}

/// A row in the format that every trainer reads.
#[derive(Serialize, Deserialize)]
pub struct BenchRow {
    pub tokens: Vec<u32>,
    /// Tokens before the first trained one; all others are trained.
    pub prompt: usize,
    /// Logprobs of the trained tokens.
    pub old: Vec<f32>,
    pub advantage: f32,
}

#[derive(Serialize, Deserialize)]
pub struct Step {
    pub temperature: f32,
    pub rate: f64,
    pub clip: [f64; 2],
}

/// Geometry B: 23.2 million parameters. The cases with turns have a smaller model, because the other trainers take one
/// row at a time.
pub fn geometry(case: Case, tiny: bool) -> serde_json::Value {
    let (vocabulary, hidden, layers, wide, heads, groups, d) = match (case, tiny) {
        (_, true) => (256, 32, 2, 48, 4, 2, 8),
        (Case::Group, _) => (32_768, 384, 6, 1152, 6, 3, 64),
        (Case::Turns | Case::Trimmed, _) => (8_192, 256, 4, 768, 4, 2, 64),
    };
    serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": vocabulary, "hidden_size": hidden,
        "intermediate_size": wide, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": d,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 4096, "tie_word_embeddings": true, "initializer_range": 0.02,
        "attention_bias": false, "hidden_act": "silu", "use_cache": false, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 1
    })
}

fn bench_rows(case: Case, vocabulary: u32, tiny: bool) -> Vec<BenchRow> {
    let mut rng = StdRng::seed_from_u64(7);
    let mut words = |n: usize| -> Vec<u32> { (0..n).map(|_| rng.random_range(2..vocabulary)).collect() };
    let small = |n: usize| if tiny { n.div_ceil(16) } else { n };
    let mut rows: Vec<BenchRow> = Vec::new();
    let mut push = |history: &[u32], action: &[u32], advantage: f32| {
        rows.push(BenchRow {
            tokens: [history, action].concat(),
            prompt: history.len(),
            old: vec![0.0; action.len()],
            advantage,
        });
    };
    match case {
        Case::Group => {
            let prompt = words(small(1536));
            // One long completion and a tail of short ones: 1,512 tokens.
            for (at, length) in [512, 320, 208, 144, 112, 88, 72, 56].into_iter().enumerate() {
                push(&prompt, &words(small(length)), [1.2, -0.7, 0.4, -1.1][at % 4]);
            }
        }
        Case::Turns | Case::Trimmed => {
            let prompt = words(small(128));
            for episode in 0..2usize {
                // An action has 12 tokens and an output 20; a trimmed output keeps 2.
                let turns: Vec<(Vec<u32>, Vec<u32>)> = (0..30)
                    .map(|_| (words(small(12).max(2)), words(small(20).max(4))))
                    .collect();
                for (turn, (action, _)) in turns.iter().enumerate() {
                    let mut history = prompt.clone();
                    for (past, (action, output)) in turns[..turn].iter().enumerate() {
                        history.extend(action);
                        let kept = if case == Case::Trimmed && past + 4 < turn {
                            2
                        } else {
                            output.len()
                        };
                        history.extend(&output[..kept]);
                    }
                    push(&history, action, if episode == 0 { 0.9 } else { -0.8 });
                }
            }
        }
    }
    // Near a random model's logprobs, so that ratios are on both sides of the bounds.
    let flat = -(vocabulary as f32).ln();
    for row in &mut rows {
        for old in &mut row.old {
            *old = flat + rng.random_range(-0.4..0.4);
        }
    }
    rows
}

/// Writes the folder of a case.
pub fn prepare(folder: &Path, case: Case, tiny: bool) -> Result<String, Failure> {
    prepare_model(folder, &geometry(case, tiny), case, tiny)
}

/// The same with another model.
pub fn prepare_model(folder: &Path, json: &serde_json::Value, case: Case, tiny: bool) -> Result<String, Failure> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("config.json"), json.to_string())?;
    let config = Config::read(folder)?;
    std::fs::write(
        folder.join("model.safetensors"),
        weights::to_safetensors(&initial_weights(&config, 3))?,
    )?;
    let rows = bench_rows(case, config.vocab_size as u32, tiny);
    let mut file = std::io::BufWriter::new(std::fs::File::create(folder.join("rows.jsonl"))?);
    for row in &rows {
        writeln!(file, "{}", serde_json::to_string(row)?)?;
    }
    let step = Step {
        temperature: 0.8,
        rate: 1e-6,
        clip: [0.2, 0.28],
    };
    std::fs::write(folder.join("step.json"), serde_json::to_string(&step)?)?;
    let parameters: usize = weights::units(&config).iter().map(|unit| unit.numel()).sum();
    Ok(serde_json::json!({"parameters": parameters, "rows": rows.len()}).to_string())
}
