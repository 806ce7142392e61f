//! Fields that are read, defaults, and refused values.

use serde_json::{Value, json};

use super::*;

fn base() -> Value {
    json!({
        "model_type": "qwen3", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 64, "tie_word_embeddings": true
    })
}

fn read(value: &Value) -> Result<Config, ModelError> {
    Config::parse(value.to_string().as_bytes(), "/model/config.json")
}

/// The base with some fields replaced; null removes a field.
fn with(changes: Value) -> Value {
    let mut value = base();
    for (field, change) in changes.as_object().unwrap() {
        match change.is_null() {
            true => drop(value.as_object_mut().unwrap().remove(field)),
            false => value[field] = change.clone(),
        }
    }
    value
}

fn mixture() -> Value {
    with(json!({
        "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "norm_topk_prob": true,
        "mlp_only_layers": [], "decoder_sparse_step": 1
    }))
}

#[test]
fn a_qwen3_config_is_read() {
    let config = read(&base()).unwrap();
    assert_eq!((config.head_dim(), config.family), (4, Family::Qwen3));
    assert!(config.experts.is_none() && config.yarn.is_none());
}

#[test]
fn a_missing_head_size_is_the_familys() {
    assert_eq!(read(&with(json!({"head_dim": null}))).unwrap().head_dim(), 128);
    let config = read(&with(
        json!({"head_dim": null, "model_type": "qwen2", "num_key_value_heads": null}),
    ))
    .unwrap();
    assert_eq!((config.head_dim(), config.num_key_value_heads), (4, 2));
}

