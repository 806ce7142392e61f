//! A mixture of experts for the world's engine: three layers, the middle one dense, eight experts, two for each token.

use super::World;
use grpo_driver::experts::Mixture;
use grpo_engine_protocol::RoutedExperts;
use grpo_records::store::sha256_hex;
use grpo_records::{Batch, Row, paths};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

const EXPERTS: usize = 8;
const LAYERS: [bool; 3] = [true, false, true];

pub fn mixture() -> Arc<Mixture> {
    Arc::new(Mixture {
        experts: EXPERTS,
        per_token: 2,
        layers: LAYERS.to_vec(),
    })
}

/// The demo's model folder, with this mixture's config.
pub fn model(world: &World) -> PathBuf {
    let dir = world.mount.path().join("mixture");
    std::fs::create_dir(&dir).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(super::model().join(file), dir.join(file)).unwrap();
    }
    let config = std::fs::read(super::model().join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    let mixture = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": LAYERS.len(), "num_experts": EXPERTS,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": true, "mlp_only_layers": [1], "decoder_sparse_step": 1,
    });
    config
        .as_object_mut()
        .unwrap()
        .extend(mixture.as_object().unwrap().clone());
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    dir
}

/// The experts of a token in a layer: different for different tokens and positions.
fn of_token(id: u32, position: usize, layer: usize) -> [u16; 2] {
    let first = id as usize + layer;
    [first, first + 1 + position % (EXPERTS - 1)].map(|number| (number % EXPERTS) as u16)
}

/// The engine's report on `ids`; the last id was sampled but not computed.
pub fn reported(ids: &[u32], from: usize) -> RoutedExperts {
    let computed = ids[..ids.len() - 1].iter().enumerate().skip(from);
    let numbers: Vec<u16> = computed
        .flat_map(|(position, id)| {
            (0..LAYERS.len()).flat_map(move |layer| match LAYERS[layer] {
                true => of_token(*id, position, layer),
                false => [0, 0],
            })
        })
        .collect();
    RoutedExperts::of_numbers(from, ids.len() - 1 - from, &numbers).unwrap()
}

/// Checks that every row's files have the experts of each computed token, once.
pub async fn are_those_of_every_row(world: &World, step: u32) -> Vec<Row> {
    let store = world.store();
    let mut batch: Batch = store.read(&paths::batch(step)).await.unwrap();
    batch.fill(|path| std::fs::read(world.dir().join(path))).unwrap();
    for row in &batch.rows {
        let last = row.mask.iter().rposition(|mask| *mask == 1).unwrap();
        let mut next = 0;
        for span in &row.experts {
            assert_eq!(span.from, next, "{}", row.episode);
            let bytes = store.bytes(&span.file).await.unwrap();
            assert_eq!(sha256_hex(&bytes), span.sha256);
            let wanted: Vec<u8> = (span.from..span.to)
                .flat_map(|at| [0, 2].map(|layer| of_token(row.tokens[at], at, layer)).concat())
                .map(|number| number as u8)
                .collect();
            assert_eq!(bytes, wanted, "{} from {}", row.episode, span.from);
            next = span.to;
        }
        assert_eq!(next, last, "{}", row.episode);
    }
    batch.rows
}
