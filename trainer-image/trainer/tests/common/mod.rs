//! A tiny model and batches for it.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod bucket;
pub mod graph;
pub mod process;
pub mod volume;

use grpo_crds::algorithm::{Algorithm, Clip};
use grpo_model::Config;
use grpo_model::weights::Weights;
use grpo_native::{Group, Rendezvous, device};
use grpo_records::batch::{Batch, Row, StoredRow};
use grpo_records::outcome::Outcome;
use grpo_records::{WeightsSpan, Writer};
use grpo_trainer::compute::Compute;
use grpo_trainer::grpo;
use grpo_trainer::initial::initial_weights;
use grpo_trainer::sharded::Sharded;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tch::Device;

/// The GPU on which steps are tested, if `GRPO_TEST_DEVICE` names one, such as `cuda:0` (`make test-gpu`).
pub fn tested_gpu() -> Option<usize> {
    let named = std::env::var("GRPO_TEST_DEVICE").ok()?;
    let index = named.strip_prefix("cuda:").and_then(|index| index.parse().ok());
    Some(index.expect("GRPO_TEST_DEVICE is cuda: and a number"))
}

/// The tested computation: in fp32 on the CPU, or in fp32 and deterministically on the tested GPU.
pub fn tested() -> Compute {
    let Some(index) = tested_gpu() else {
        return Compute::default();
    };
    device::use_gpu(index).unwrap();
    Compute {
        device: Device::Cuda(index),
        deterministic: true,
        ..Compute::default()
    }
}

/// The testable ones of these world sizes: NCCL takes one rank per GPU.
pub fn worlds<const N: usize>(all: [u32; N]) -> Vec<u32> {
    let can = |world: &u32| *world == 1 || tested_gpu().is_none();
    all.into_iter().filter(can).collect()
}

pub fn config_json() -> serde_json::Value {
    // Flash attention has kernels for multiples of 8.
    let head_dim = if tested_gpu().is_some() { 16 } else { 10 };
    serde_json::json!({
        "model_type": "qwen3", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
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
    let model = Sharded::new(config(), group, &initial_weights(&config(), 5)).unwrap();
    model.compute_as(tested())
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

/// Three groups of three, with one reward each, except the last group, whose rewards are equal.
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

/// Runs the ranks of a world as threads with a rendezvous on the loopback.
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

/// Runs this while opening a file fails as on a volume that does not answer: another error than that it is missing,
/// also for root.
pub fn silenced<T>(file: &std::path::Path, during: impl FnOnce() -> T) -> T {
    let aside = file.with_extension("aside");
    std::fs::rename(file, &aside).unwrap();
    // A link to itself.
    std::os::unix::fs::symlink(file, file).unwrap();
    let done = during();
    std::fs::remove_file(file).unwrap();
    std::fs::rename(&aside, file).unwrap();
    done
}

/// All values in one list.
pub fn flat(weights: &Weights) -> Vec<f32> {
    weights
        .values()
        .flat_map(|array| array.values.iter().copied())
        .collect()
}
