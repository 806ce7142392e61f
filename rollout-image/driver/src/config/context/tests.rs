use super::*;
use serde_json::{Value, json};
use tempfile::TempDir;

fn model(config: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    dir
}

/// A model of 64 positions that the trainer computes, with these fields in addition.
fn qwen3(changes: Value) -> Value {
    let mut config = json!({
        "model_type": "qwen3", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 64, "tie_word_embeddings": true
    });
    for (field, change) in changes.as_object().unwrap() {
        config[field] = change.clone();
    }
    config
}

fn yarn(factor: f64, original: usize) -> Value {
    json!({"rope_scaling": {"type": "yarn", "factor": factor, "original_max_position_embeddings": original}})
}

#[test]
fn the_longest_context_is_read_from_the_models_config_or_from_its_text_config() {
    let text = json!({"max_position_embeddings": 262_144});
    for (config, length) in [
        (json!({"max_position_embeddings": 64}), Some(64)),
        (json!({"text_config": text, "vision_config": {}}), Some(262_144)),
        (json!({"max_position_embeddings": 64, "text_config": text}), Some(64)),
        (json!({"text_config": {}}), None),
    ] {
        assert_eq!(longest_context(model(&config).path()).ok(), length, "{config}");
    }
    let fault = longest_context(model(&json!({})).path()).unwrap_err();
    assert_eq!(fault.reason, Reason::ContextLengthUnknown);
}

#[test]
fn the_longest_context_of_a_model_with_yarn_is_the_trainers() {
    let newer = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e4});
    for (changes, length) in [
        (json!({}), 64),
        (yarn(4.0, 32), 128),
        (yarn(1.5, 32), 64),
        (json!({"rope_parameters": newer}), 128),
        (json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), 256),
    ] {
        let dir = model(&qwen3(changes.clone()));
        let trainers = Config::read(dir.path()).unwrap().max_position_embeddings;
        let found = longest_context(dir.path()).unwrap();
        assert_eq!((found, trainers), (length, length), "{changes}");
    }
    let mut of_another_family = qwen3(yarn(4.0, 32));
    of_another_family["model_type"] = "llama".into();
    assert_eq!(longest_context(model(&of_another_family).path()).ok(), Some(64));
}

/// The default of a run with this `inference` and this model.
fn default_of(inference: &Value, changes: &Value) -> usize {
    let run: grpo_crds::GrpoRun = serde_json::from_value(json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "r", "namespace": "n"},
        "spec": {
            "model": {"image": {"reference": "example.com/model:1"}},
            "agent": {"bash": {}},
            "trainer": {"gpusPerNode": 8},
            "inference": inference,
            "sandboxes": {"pool": {"max": 4}},
            "store": {"persistentVolumeClaim": {"claimName": "runs"}}
        }
    }))
    .unwrap();
    let dir = model(&qwen3(changes.clone()));
    let config = RunConfig {
        model_path: dir.path().display().to_string(),
        ..RunConfig::of(&run)
    };
    default_context(&config).unwrap()
}

#[test]
fn the_default_context_of_a_run_is_never_above_the_length_of_its_engine() {
    let engine = |engine: Value| json!({"pool": {"engine": engine}});
    // The defaults without YaRN; with one that extends; with one whose number is below the stated one.
    for (inference, defaults) in [
        (engine(json!({"embedded": {}})), [64, 128, 64]),
        (engine(json!({"vllm": {}})), [64, 128, 48]),
        (engine(json!({"vllm": {"maxModelLen": 96}})), [64, 96, 64]),
        (engine(json!({"vllm": {"maxModelLen": 32}})), [32, 32, 32]),
        (engine(json!({"sglang": {}})), [64, 64, 64]),
        (engine(json!({"sglang": {"contextLength": 128}})), [64, 128, 64]),
        (engine(json!({"sglang": {"contextLength": 32}})), [32, 32, 32]),
        (engine(json!({"external": {"url": "https://a/v1"}})), [64, 64, 48]),
        (json!({"poolRef": {"name": "p"}}), [64, 64, 48]),
    ] {
        let models = [json!({}), yarn(4.0, 32), yarn(1.5, 32)];
        let found = models.map(|changes| default_of(&inference, &changes));
        assert_eq!(found, defaults, "{inference}");
    }
}
