use super::*;
use crate::packing::{Cost, pack};
use crate::train_row::TrainRow;
use grpo_model::lora::Lora;

fn config(more: serde_json::Value) -> Config {
    let mut config = serde_json::json!({
        "model_type": "qwen3", "vocab_size": 100, "hidden_size": 8, "intermediate_size": 20, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 64, "tie_word_embeddings": true
    });
    for (field, value) in more.as_object().unwrap() {
        config[field] = value.clone();
    }
    Config::parse(config.to_string().as_bytes(), "config.json").unwrap()
}

fn adapter(rank: usize, targets: &[&str]) -> Config {
    let lora = Lora::new(rank, 1.0, targets).unwrap();
    config(serde_json::json!({})).with_lora(lora).unwrap()
}

#[test]
fn every_matrix_that_a_token_meets_is_counted_once() {
    // A layer: queries and output 8 x 24, keys and values 8 x 12, three of 8 x 20.
    let dense = 2.0 * (2.0 * 192.0 + 2.0 * 96.0 + 3.0 * 160.0);
    // Five experts, two of them for each token: the router is 8 x 5, an expert three of 8 x 10. The first layer has
    // none.
    let mixture = serde_json::json!({
        "model_type": "qwen3_moe", "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 10, "mlp_only_layers": [0]
    });
    let sparse = 2.0 * (2.0 * 192.0 + 2.0 * 96.0) + 480.0 + 40.0 + 2.0 * 240.0;
    // Rank 3 beside queries (8 + 24) and the last of the three (20 + 8), in two layers.
    let beside = adapter(3, &["q_proj", "down_proj"]);
    for (config, token, adapter) in [
        (config(serde_json::json!({})), dense, 0.0),
        (config(mixture), sparse, 0.0),
        (beside, dense, 3.0 * 2.0 * (32.0 + 28.0)),
    ] {
        let found = Forward::of(&config);
        assert_eq!((found.token, found.adapter), (token, adapter), "{config:?}");
        // Two layers of 24 for the score and 24 for the output; the head is 8 x 100.
        assert_eq!((found.pair, found.entry), (96.0, 800.0));
    }
}

#[test]
fn training_is_six_operations_a_weight_and_four_where_it_is_frozen() {
    let work = Work {
        tokens: 10.0,
        pairs: 55.0,
        entries: 3.0,
    };
    let (dense, attention, head) = (10.0 * 2112.0, 55.0 * 96.0, 3.0 * 800.0);
    let whole = Forward::of(&config(serde_json::json!({})));
    assert_eq!(whole.looking(&work), 2.0 * (dense + attention + head));
    assert_eq!(whole.training(&work), 6.0 * (dense + attention + head));
    let beside = Forward::of(&adapter(3, &["q_proj", "down_proj"]));
    let own = 10.0 * 360.0;
    assert_eq!(beside.looking(&work), 2.0 * (dense + own + attention + head));
    assert_eq!(beside.training(&work), 4.0 * (dense + head) + 6.0 * (own + attention));
}

/// Qwen3-0.6B, by PaLM's formula: 6 N + 12 L H Q T per token; a causal row sees (T + 1) / 2 of the T on average.
#[test]
fn a_row_that_is_all_trained_has_what_the_formula_of_palm_gives() {
    let config = config(serde_json::json!({
        "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096
    }));
    let t = 2048.0;
    let work = Work {
        tokens: t,
        pairs: t * (t + 1.0) / 2.0,
        entries: t,
    };
    // 0.44 billion without embedding, norms aside, and the head.
    let n = 28.0 * 15_728_640.0 + 155_582_464.0;
    let wanted = t * (6.0 * n + 12.0 * 28.0 * 2048.0 * (t + 1.0) / 2.0);
    assert_eq!(Forward::of(&config).training(&work), wanted);
}

#[test]
fn tokens_that_rows_share_count_once_however_many_ranks_there_are() {
    let row = |last: u32| TrainRow {
        tokens: vec![1, 2, 3, 4, 5, last, last],
        weights: vec![0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0],
        temperature: 1.0,
        ..Default::default()
    };
    let rows = [row(6), row(7)];
    let cost = Cost::of(&config(serde_json::json!({})));
    // Five shared tokens and one more per row; the last predicted token is not computed. Two of the trained tokens are
    // predicted from the fifth.
    let shared = Work {
        tokens: 7.0,
        pairs: 15.0 + 2.0 * 6.0,
        entries: 4.0,
    };
    assert_eq!(pack(&rows, 100, 1, &cost).work(), shared);
    assert_eq!(pack(&rows, 100, 4, &cost).work().entries, 4.0);
}

#[test]
fn a_stated_peak_is_a_positive_number_or_refused_with_what_to_give() {
    assert_eq!(stated(" 1.5e12 ").unwrap(), 1.5e12);
    for text in ["", "fast", "0", "-1", "inf", "NaN"] {
        let error = stated(text).unwrap_err().to_string();
        assert!(error.contains(PEAK_VARIABLE) && error.contains("989e12"), "{error}");
    }
    assert_eq!(utilisation(6e12, 2.0, 1e12, 4), Some(0.75));
    assert_eq!(utilisation(6e12, 0.0, 1e12, 4), None);
}
