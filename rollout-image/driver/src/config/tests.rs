use super::*;
use grpo_contracts::reason::Reason;
use serde_json::json;

#[test]
fn what_nobody_executes_ends_the_run_with_a_fault_that_names_it() {
    let run: grpo_crds::GrpoRun = serde_json::from_value(json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "r", "namespace": "n"},
        "spec": {
            "model": {"image": {"reference": "example.com/model:1"}},
            "agent": {"bash": {}},
            "trainer": {"gpusPerNode": 8},
            "inference": {"pool": {"engine": {"vllm": {"tensorParallel": 2, "nodes": 2}}}},
            "sandboxes": {"pool": {"max": 4}},
            "store": {"persistentVolumeClaim": {"claimName": "runs"}}
        }
    }))
    .unwrap();
    let fault = Settings::of(&RunConfig::of(&run)).unwrap_err();
    assert_eq!(fault.reason, Reason::NotSupported);
    assert!(
        fault.message.contains("spec.inference.pool.engine.vllm.nodes: 2"),
        "{fault}"
    );
}

#[test]
fn the_longest_context_is_read_from_the_models_config_or_from_its_text_config() {
    let dir = tempfile::tempdir().unwrap();
    let text = json!({"max_position_embeddings": 262_144});
    for (config, length) in [
        (json!({"max_position_embeddings": 64}), Some(64)),
        (json!({"text_config": text, "vision_config": {}}), Some(262_144)),
        (json!({"max_position_embeddings": 64, "text_config": text}), Some(64)),
        (json!({"text_config": {}}), None),
    ] {
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        assert_eq!(longest_context(dir.path()).ok(), length, "{config}");
    }
    let fault = longest_context(dir.path()).unwrap_err();
    assert_eq!(fault.reason, Reason::ContextLengthUnknown);
}
