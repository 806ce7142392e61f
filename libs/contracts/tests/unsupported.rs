//! What no process executes yet is named with field, value and remedy; what the demo asks for is executed.

use crate::support::{bases, merged};
use grpo_contracts::support::{in_words, unsupported};
use grpo_crds::GrpoRun;
use serde_json::Value;

fn found(manifest: Value) -> Vec<(String, String)> {
    let run: GrpoRun = serde_json::from_value(manifest).unwrap();
    let found = unsupported(&run.spec);
    assert!(found.iter().all(|one| !one.remedy.is_empty()));
    found.into_iter().map(|one| (one.path, one.value)).collect()
}

#[test]
fn what_is_executed_is_not_named() {
    let demo: Value = serde_yaml_ng::from_str(include_str!("../../../docs/examples/demo.yaml")).unwrap();
    assert_eq!(found(demo), []);
    let bases = bases();
    assert_eq!(found(bases["train"].clone()), []);
    assert_eq!(found(bases["finetune"].clone()), []);
    let steered = "{spec: {rollout: {maxStaleness: 1, concurrency: 2}, failurePolicy: {voidRetries: 1}, algorithm: {advantage: {std: None}, \
                    clip: {dual: 3}, aggregation: SequenceSum, control: ShuffledRewards, routerReplay: true}, tasks: {train: {select: {instanceIds: {inline: [a]}}}}, \
                    trainer: {image: i, gpusPerNode: 8, sequenceParallel: 2, shard: Node, offload: {optimizer: true, parameters: true, activations: true}, network: {interface: eth1}, deadlines: {start: 5m, step: 1h, collective: 30s}}}}";
    let dataset = "{spec: {model: {image: null, hub: {repo: a/b, revision: main}}, tasks: {train: {dataset: {image: null, hub: {repo: a/b}}, format: SweBench, select: {instanceIds: {configMapRef: {name: a, key: b}}}}}}}";
    let bucket = "{spec: {store: {volumeClaimTemplate: null, persistentVolumeClaim: null, objectStore: {url: 's3://a/b', credentialsSecretRef: {name: s}}}}}";
    let files = "{spec: {model: {image: null, objectStore: {url: 's3://a'}}, tasks: {train: {dataset: {image: null, objectStore: {url: 's3://a/b'}}}}}}";
    let agent = "{spec: {agent: {bash: {preset: MiniSweAgentPlus, editTool: true}, env: [{name: A, value: b}], context: {thinking: Off, rows: PerEpisode}, \
                 limits: {promptTokens: 9, episodeTokens: 8}}}}";
    let kod_code = "{spec: {tasks: {train: {format: KodCode, image: i}}}}";
    let tools = "{spec: {agent: {bash: null, tools: {toolset: Rewrite, callFormat: Qwen3Coder, bash: true}}}}";
    let cli = "{spec: {agent: {bash: null, cli: {command: [a], image: i, env: [{name: A, value: b}]}, limits: {episodeTokens: 8}}}}";
    let trimmed = "{spec: {agent: {context: {thinking: Strip, trim: {head: 0.2}, rows: PerTurn}}}}";
    let frozen = "{spec: {algorithm: {allowFrozenSampler: true}, inference: {pool: {engine: {embedded: null, external: {url: 'https://a.b/v1'}}}}}}";
    for patch in [
        frozen, steered, dataset, bucket, files, agent, kod_code, tools, cli, trimmed,
    ] {
        let patch = serde_yaml_ng::from_str(patch).unwrap();
        assert_eq!(found(merged(&bases["train"], &patch)), []);
    }
}

/// A patch over the base `train`, and every field it makes the driver refuse, with its value.
const CASES: &[(&str, &[(&str, &str)])] = &[
    (
        "{agent: {bash: null, cli: {command: [a], image: i}, limits: {promptTokens: 9}}}",
        &[("agent.limits.promptTokens", "9")],
    ),
    (
        "{agent: {bash: null, cli: {command: [a], image: i}, context: {thinking: Strip, trim: {}, rows: PerTurn}}}",
        &[
            ("agent.context.thinking", r#""Strip""#),
            ("agent.context.trim", r#"{"head":0.3,"tail":0.7}"#),
        ],
    ),
    (
        "{rollout: {sampling: {topP: 0.9}}}",
        &[("rollout.sampling.topP", "0.9")],
    ),
    (
        "{rollout: {sampling: {topK: 40, repetitionPenalty: 1.5, topP: 0.5}}}",
        &[
            ("rollout.sampling.topP", "0.5"),
            ("rollout.sampling.topK", "40"),
            ("rollout.sampling.repetitionPenalty", "1.5"),
        ],
    ),
    (
        "{rollout: {sampling: {minP: 0.5, presencePenalty: 1, frequencyPenalty: 1, repetitionPenalty: 2}}}",
        &[
            ("rollout.sampling.minP", "0.5"),
            ("rollout.sampling.presencePenalty", "1.0"),
            ("rollout.sampling.frequencyPenalty", "1.0"),
            ("rollout.sampling.repetitionPenalty", "2.0"),
        ],
    ),
    (
        "{algorithm: {allowFrozenSampler: true}}",
        &[("algorithm.allowFrozenSampler", "true")],
    ),
    (
        "{trainer: {gpusPerNode: 8, colocate: true}}",
        &[("trainer.colocate", "true")],
    ),
    (
        "{store: {volumeClaimTemplate: null, persistentVolumeClaim: null, objectStore: {url: 'az://a/b'}}}",
        &[("store.objectStore.url", r#""az://a/b""#)],
    ),
];

#[test]
fn what_is_not_executed_is_named_with_its_value() {
    let base = &bases()["train"];
    for (patch, wanted) in CASES {
        let patch: Value = serde_yaml_ng::from_str(&format!("{{spec: {patch}}}")).unwrap();
        let wanted: Vec<(String, String)> = wanted
            .iter()
            .map(|(path, value)| ((*path).into(), (*value).into()))
            .collect();
        assert_eq!(found(merged(base, &patch)), wanted, "{patch}");
    }
}

#[test]
fn supervised_training_has_a_loss_and_nothing_beside_it() {
    let patch = "{spec: {algorithm: {kl: {coefficient: 0.1}, correction: {sequenceMask: 1}, entropyCoefficient: 0.1, control: ShuffledRewards}}}";
    let patch: Value = serde_yaml_ng::from_str(patch).unwrap();
    let found = found(merged(&bases()["finetune"], &patch));
    let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
    let wanted = [
        "algorithm.kl",
        "algorithm.correction",
        "algorithm.entropyCoefficient",
        "algorithm.control",
    ];
    assert_eq!(paths, wanted);
}

#[test]
fn the_words_name_path_value_and_remedy() {
    let run: GrpoRun = serde_json::from_value(merged(
        &bases()["train"],
        &serde_json::json!({"spec": {"trainer": {"gpusPerNode": 8, "colocate": true}, "rollout": {"sampling": {"minP": 0.5}}}}),
    ))
    .unwrap();
    let words = in_words(&unsupported(&run.spec));
    assert!(
        words.contains("spec.trainer.colocate: true is not executed by this version: leave it out"),
        "{words}"
    );
    assert!(words.contains("spec.rollout.sampling.minP: "), "{words}");
}