#[test]
fn what_transformers_5_writes_is_what_transformers_4_wrote() {
    let scaled = |name: &str| json!({name: "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
    let old = read(&with(json!({"rope_scaling": scaled("type")}))).unwrap();
    let mut parameters = scaled("rope_type");
    parameters["rope_theta"] = 1e4.into();
    let new = read(&with(json!({"rope_theta": null, "rope_parameters": parameters}))).unwrap();
    assert_eq!(old, new);
    assert_eq!(old.max_position_embeddings, 128);
    let plain = json!({"rope_theta": 1e4, "rope_type": "default"});
    let new = read(&with(json!({"rope_theta": null, "rope_parameters": plain}))).unwrap();
    assert_eq!(new, read(&base()).unwrap());
}

#[test]
fn yarn_scales_attention_by_the_papers_factor_also_where_the_config_spells_it_out() {
    let paper = 0.1 * 4f64.ln() + 1.0;
    for spelt in [
        json!({}),
        json!({"attention_factor": 1.138_629_4, "truncate": true}),
        json!({"attention_factor": null, "mscale": null, "attn_factor": 1.0, "extrapolation_factor": 1}),
    ] {
        let mut scaling = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
        scaling
            .as_object_mut()
            .unwrap()
            .extend(spelt.as_object().unwrap().clone());
        let yarn = read(&with(json!({"rope_scaling": scaling.clone()})))
            .unwrap()
            .yarn
            .unwrap();
        assert_eq!((yarn.attention_factor, yarn.truncate), (paper, true), "{scaling}");
    }
    for off in [json!(false), Value::Null] {
        let scaling = json!({"type": "yarn", "factor": 4.0, "truncate": off});
        let config = read(&with(json!({"rope_scaling": scaling}))).unwrap();
        assert!(!config.yarn.unwrap().truncate, "{scaling}");
    }
}

#[test]
fn a_window_that_is_off_is_no_window() {
    for change in [
        json!({"use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 0}),
        json!({"use_sliding_window": true, "sliding_window": 16, "max_window_layers": 2}),
        json!({"sliding_window": null, "layer_types": ["full_attention", "full_attention"]}),
    ] {
        read(&with(change)).unwrap();
    }
}

#[test]
fn layers_of_a_mixture_have_experts_where_the_config_says() {
    let layers = |changes: Value| {
        let mut value = mixture();
        value["num_hidden_layers"] = 5.into();
        for (field, change) in changes.as_object().unwrap() {
            value[field] = change.clone();
        }
        read(&value).unwrap().experts.unwrap().layers
    };
    assert_eq!(layers(json!({})), [true; 5]);
    assert_eq!(
        layers(json!({"mlp_only_layers": [1, 4]})),
        [true, false, true, true, false]
    );
    assert_eq!(
        layers(json!({"decoder_sparse_step": 2})),
        [false, true, false, true, false]
    );
}

#[test]
fn what_would_be_computed_differently_is_refused_by_name() {
    let cases = [
        (json!({"model_type": "llama"}), "llama"),
        (json!({"model_type": null}), "model_type"),
        (json!({"attention_bias": true}), "attention_bias"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2.0}}),
            "rope_scaling",
        ),
        (
            json!({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}),
            "rope_parameters",
        ),
        (
            json!({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 0.7}}),
            "mscale",
        ),
        (
            json!({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale_all_dim": 1.0}}),
            "mscale_all_dim",
        ),
        (
            json!({"rope_scaling": {"type": "yarn", "factor": 2.0, "attention_factor": 1.0}}),
            "attention_factor",
        ),
        (
            json!({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "attn_factor": 0.9}}),
            "attn_factor is 0.9",
        ),
        (
            json!({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mrope_section": [1, 1, 2]}}),
            "rope_parameters is mrope_section",
        ),
        (json!({"rope_scaling": {"factor": 4.0}}), "rope_scaling is factor"),
        (
            json!({"dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}}),
            "dual_chunk_attention_config",
        ),
        (json!({"rope_scaling": {"type": "yarn"}}), "factor"),
        (json!({"rope_parameters": {"rope_theta": 5e5}}), "rope_theta"),
        (json!({"rope_theta": null}), "rope_theta"),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (json!({"num_key_value_heads": 3}), "num_key_value_heads"),
        (json!({"head_dim": 5}), "head_dim"),
        (json!({"head_dim": 6, "model_type": "qwen2"}), "head_dim"),
        (
            json!({"hidden_size": 9, "head_dim": null, "model_type": "qwen2"}),
            "hidden_size",
        ),
        (json!({"hidden_size": "8"}), "hidden_size"),
        (json!({"vocab_size": 0}), "vocab_size"),
        (json!({"rms_norm_eps": null}), "rms_norm_eps"),
        (json!({"hidden_act": "gelu"}), "hidden_act"),
        (json!({"attention_dropout": 0.1}), "attention_dropout"),
        (
            json!({"use_sliding_window": true, "max_window_layers": 1}),
            "use_sliding_window",
        ),
        (
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            "layer_types",
        ),
        (json!({"layer_types": ["full_attention"]}), "layer_types"),
        (
            json!({"quantization_config": {"quant_method": "fp8"}}),
            "quantization_config",
        ),
        (
            json!({"architectures": ["Qwen3ForSequenceClassification"]}),
            "architectures",
        ),
        (json!({"num_experts": 8}), "num_experts"),
    ];
    for (change, word) in cases {
        let message = read(&with(change.clone())).unwrap_err().to_string();
        let named = message.contains(word) && message.contains("/model/config.json");
        assert!(named, "{change}: {message}");
    }
}

#[test]
fn a_mixture_that_does_not_add_up_is_refused_by_name() {
    let cases = [
        ("num_experts", json!(0)),
        ("num_experts_per_tok", json!(5)),
        ("num_experts_per_tok", json!(0)),
        ("moe_intermediate_size", Value::Null),
        ("num_local_experts", json!(8)),
        ("decoder_sparse_step", json!(0)),
        ("mlp_only_layers", json!([2])),
        ("shared_expert_intermediate_size", json!(16)),
        ("output_router_logits", json!(true)),
        ("use_qk_norm", json!(false)),
        ("qkv_bias", json!(true)),
    ];
    for (field, change) in cases {
        let mut value = mixture();
        value[field] = change;
        let message = read(&value).unwrap_err().to_string();
        assert!(message.contains(field), "{field}: {message}");
    }
}
