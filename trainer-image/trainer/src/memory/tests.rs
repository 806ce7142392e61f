use super::*;
use grpo_memory::ParallelDims;
use grpo_model::lora::Lora;

fn config(fields: serde_json::Value) -> Config {
    let mut config = serde_json::json!({
        "model_type": "qwen3", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 512, "tie_word_embeddings": true
    });
    for (name, value) in fields.as_object().into_iter().flatten() {
        config[name] = value.clone();
    }
    Config::parse(config.to_string().as_bytes(), "config.json").unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_geometry_of_a_model_is_its_units_its_mlps_and_its_adapters() {
    let dense = geometry(&config(serde_json::json!({})));
    assert_eq!(dense.units, [64_064, 30_880, 30_880, 30_880, 30_880]);
    assert_eq!(dense.mlps, [Mlp::Dense { width: 96 }; 4]);
    let mixture = config(serde_json::json!({
        "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0],
    }));
    let experts = Mlp::Experts {
        count: 4,
        per_token: 2,
        width: 32,
    };
    assert_eq!(
        geometry(&mixture).mlps,
        [Mlp::Dense { width: 96 }, experts, experts, experts]
    );
    let lora = Lora::new(2, 4.0, &["q_proj", "down_proj"]).map(|lora| lora.with_dropout(0.1));
    let adapted = lora.and_then(|lora| config(serde_json::json!({})).with_lora(lora));
    let adapted = geometry(&adapted.unwrap_or_else(|error| panic!("{error}"))).adapter;
    let layer = 2 * (64 + 64) + 2 * (96 + 64);
    assert_eq!(
        adapted,
        Some(AdapterGeometry {
            units: vec![0, layer, layer, layer, layer],
            inputs: 64 + 96,
            outputs: 64 + 64,
            drops: true,
        })
    );
}

#[test]
fn what_cannot_fit_is_refused_with_the_sum_and_what_to_change() {
    let mut facts = Facts::of(geometry(&config(serde_json::json!({}))), ParallelDims::DATA_PARALLEL, 2);
    facts.head_logits = 10_000;
    assert!(announce(&facts, 512, None).is_ok() && announce(&facts, 512, Some(1 << 30)).is_ok());
    let error = announce(&facts, 512, Some(100_000)).map_err(|error| error.to_string());
    let error = error.err().unwrap_or_default();
    for words in [
        "parameters, moments and tables",
        "gathered units",
        "trainer.nodes",
        "a rank has 0.1 MiB",
    ] {
        assert!(error.contains(words), "{error}");
    }
}
