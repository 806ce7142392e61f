//! Unsupported fields are named with field, value and remedy; the demo's fields are all supported.

use std::collections::{BTreeMap, BTreeSet};

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
    let colocated = "{spec: {trainer: {gpusPerNode: 8, colocate: true}, inference: {pool: {engine: {embedded: null, vllm: {tensorParallel: 8}}}}}}";
    for patch in [
        frozen, steered, dataset, bucket, files, agent, kod_code, tools, cli, trimmed, colocated,
    ] {
        let patch = serde_yaml_ng::from_str(patch).unwrap();
        assert_eq!(found(merged(&bases["train"], &patch)), []);
    }
}

/// A case of `unsupported.yaml`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    what: String,
    base: String,
    #[serde(default, rename = "by")]
    _by: Option<String>,
    patch: Value,
    /// Path and value; an omitted value matches any.
    finds: Vec<Finding>,
}

type Finding = (String, Option<String>);

fn cases() -> Vec<(String, GrpoRun, Vec<Finding>)> {
    let (cases, bases): (Vec<Case>, _) = (
        serde_yaml_ng::from_str(include_str!("unsupported.yaml")).unwrap(),
        bases(),
    );
    let made = |case: Case| {
        let patch = serde_json::json!({"spec": case.patch});
        let run = serde_json::from_value(merged(&bases[&case.base], &patch)).unwrap();
        (case.what, run, case.finds)
    };
    cases.into_iter().map(made).collect()
}

#[test]
fn what_is_not_executed_is_named_with_its_value() {
    for (what, run, finds) in cases() {
        let found = unsupported(&run.spec);
        let paths: Vec<&str> = found.iter().map(|one| one.path.as_str()).collect();
        let wanted: Vec<&str> = finds.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, wanted, "{what}");
        for (one, (path, value)) in found.iter().zip(&finds) {
            assert!(!one.remedy.is_empty(), "{path}");
            assert!(
                value.is_none() || value.as_ref() == Some(&one.value),
                "{path}: {}",
                one.value
            );
        }
    }
}

/// The fields of a schema whose descriptions say that they are refused, with that text.
fn refused_in(schema: &Value, path: &str, found: &mut BTreeMap<String, String>) {
    if let Some(description) = schema["description"].as_str() {
        let words: String = description.replace('`', "");
        let words: Vec<&str> = words.split_whitespace().collect();
        if let Some((_, refusal)) = words.join(" ").split_once("Refused: ") {
            found.insert(path.to_owned(), refusal.to_owned());
        }
    }
    if schema["items"].is_object() {
        refused_in(&schema["items"], path, found);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = match path.is_empty() {
            true => name.clone(),
            false => format!("{path}.{name}"),
        };
        refused_in(field, &path, found);
    }
}

/// The field and its parent: types that several fields share have one description.
fn ending(path: &str) -> String {
    let parts: Vec<&str> = path.split('.').collect();
    parts[parts.len().saturating_sub(2)..].join(".")
}

#[test]
fn descriptions_in_the_crd_say_what_is_refused_and_what_to_do_and_say_it_of_nothing_else() {
    let crds = grpo_crds::crd::all();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == "GrpoRun").unwrap();
    let schema = grpo_crds::crd::schema(crd).unwrap();
    let mut described = BTreeMap::new();
    refused_in(&schema["properties"]["spec"], "", &mut described);
    let mut refused = BTreeSet::new();
    for (what, run, _) in cases() {
        for one in unsupported(&run.spec) {
            let words = described.get(&one.path).cloned().unwrap_or_default();
            let remedy = one.remedy.replace('`', "");
            assert!(
                words.contains(&remedy),
                "{what}: spec.{} is described: {words:?}, refused: {remedy}",
                one.path
            );
            refused.insert(ending(&one.path));
        }
    }
    let others: Vec<&String> = described
        .keys()
        .filter(|path| !refused.contains(&ending(path)))
        .collect();
    assert!(others.is_empty(), "no case refuses {others:?}");
}

#[test]
fn the_words_name_path_value_and_remedy() {
    let run: GrpoRun = serde_json::from_value(merged(
        &bases()["train"],
        &serde_json::json!({"spec": {
            "inference": {"pool": {"engine": {"embedded": null, "vllm": {"tensorParallel": 2, "nodes": 2}}}},
            "rollout": {"sampling": {"minP": 0.5}}
        }}),
    ))
    .unwrap();
    let words = in_words(&unsupported(&run.spec));
    assert!(
        words.contains("spec.inference.pool.engine.vllm.nodes: 2 is not executed by this version: use 1: "),
        "{words}"
    );
    assert!(words.contains("spec.rollout.sampling.minP: "), "{words}");
}
