use serde_json::{Value, json};

use super::*;

fn run(spec: Value) -> GrpoRun {
    let mut run = json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "r", "namespace": "team"},
        "spec": {
            "model": {"hub": {"repo": "Qwen/Qwen3-8B"}}, "trainer": {"gpusPerNode": 8},
            "store": {"persistentVolumeClaim": {"claimName": "c"}},
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        run["spec"][field] = value.clone();
    }
    serde_json::from_value(run).unwrap()
}

fn vllm(more: Value) -> Value {
    let mut pool = json!({"engine": {"vllm": {"tensorParallel": 2}}, "replicas": 4});
    for (field, value) in more.as_object().unwrap() {
        pool[field] = value.clone();
    }
    json!({"inference": {"pool": pool}})
}

#[test]
fn the_memory_of_a_trainer_is_the_sum_that_a_run_is_refused_by() {
    let run = run(json!({}));
    let memory = trainer(&run.spec).unwrap();
    assert_eq!((memory.ranks, memory.shards, memory.on_gpus), (8, 8, true));
    let mib = memory.total().div_ceil(1 << 20);
    assert_eq!(crate::estimate::refusal(&run.spec, Some(mib)), None);
    assert!(crate::estimate::refusal(&run.spec, Some(mib - 1)).is_some());
}

#[test]
fn what_is_offloaded_and_the_copy_for_a_checkpoint_lie_in_the_memory_of_the_pod() {
    let host = |of: Value| trainer(&run(json!({"trainer": of})).spec).unwrap().host;
    // Bytes for each of 8 billion parameters.
    for (of, state, checkpoint) in [
        (json!({"gpusPerNode": 8}), 0.0, 12.0),
        (json!({"gpusPerNode": 8, "offload": {"optimizer": true}}), 8.0, 12.0),
        (json!({"gpusPerNode": 8, "colocate": true}), 12.0, 12.0),
        (
            json!({"nodes": 2, "gpusPerNode": 4, "offload": {"optimizer": true}}),
            4.0,
            6.0,
        ),
    ] {
        let found = host(of.clone()).unwrap();
        let off = |bytes: u64, wanted: f64| (bytes as f64 / 8e9 - wanted).abs();
        assert!(
            off(found.state, state) < 1e-2 && off(found.checkpoint, checkpoint) < 1e-2,
            "{of}: {found}"
        );
        assert_eq!(found.inputs, 0);
    }
    let inputs = host(json!({"gpusPerNode": 8, "offload": {"activations": true}})).unwrap();
    assert!(inputs.inputs > 0 && inputs.state == 0, "{inputs}");
    assert_eq!(host(json!({"nodes": 2})), None);
}

#[test]
fn a_trainers_speed_follows_from_its_gpu_its_rows_and_what_fits_beside_the_state() {
    let h100 = Gpu::named("NVIDIA-H100-80GB-HBM3").unwrap();
    let memory = Some(80u64 << 30);
    let speed = |spec: Value| trainer_speed(&run(spec).spec, &h100, memory);
    let adapter = |trainer: Value, context: Value| {
        json!({
            "model": {"hub": {"repo": "Qwen/Qwen3-8B"}, "lora": {"rank": 32}}, "trainer": trainer,
            "agent": {"limits": {"contextTokens": context}},
        })
    };
    assert_eq!(speed(json!({"trainer": {"nodes": 2}})), None);
    assert_eq!(speed(json!({"model": {"hub": {"repo": "org/policy"}}})), None);
    // Without a limit, rows count as long as packs.
    assert_eq!(speed(json!({})).unwrap().row, u64::from(GPU_TOKENS));
    // Short rows are packed to 16,384 tokens, whose activations do not fit; 4,096 of them do.
    let packed = speed(adapter(json!({"gpusPerNode": 1}), 4096.into())).unwrap();
    let bounded = speed(adapter(json!({"gpusPerNode": 1, "maxTokensPerGpu": 4096}), 4096.into())).unwrap();
    assert_eq!((packed.row, packed.kept, bounded.kept), (4096, false, true));
    assert!(bounded.tokens_per_second > 1.2 * packed.tokens_per_second);
    let same_bits = json!({"gpusPerNode": 1, "maxTokensPerGpu": 4096, "deterministic": true});
    let same_bits = speed(adapter(same_bits, 4096.into())).unwrap();
    assert!(bounded.tokens_per_second > 1.1 * same_bits.tokens_per_second);
}

