use super::*;
use grpo_crds::GrpoRun;
use serde_json::{Value, json};

/// MiB as the label has them.
const H100: u64 = 81_559;
const H200: u64 = 143_771;
const RTX4090: u64 = 24_564;

fn spec(model: Value, trainer: Value) -> GrpoRunSpec {
    let run: GrpoRun = serde_json::from_value(json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "r"},
        "spec": {"model": model, "trainer": trainer, "store": {"persistentVolumeClaim": {"claimName": "c"}}},
    }))
    .unwrap();
    run.spec
}

fn hub(repo: &str) -> Value {
    json!({"hub": {"repo": repo}})
}

fn gib_of(repo: &str, trainer: Value) -> f64 {
    let spec = spec(hub(repo), trainer);
    need(&spec, spec.trainer.as_ref().unwrap(), size(repo).unwrap()).state / GIB
}

#[test]
fn names_say_how_large_a_model_is_or_nothing() {
    for (name, parameters, active) in [
        ("Qwen/Qwen3-32B", 32e9, 32e9),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", 7e9, 7e9),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", 30e9, 3e9),
        ("Qwen/Qwen3-0.6B", 0.6e9, 0.6e9),
        ("HuggingFaceTB/SmolLM2-135M", 135e6, 135e6),
        ("registry.example.com/models/qwen3-8b:1", 8e9, 8e9),
        ("claim/models-70B/Qwen3-14B", 14e9, 14e9),
    ] {
        assert_eq!(size(name), Some(Size { parameters, active }), "{name}");
    }
    for name in [
        "grpo.dev/demo/model:1",
        "mistralai/Mixtral-8x7B",
        "deepseek-ai/DeepSeek-V3",
        "a/b-B",
        "x-infB",
        "x-0B",
    ] {
        assert_eq!(size(name), None, "{name}");
    }
}

#[test]
fn the_state_of_known_models_is_what_is_known_of_it() {
    let near = |found: f64, known: f64| assert!((found / known - 1.0).abs() < 0.03, "{found} is not {known}");
    let eight = json!({"gpusPerNode": 8});
    near(gib_of("Qwen/Qwen3-8B", eight.clone()), 17.2 * 8.0 / 8.19);
    near(gib_of("Qwen/Qwen3-32B", eight.clone()), 68.7 * 32.0 / 32.76);
    near(gib_of("Qwen/Qwen3-30B-A3B", eight), 64.0 * 30.0 / 30.53);
    near(
        gib_of("Qwen/Qwen3-32B", json!({"gpusPerNode": 8, "nodes": 2})),
        34.3 * 32.0 / 32.76,
    );
}

#[test]
fn sharding_within_a_node_keeps_a_copy_on_every_node() {
    let all = gib_of("Qwen/Qwen3-32B", json!({"gpusPerNode": 8, "nodes": 4}));
    let node = gib_of("Qwen/Qwen3-32B", json!({"gpusPerNode": 8, "nodes": 4, "shard": "Node"}));
    assert!((node / all - 4.0).abs() < 1e-9);
}

#[test]
fn what_is_offloaded_is_not_counted() {
    let of = |offload: Value| gib_of("Qwen/Qwen3-8B", json!({"gpusPerNode": 1, "offload": offload})) * GIB / 8e9;
    assert_eq!(of(json!({})), 18.0);
    assert_eq!(of(json!({"optimizer": true})), 10.0);
    assert_eq!(of(json!({"optimizer": true, "parameters": true})), 4.0);
}

#[test]
fn what_cannot_fit_is_refused_with_the_sum_and_what_would_help() {
    let tight = spec(
        hub("Qwen/Qwen3-32B"),
        json!({"gpusPerNode": 8, "maxTokensPerGpu": 16384}),
    );
    let message = refusal(&tight, Some(H100)).unwrap();
    for words in [
        "needs 83.8 GiB and has 79.6 GiB",
        "32 billion parameters (the name Qwen/Qwen3-32B) x 18 bytes",
        "/ 8 GPUs = 67.1 GiB",
        "16384 tokens = 10.0 GiB",
        "trainer.nodes: 2",
        "trainer.offload of activations",
        "trainer.maxTokensPerGpu",
        "model.lora",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let small = spec(hub("Qwen/Qwen3-8B"), json!({"gpusPerNode": 1}));
    assert!(refusal(&small, Some(H100)).unwrap().contains("trainer.nodes: 2"));
}

#[test]
fn what_is_known_to_fit_is_not_refused() {
    for (repo, trainer, memory) in [
        (
            "Qwen/Qwen3-32B",
            json!({"gpusPerNode": 8, "nodes": 2, "maxTokensPerGpu": 16384}),
            H100,
        ),
        (
            "Qwen/Qwen3-30B-A3B",
            json!({"gpusPerNode": 8, "maxTokensPerGpu": 16384}),
            H200,
        ),
        (
            "Qwen/Qwen3-14B",
            json!({"gpusPerNode": 8, "maxTokensPerGpu": 16384}),
            H100,
        ),
        (
            "Qwen/Qwen3-8B",
            json!({"gpusPerNode": 1, "offload": {"optimizer": true, "parameters": true}}),
            H100,
        ),
    ] {
        assert_eq!(refusal(&spec(hub(repo), trainer), Some(memory)), None, "{repo}");
    }
    let lora = json!({"hub": {"repo": "Qwen/Qwen3-8B"}, "lora": {"rank": 16}});
    assert_eq!(
        refusal(
            &spec(lora, json!({"gpusPerNode": 1, "maxTokensPerGpu": 16384})),
            Some(RTX4090)
        ),
        None
    );
}

#[test]
fn the_longest_row_counts_where_no_tokens_are_given_and_ranks_share_it() {
    let of = |sp: u32| {
        let mut spec = spec(hub("Qwen/Qwen3-32B"), json!({"gpusPerNode": 8, "sequenceParallel": sp}));
        spec.agent.limits.context_tokens = Some(65536);
        need(&spec, spec.trainer.as_ref().unwrap(), size("Qwen3-32B").unwrap()).activations
    };
    assert!((of(1) / GIB - 40.0).abs() < 1.0);
    assert_eq!(of(8) * 8.0, of(1));
}

#[test]
fn nothing_is_refused_where_something_is_not_known() {
    let huge = json!({"gpusPerNode": 1});
    assert_eq!(
        refusal(&spec(hub("Qwen/Qwen3-32B"), huge.clone()), None),
        None,
        "no label"
    );
    assert_eq!(refusal(&spec(hub("a/unnamed"), huge), Some(H100)), None, "no size");
    assert_eq!(
        refusal(&spec(hub("Qwen/Qwen3-32B"), json!({})), Some(H100)),
        None,
        "no GPU"
    );
    let mut evaluates = spec(hub("Qwen/Qwen3-32B"), json!({"gpusPerNode": 1}));
    evaluates.mode = Mode::Evaluate;
    assert_eq!(refusal(&evaluates, Some(H100)), None, "no training");
}

#[test]
fn what_nothing_helps_against_says_so() {
    let lora = json!({"hub": {"repo": "moonshotai/Kimi-1000B"}, "lora": {"rank": 16}});
    let spec = spec(
        lora,
        json!({"gpusPerNode": 1, "nodes": 256, "offload": {"parameters": true}}),
    );
    let message = refusal(&spec, Some(RTX4090)).unwrap();
    assert!(
        message.ends_with("Use GPUs with more memory, or a smaller model"),
        "{message}"
    );
}
