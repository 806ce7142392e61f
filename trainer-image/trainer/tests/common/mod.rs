//! A tiny model and batches for it.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod bucket;
pub mod graph;
pub mod process;

use grpo_crds::algorithm::{Algorithm, Clip};
use grpo_model::Config;
use grpo_model::weights::Weights;
use grpo_native::{Group, Rendezvous};
use grpo_records::batch::{Batch, Row, StoredRow};
use grpo_records::outcome::Outcome;
use grpo_records::{WeightsSpan, Writer};
use grpo_trainer::grpo;
use grpo_trainer::initial::initial_weights;
use grpo_trainer::sharded::Sharded;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub fn config_json() -> serde_json::Value {
    serde_json::json!({
        "model_type": "qwen3", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 64, "tie_word_embeddings": true, "initializer_range": 0.15
    })
}

pub fn config() -> Config {
    Config::parse(config_json().to_string().as_bytes(), "config.json").unwrap()
}

/// Tiny geometry of a family.
pub fn family_json(family: &str) -> serde_json::Value {
    let mut value = serde_json::json!({
        "model_type": family, "vocab_size": 64, "hidden_size": 30, "intermediate_size": 34, "num_hidden_layers": 2,
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 64, "tie_word_embeddings": family == "qwen2", "initializer_range": 0.15, "dtype": "float32"
    });
    if family == "qwen3_moe" {
        for (field, number) in [
            ("num_experts", 5),
            ("num_experts_per_tok", 2),
            ("moe_intermediate_size", 11),
        ] {
            value[field] = number.into();
        }
        value["mlp_only_layers"] = serde_json::json!([0]);
    }
    value
}

pub fn family_config(family: &str) -> Config {
    Config::parse(family_json(family).to_string().as_bytes(), "config.json").unwrap()
}

pub fn model(group: Group) -> Sharded {
    Sharded::new(config(), group, &initial_weights(&config(), 5)).unwrap()
}

pub fn alone() -> Sharded {
    model(Group::join(&Rendezvous::alone()).unwrap())
}

pub fn algorithm() -> Algorithm {
    Algorithm {
        clip: Clip {
            low: 0.2,
            high: 0.28,
            dual: Some(3.0),
        },
        learning_rate: 1e-3,
        weight_decay: 0.01,
        ..Algorithm::default()
    }
}

/// Three groups of three, with one reward each but for the last group's, whose rewards are equal.
pub fn batch(step: u32) -> Batch {
    let mut rng = StdRng::seed_from_u64(u64::from(step));
    let mut batch = Batch::new(Writer::driver(1), "run", step - 1, step);
    for at in 0..9u32 {
        let (group, sample) = (at / 3, at % 3);
        let n = rng.random_range(12..50);
        let mask: Vec<u8> = (0..n).map(|i| u8::from(i > 4 && i % 7 != 0)).collect();
        batch.rows.push(Row {
            group,
            episode: format!("i{group}__g{group}__i{sample}"),
            task: group,
            instance: format!("i{group}"),
            turn: None,
            stored: StoredRow::default(),
            tokens: (0..n).map(|_| rng.random_range(0..64)).collect(),
            logprobs: mask
                .iter()
                .map(|m| if *m == 1 { rng.random_range(-6.0..-2.5f32) } else { 0.0 })
                .collect(),
            mask,
            weights: vec![WeightsSpan {
                from: 0,
                to: n,
                version: "l1-s0".to_owned(),
            }],
            experts: Vec::new(),
            temperature: 0.8,
            reward: if group == 2 {
                1.0
            } else {
                [0.0, 1.0, 0.25][sample as usize]
            },
            outcome: Outcome::Resolved,
            truncated: false,
        });
    }
    batch
}

pub fn steps(model: &mut Sharded, steps: std::ops::RangeInclusive<u32>) {
    for step in steps {
        grpo::step(model, &batch(step), "batch", &algorithm(), 0).unwrap();
    }
}

/// Runs the ranks of a world as threads that meet on the loopback.
pub fn ranks<T: Send>(world: u32, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let port = grpo_free_port::free_port().unwrap();
    std::thread::scope(|scope| {
        let work = &work;
        let ranks = (0..world).map(|rank| {
            let local = "127.0.0.1".to_owned();
            let timeout = std::time::Duration::from_secs(60);
            let at = Rendezvous {
                rank,
                world,
                address: local.clone(),
                port,
                own_host: local,
                interface: String::new(),
                timeout,
            };
            scope.spawn(move || work(Group::join(&at).unwrap()))
        });
        ranks
            .collect::<Vec<_>>()
            .into_iter()
            .map(|rank| rank.join().unwrap())
            .collect()
    })
}

/// All values behind each other.
pub fn flat(weights: &Weights) -> Vec<f32> {
    weights
        .values()
        .flat_map(|array| array.values.iter().copied())
        .collect()
}