#[test]
fn a_trainer_on_cpus_has_one_rank_in_each_pod() {
    let memory = trainer(&run(json!({"trainer": {"nodes": 2}})).spec).unwrap();
    assert_eq!((memory.ranks, memory.on_gpus, memory.besides), (2, false, 0));
}

#[test]
fn a_name_without_a_size_forecasts_nothing() {
    let run = run(json!({"model": {"hub": {"repo": "org/policy"}}}));
    assert_eq!((trainer(&run.spec), store(&run.spec)), (None, None));
    assert_eq!(model(&run.spec.model.source()), None);
}

#[test]
fn a_version_is_the_whole_model_or_the_adapter_that_engines_load() {
    let whole = store(&run(vllm(json!({}))).spec).unwrap();
    assert_eq!((whole.version, whole.versions), (16_000_000_000, 9));
    let on_cpus = store(&run(json!({"trainer": {"nodes": 2}})).spec).unwrap();
    assert_eq!(on_cpus.version, 2 * whole.version);
    assert_eq!((whole.checkpoint, whole.checkpoints), (96_000_000_000, 3));
    let mut adapted = run(vllm(json!({})));
    adapted.spec.model.lora = Some(serde_json::from_value(json!({"rank": 16})).unwrap());
    let adapter = store(&adapted.spec).unwrap();
    assert!(adapter.version < whole.version / 50, "{adapter:?}");
    assert_eq!(adapter.checkpoint, 3 * adapter.version);
    let embedded = json!({"inference": {"pool": {"engine": {"embedded": {}}}}});
    let mut merged = run(embedded);
    merged.spec.model.lora = adapted.spec.model.lora.clone();
    assert_eq!(store(&merged.spec).unwrap().version, whole.version);
}

#[test]
fn a_model_is_downloaded_once_for_each_cache() {
    let downloads = |spec: Value| downloads_of_run(&run(spec)).unwrap();
    let scratch = downloads(vllm(json!({})));
    assert_eq!((scratch.times, scratch.in_store), (4 + 1, true));
    let claim = downloads(vllm(json!({"modelCache": {"claimName": "models"}})));
    assert_eq!((claim.times, claim.in_store), (1, false));
    let nodes = downloads(vllm(json!({"modelCache": {"hostPath": "/models"}})));
    assert_eq!((nodes.times, nodes.at_most), (4 + 1, true));
    let mut bucket = vllm(json!({}));
    bucket["store"] = json!({"objectStore": {"url": "s3://runs"}});
    bucket["trainer"] = json!({"gpusPerNode": 8, "nodes": 2});
    let bucket = downloads(bucket);
    assert_eq!((bucket.times, bucket.in_store), (4 + 2, false));
    let mounted = run(json!({"model": {"image": {"reference": "models/qwen3-8b"}}}));
    assert_eq!(downloads_of_run(&mounted), None);
}

#[test]
fn an_engine_divides_the_weights_over_the_gpus_of_a_layer() {
    let source = run(json!({})).spec.model.source();
    let of = |engine: Value| engine_of(&source, engine);
    let two = of(json!({"vllm": {"tensorParallel": 2}})).unwrap();
    let copies = of(json!({"vllm": {"tensorParallel": 2, "dataParallel": 4}})).unwrap();
    assert_eq!((two.gpus, copies.gpus), (2, 8));
    assert_eq!(two.share, copies.share);
    let embedded = of(json!({"embedded": {}})).unwrap();
    assert_eq!(embedded.share.weights, 4 * two.share.weights);
    assert_eq!(of(json!({"external": {"url": "https://example.com/v1"}})), None);
}

fn engine_of(source: &ModelSource, engine: Value) -> Option<EngineMemory> {
    super::engine(source, &serde_json::from_value(engine).unwrap())
}
