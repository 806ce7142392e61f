//! The model against transformers' Qwen3: what `golden/make.py` wrote.

#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

use std::path::Path;

use grpo_policy::layout::Layout;
use grpo_policy::model::{self, Block, Rope};
use grpo_policy::{Config, weights};
use serde::Deserialize;
use tch::{Kind, Tensor};

#[derive(Deserialize)]
struct Golden {
    ids: Vec<Vec<i64>>,
    logits: Vec<Vec<Vec<f32>>>,
}

#[test]
fn logits_are_those_of_transformers() {
    for name in ["tied", "untied"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let config = Config::read(&dir).unwrap();
        let weights = weights::read(&dir, &config).unwrap();
        let golden: Golden = serde_json::from_slice(&std::fs::read(dir.join("logits.json")).unwrap()).unwrap();
        let units: Vec<Vec<Tensor>> = weights::units(&config)
            .iter()
            .map(|unit| {
                let tensor = |(name, shape): &(String, Vec<usize>)| {
                    let shape: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
                    Tensor::from_slice(&weights[name].values).view(shape.as_slice())
                };
                unit.tensors.iter().map(tensor).collect()
            })
            .collect();

        let rows: Vec<Tensor> = golden.ids.iter().map(|row| Tensor::from_slice(row)).collect();
        let rope = Rope::new(&config, config.max_position_embeddings as i64, Kind::Float);
        let ids = Tensor::stack(&rows, 0);
        let layout = Layout::rows(ids.size()[0], ids.size()[1]);
        let mut x = model::embed(&units[0][0], &ids);
        for block in &units[1..] {
            x = model::block(&config, &rope, &layout, &Block(block), &x);
        }
        let hidden = config.hidden_size as i64;
        let logits = model::head(&config, &units[0], &x.reshape([-1, hidden]));
        let wanted: Vec<f32> = golden.logits.into_iter().flatten().flatten().collect();
        let wanted = Tensor::from_slice(&wanted).view([-1, config.vocab_size as i64]);
        let apart = (logits - &wanted).abs().max().double_value(&[]);
        let largest = wanted.abs().max().double_value(&[]);
        assert!(
            largest > 1.0 && apart < 2e-4,
            "{name}: {apart:e} apart, largest {largest}"
        );
    }
}
