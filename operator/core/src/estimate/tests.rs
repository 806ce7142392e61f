use super::*;
use grpo_crds::GrpoRun;
use serde_json::{Value, json};

/// MiB, as in the label.
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

fn estimate_of(repo: &str, trainer: Value) -> Estimate {
    let spec = spec(hub(repo), trainer);
    estimate(&spec, spec.trainer.as_ref().unwrap(), size(repo).unwrap())
}

/// Bytes of state for each parameter, without the table of rotations.
fn state_of(repo: &str, trainer: Value) -> f64 {
    let rotations = 4.0 * 2.0 * 40_960.0 * 128.0;
    (estimate_of(repo, trainer).state as f64 - rotations) / size(repo).unwrap().parameters
}

fn near(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 1e-4, "{found} is not {wanted}");
}

#[test]
fn a_parameter_takes_a_master_and_two_moments_divided_by_the_gpus_that_share_them() {
    let eight = json!({"gpusPerNode": 8});
    for repo in ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B"] {
        near(state_of(repo, eight.clone()), 12.0 / 8.0);
    }
    near(
        state_of("Qwen/Qwen3-32B", json!({"gpusPerNode": 8, "nodes": 2})),
        12.0 / 16.0,
    );
}

#[test]
fn sharding_within_a_node_keeps_a_copy_on_every_node() {
    let of = |shard: &str| state_of("Qwen/Qwen3-32B", json!({"gpusPerNode": 8, "nodes": 4, "shard": shard}));
    near(of("Node") / of("All"), 4.0);
}

#[test]
fn what_is_offloaded_is_not_counted() {
    let of = |offload: Value| state_of("Qwen/Qwen3-8B", json!({"gpusPerNode": 1, "offload": offload}));
    near(of(json!({})), 12.0);
    near(of(json!({"optimizer": true})), 4.0);
    near(1.0 + of(json!({"optimizer": true, "parameters": true})), 1.0);
}

#[test]
fn what_cannot_fit_is_refused_with_the_sum_and_what_would_help() {
    let tight = spec(
        hub("Qwen/Qwen3-32B"),
        json!({"gpusPerNode": 8, "maxTokensPerGpu": 16384}),
    );
    let message = refusal(&tight, Some(H100)).unwrap();
    for words in [
        "needs 87.39 GiB and has 79.65 GiB",
        "vocabulary head 2.00 GiB",
        "32 billion parameters (the name Qwen/Qwen3-32B) over 8 GPUs, 16384 tokens at a time",
        "parameters, moments and tables 44.74 GiB",
        "gradients 35.65 GiB",
        "trainer.nodes: 2",
        "trainer.offload of optimizer",
        "model.lora",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let lora = json!({"hub": {"repo": "Qwen/Qwen3-8B"}, "lora": {"rank": 16}});
    let long = spec(lora, json!({"gpusPerNode": 1, "maxTokensPerGpu": 16384}));
    let message = refusal(&long, Some(RTX4090)).unwrap();
    for words in [
        "activations 3.48 GiB",
        "inputs of the blocks 4.50 GiB",
        "trainer.offload of activations",
        "a lower trainer.maxTokensPerGpu",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let small = spec(hub("Qwen/Qwen3-8B"), json!({"gpusPerNode": 1}));
    let message = refusal(&small, Some(H100)).unwrap();
    assert!(message.contains("trainer.nodes: 3"), "{message}");
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
            &spec(lora, json!({"gpusPerNode": 1, "maxTokensPerGpu": 8192})),
            Some(RTX4090)
        ),
        None
    );
}

#[test]
fn a_rank_computes_a_full_pack_or_its_share_of_a_row_that_no_pack_holds() {
    let of = |sp: u32, context: u32, most: Option<u32>| {
        let trainer = json!({"gpusPerNode": 8, "sequenceParallel": sp, "maxTokensPerGpu": most});
        let mut spec = spec(hub("Qwen/Qwen3-32B"), trainer);
        spec.agent.limits.context_tokens = Some(context);
        let memory = forecast::trainer(&spec).unwrap();
        (memory.tokens, memory.pack, memory.longer)
    };
    let own = u64::from(GPU_TOKENS);
    assert_eq!(of(1, 65_536, None), (65_536, own, Some(65_536)));
    assert_eq!(of(8, 65_536, None), (own, 8 * own, None));
    assert_eq!(of(1, 8192, None), (own, own, None));
    // A limit does not make a row shorter.
    assert_eq!(of(1, 65_536, Some(8192)), (65_536, 8192, Some(65_536)));
    assert_eq!(of(4, 65_536, Some(8192)), (16_384, 32_768, Some(65_536)));
    assert_eq!(of(4, 65_536, Some(20_000)), (20_000, 80_000, None));
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
