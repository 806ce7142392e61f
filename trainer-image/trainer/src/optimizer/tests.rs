use super::*;
use grpo_model::Config;
use grpo_model::weights::units;
use grpo_native::Group;

use crate::initial::initial_weights;

fn config() -> Config {
    let json = serde_json::json!({
        "model_type": "qwen2", "vocab_size": 7, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 8, "tie_word_embeddings": false
    });
    Config::parse(json.to_string().as_bytes(), "config.json").unwrap()
}

/// With a gradient of zero, only values with weight decay change.
#[test]
fn weight_decay_shrinks_matrices_of_linear_layers_and_neither_norms_nor_biases_nor_the_embedding() {
    let mut before = initial_weights(&config(), 1);
    for array in before.values_mut() {
        array.values.fill(1.0);
    }
    let mut model = Sharded::new(config(), Group::alone(), &before).unwrap();
    let gradients: Vec<Tensor> = model.shards.iter().map(|shard| shard.values.zeros_like()).collect();
    let adam = AdamW {
        betas: [0.9, 0.999],
        epsilon: 1e-8,
        weight_decay: 0.5,
        clip: 0.0,
    };
    model.update(&gradients, 0.1, &adam).unwrap();
    for (name, array) in model.weights().unwrap() {
        let wanted = match name.contains("_proj.weight") || name == "lm_head.weight" {
            true => 0.95,
            false => 1.0,
        };
        let near = array.values.iter().all(|value| (value - wanted).abs() < 1e-6);
        assert!(near, "{name}: {:?}, not {wanted}", array.values);
    }
}

#[test]
fn runs_of_the_parts_of_a_unit_cover_all_of_it_in_order() {
    for unit in units(&config()) {
        for world in 1..=5 {
            let size = unit.numel().div_ceil(world);
            let mut end = 0;
            for rank in 0..world {
                for (run, _) in runs(&unit, rank * size..(rank + 1) * size, true) {
                    assert_eq!(run.start, end, "{} of {world}", unit.name);
                    end = run.end;
                }
            }
            assert_eq!(end, world * size);
            assert_eq!(runs(&unit, 0..size, false), [(0..size, false)]);
        }
    }
}
