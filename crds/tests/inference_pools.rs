//! InferencePools (`grpo.dev`) as people write them: each rule with a manifest that it refuses, and a neighbour that is
//! accepted.

use grpo_crds::{
    InferencePool,
    inference_pool::owned_flags::{OWNED_SGLANG_FLAGS, OWNED_VLLM_FLAGS},
};
use kube::core::cel::{validate_cel, validate_cel_update};

fn pool(spec: &str) -> InferencePool {
    serde_yaml_ng::from_str(&format!(
        "{{apiVersion: grpo.dev/v1alpha1, kind: InferencePool, metadata: {{name: p}}, \
          spec: {{model: {{image: {{reference: 'example.com/m:1'}}}}, {spec}}}}}"
    ))
    .unwrap()
}

/// What the API server would say.
fn said(spec: &str) -> String {
    validate_cel(&pool(spec)).map_or_else(|errors| format!("{errors:?}"), |()| "accepted".into())
}

#[test]
fn every_rule_refuses_what_it_is_for_and_accepts_the_neighbour() {
    for (refused, words, accepted) in [
        (
            "engine: {vllm: {}, sglang: {}}",
            "exactly one of embedded, vllm, sglang and external",
            "engine: {sglang: {}}",
        ),
        (
            "engine: {vllm: {tensorParallel: 8, nodes: 3}}",
            "nodes does not divide",
            "engine: {vllm: {tensorParallel: 8, nodes: 2}}",
        ),
        (
            "engine: {sglang: {tensorParallel: 8, nodes: 3}}",
            "nodes does not divide",
            "engine: {sglang: {tensorParallel: 16, nodes: 2}}",
        ),
        (
            "engine: {vllm: {tensorParallel: 8, nodes: 2, dataParallel: 2}}",
            "dataParallel needs nodes: 1",
            "engine: {vllm: {tensorParallel: 4, dataParallel: 2}}",
        ),
        (
            "engine: {vllm: {device: Cpu, tensorParallel: 2, nodes: 2}}",
            "device Cpu needs nodes: 1",
            "engine: {vllm: {device: Cpu, image: 'example.com/vllm-cpu:1'}}",
        ),
        (
            "engine: {vllm: {image: 'example.com/v:1', version: 0.33.0}}",
            "image or version",
            "engine: {vllm: {version: 0.33.0}}",
        ),
        (
            "engine: {external: {url: 'https://a.b/v1'}}, resources: {limits: {cpu: '1'}}",
            "engine.external runs elsewhere",
            "engine: {external: {url: 'https://a.b/v1', apiKeySecretRef: {name: modal, key: token}, weights: Frozen}}",
        ),
        (
            "engine: {embedded: {}}, lora: {}",
            "engine.embedded has neither",
            "engine: {vllm: {}}, lora: {}",
        ),
        (
            "engine: {vllm: {}}, update: {maxSurge: 0, maxUnavailable: 0}",
            "could ever be replaced",
            "engine: {vllm: {}}, update: {maxSurge: 1, maxUnavailable: 0}",
        ),
        (
            "engine: {vllm: {}}, modelCache: {claimName: a, hostPath: /b}",
            "exactly one of claimName, hostPath and sizeLimit",
            "engine: {vllm: {}}, modelCache: {claimName: a}",
        ),
    ] {
        let refusal = said(refused);
        assert!(refusal.contains(words), "{refused}: wanted {words:?}, got {refusal}");
        assert_eq!(said(accepted), "accepted", "{accepted}");
    }
}

#[test]
fn the_kind_of_engine_and_the_model_stay_and_the_rest_may_change() {
    let old = pool("engine: {vllm: {tensorParallel: 2}}");
    let change = |spec: &str| {
        validate_cel_update(&pool(spec), &old).map_or_else(|errors| format!("{errors:?}"), |()| "accepted".into())
    };
    assert!(change("engine: {sglang: {tensorParallel: 2}}").contains("make another pool"));
    assert_eq!(change("engine: {vllm: {tensorParallel: 4}}, replicas: 3"), "accepted");
}

#[test]
fn every_flag_that_the_operator_sets_is_refused_in_extra_args_in_any_spelling() {
    for (engine, owned) in [("vllm", OWNED_VLLM_FLAGS), ("sglang", OWNED_SGLANG_FLAGS)] {
        for (flag, _) in owned {
            for argument in [
                format!("--{flag}"),
                format!("--{flag}=1"),
                format!("--{}", flag.replace('-', "_")),
            ] {
                let refusal = said(&format!("engine: {{{engine}: {{extraArgs: ['{argument}']}}}}"));
                assert!(
                    refusal.contains("flag that the operator sets itself"),
                    "{engine} {argument}: {refusal}"
                );
            }
        }
        let accepted = format!("engine: {{{engine}: {{extraArgs: ['--trust-remote-code', '--modelfoo=1', host]}}}}");
        assert_eq!(said(&accepted), "accepted");
    }
}

/// The pools of which the operator's tests show what is made.
#[test]
fn the_operators_golden_pools_are_accepted() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../operator/core/src/inference_pool/golden");
    let mut read = 0;
    for case in std::fs::read_dir(folder).unwrap() {
        let file = case.unwrap().path().join("pool.yaml");
        let pool: InferencePool = serde_yaml_ng::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert!(
            validate_cel(&pool).is_ok(),
            "{}: {:?}",
            file.display(),
            validate_cel(&pool)
        );
        read += 1;
    }
    assert!(read >= 8);
}
