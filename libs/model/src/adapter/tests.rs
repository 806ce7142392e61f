use super::*;
use serde_json::{Value, json};

fn config(model_type: &str) -> Config {
    let value = json!({
        "model_type": model_type, "vocab_size": 7, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 64, "num_experts_per_tok": 1, "moe_intermediate_size": 4,
        "num_local_experts": 2
    });
    Config::parse(value.to_string().as_bytes(), "config.json").unwrap()
}

#[test]
fn an_adapter_has_two_matrices_a_target_in_every_layer() {
    let lora = Lora::new(2, 4.0, &["down_proj", "k_proj"]).unwrap();
    assert_eq!(lora.scale(), 2.0);
    let units = units(&config("qwen3"), &lora);
    let shapes: Vec<_> = units[2]
        .tensors
        .iter()
        .map(|(name, shape)| (name.as_str(), shape.as_slice()))
        .collect();
    let layer = "base_model.model.model.layers.1";
    assert_eq!(
        shapes,
        [
            (&*format!("{layer}.self_attn.k_proj.lora_A.weight"), &[2, 4][..]),
            (&*format!("{layer}.self_attn.k_proj.lora_B.weight"), &[4, 2]),
            (&*format!("{layer}.mlp.down_proj.lora_A.weight"), &[2, 6]),
            (&*format!("{layer}.mlp.down_proj.lora_B.weight"), &[4, 2]),
        ]
    );
    assert!(units[0].tensors.is_empty() && units.len() == 3);
}

#[test]
fn adapters_that_make_no_sense_are_refused_by_name() {
    let refused = |rank, alpha, targets: &[&str], family: &str| {
        let lora = Lora::new(rank, alpha, targets);
        lora.and_then(|lora| config(family).with_lora(lora))
            .unwrap_err()
            .to_string()
    };
    assert!(refused(0, 1.0, &["q_proj"], "qwen3").contains("r is 0"));
    assert!(refused(1, f64::NAN, &["q_proj"], "qwen3").contains("lora_alpha"));
    assert!(refused(1, 1.0, &[], "qwen3").contains("target_modules"));
    assert!(refused(1, 1.0, &["q_proj", "q_proj"], "qwen3").contains("q_proj"));
    assert!(refused(1, 1.0, &["lm_head"], "qwen3").contains("lm_head"));
    assert!(refused(1, 1.0, &["up_proj"], "qwen3_moe").contains("up_proj"));
    let all_dropped = Lora::new(1, 1.0, &["q_proj"]).unwrap().with_dropout(1.0);
    let error = config("qwen3").with_lora(all_dropped).unwrap_err();
    assert!(error.to_string().contains("lora_dropout"), "{error}");
}

#[test]
fn other_kinds_of_adapters_are_refused_by_field() {
    let dir = std::env::temp_dir().join(format!("grpo-lora-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let good = Lora::new(2, 4.0, &["q_proj"]).unwrap().peft_config("base");
    let refused = |field: &str, value: Value| {
        let mut changed = good.clone();
        changed[field] = value;
        std::fs::write(dir.join("adapter_config.json"), changed.to_string()).unwrap();
        read(&dir, &config("qwen3")).unwrap_err().to_string()
    };
    for (field, value) in [
        ("peft_type", json!("IA3")),
        ("lora_dropout", json!(1.0)),
        ("use_dora", json!(true)),
        ("rank_pattern", json!({"q_proj": 8})),
        ("modules_to_save", json!(["lm_head"])),
        ("bias", json!("all")),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("alora_invocation_tokens", json!([151_644])),
        ("target_modules", json!("all-linear")),
    ] {
        let message = refused(field, value);
        assert!(
            message.contains(field) && message.contains("adapter_config.json"),
            "{message}"
        );
    }
    // These configurations pass; only the tensors are missing.
    for (field, value) in [
        ("r", json!(2)),
        ("init_lora_weights", json!("gaussian")),
        ("alora_invocation_tokens", Value::Null),
    ] {
        assert!(refused(field, value).contains("adapter_model.safetensors"), "{field}");
    }
    let _ = std::fs::remove_dir_all(&dir);
}
