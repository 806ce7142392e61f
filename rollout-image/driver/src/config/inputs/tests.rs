use super::*;

fn spec() -> Value {
    let dataset = json!({"image": {"reference": "d:1", "path": "tasks.jsonl"}});
    json!({
        "mode": "Evaluate",
        "seed": 7,
        "model": {"hub": {"repo": "Qwen/Qwen3-8B"}},
        "tasks": {"evaluate": [{"name": "fixed", "dataset": dataset}]},
        "agent": {"bash": {}},
        "rollout": {"sampling": {"temperature": 1.0}},
        "inference": {"poolRef": {"name": "p"}},
        "sandboxes": {"poolRef": {"name": "p"}},
        "store": {"persistentVolumeClaim": {"claimName": "c"}},
    })
}

fn of(spec: &Value) -> String {
    checksums(&serde_json::from_value(spec.clone()).unwrap()).sha256
}

/// The spec with another value at a JSON pointer whose last field may be new.
fn with(at: &str, value: &Value) -> Value {
    let mut spec = spec();
    let (parent, field) = at.rsplit_once('/').unwrap();
    spec.pointer_mut(parent).unwrap()[field] = value.clone();
    spec
}

#[test]
fn another_model_agent_or_number_of_samples_is_another_measurement() {
    let mut seen = std::collections::BTreeSet::from([of(&spec())]);
    for (at, value) in [
        ("/model/hub/repo", json!("Qwen/Qwen3-4B")),
        ("/model/hub/revision", json!("v2")),
        ("/model", json!({"image": {"reference": "m:1"}})),
        ("/model", json!({"persistentVolumeClaim": {"claimName": "m:1"}})),
        ("/model", json!({"objectStore": {"url": "s3://models/a"}})),
        (
            "/inference",
            json!({"pool": {"engine": {"external": {"url": "https://a/v1"}}}}),
        ),
        (
            "/inference",
            json!({"pool": {"engine": {"external": {"url": "https://a/v1", "model": "b"}}}}),
        ),
        ("/inference/poolRef/name", json!("q")),
        ("/agent", json!({"tools": {}})),
        ("/agent/bash/system", json!("s")),
        ("/agent/bash/task", json!("s")),
        ("/agent/bash/preset", json!("MiniSweAgent1")),
        ("/agent/limits", json!({"turns": 9})),
        ("/agent/limits", json!({"contextTokens": 9000})),
        ("/agent/limits", json!({"episodeTokens": 9000})),
        ("/agent/context", json!({"thinking": "Off"})),
        ("/agent/env", json!([{"name": "A", "value": "b"}])),
        ("/tasks/evaluate/0/samples", json!(4)),
        ("/tasks/evaluate/0/seed", json!(8)),
        ("/tasks/evaluate/0/image", json!("i:1")),
        ("/tasks/evaluate/0/format", json!("R2E")),
        ("/tasks/evaluate/0/promptFields", json!(["test_patch"])),
        ("/reward", json!({"gradeTimeout": "7m"})),
    ] {
        assert!(seen.insert(of(&with(at, &value))), "{at}: {value}");
    }
}

#[test]
fn fields_that_may_change_during_a_run_and_defaults_that_are_written_out_do_not_count() {
    let same = of(&spec());
    for (at, value) in [
        ("/rollout/sampling/temperature", json!(0.5)),
        ("/rollout/iterations", json!(9)),
        ("/rollout/concurrency", json!(9)),
        ("/checkpoint", json!({"every": 3, "keep": 2})),
        ("/tasks/evaluate/0/every", json!(3)),
        ("/tasks/evaluate/0/atStart", json!(true)),
        ("/tasks/evaluate/0/seed", json!(7)),
        ("/tasks/evaluate/0/format", json!("Auto")),
        ("/agent/bash/preset", json!("Plain")),
        ("/suspend", json!(true)),
    ] {
        assert_eq!(of(&with(at, &value)), same, "{at}");
    }
}

/// A store of an earlier driver has this checksum: if it changes, its runs are refused.
#[test]
fn the_checksum_of_a_spec_is_the_same_in_every_version() {
    let inputs = json!([
        [null, null, ["Qwen/Qwen3-8B", null], null],
        null,
        [
            ["Plain", null, null, null, null, null, null],
            null,
            null,
            [],
            [50, 120_000, 1_800_000, null, null],
            "Keep",
            null
        ],
        [["fixed", 1, 7]],
        900_000
    ]);
    let now = checksums(&serde_json::from_value(spec()).unwrap());
    assert_eq!(now.earlier, sha256_hex(inputs.to_string().as_bytes()));
    let without_a_pool = with("/inference", &json!({"pool": {"engine": {"vllm": {}}}}));
    let plain = checksums(&serde_json::from_value(without_a_pool).unwrap());
    assert_eq!((&plain.sha256, &plain.earlier), (&now.earlier, &now.earlier));
}
