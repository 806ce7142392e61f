use super::*;
use serde_json::{Value, json};

fn run(wanted: &[LogPart]) -> Run {
    let run: GrpoRun = serde_json::from_value(json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "demo", "namespace": "team"},
        "spec": {
            "model": {"image": {"reference": "m"}}, "tasks": {}, "agent": {"bash": {}},
            "inference": {"poolRef": {"name": "shared"}},
            "sandboxes": {"pool": {"max": 1}},
            "store": {"persistentVolumeClaim": {"claimName": "c"}},
        },
    }))
    .unwrap();
    Run::of(&run, wanted)
}

fn pod(labels: Value, states: &[(&str, Value)]) -> Pod {
    let containers: Vec<Value> = states
        .iter()
        .map(|(name, state)| json!({"name": name, "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": state}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": "p", "uid": "u", "labels": labels},
        "status": {"phase": "Running", "containerStatuses": containers},
    }))
    .unwrap()
}

fn running() -> Value {
    json!({"running": {}})
}

fn named(run: &Run, pod: &Pod) -> Vec<String> {
    run.parts(pod).into_iter().map(|part| part.name).collect()
}

#[test]
fn parts_are_called_by_role_rank_and_later_attempts() {
    let run = run(&[]);
    let of = |labels: Value, container: &str| named(&run, &pod(labels, &[(container, running())]));
    assert_eq!(
        of(json!({RUN: "demo", ROLE: "driver", ATTEMPT: "1"}), "driver"),
        ["driver"]
    );
    assert_eq!(
        of(
            json!({RUN: "demo", ROLE: "trainer", ATTEMPT: "3", RANK: "1"}),
            "trainer"
        ),
        ["trainer-1@3"]
    );
    assert_eq!(
        of(json!({RUN: "demo", SANDBOX_POOL: "demo", ROLE: "gateway"}), "gateway"),
        ["gateway"]
    );
    let engine = pod(
        json!({INFERENCE_POOL: "shared", ROLE: "engine", GROUP: "2", ATTEMPT: "1", RANK: "0"}),
        &[("engine", running()), ("agent", running())],
    );
    assert_eq!(named(&run, &engine), ["engine-2", "agent-2"]);
    let second = pod(
        json!({INFERENCE_POOL: "shared", ROLE: "engine", GROUP: "2", ATTEMPT: "3", RANK: "1"}),
        &[("engine", running())],
    );
    assert_eq!(named(&run, &second), ["engine-2.1@3"]);
}

#[test]
fn pods_of_other_runs_and_sandboxes_are_left_out() {
    let run = run(&[]);
    for labels in [
        json!({RUN: "other", ROLE: "driver"}),
        json!({INFERENCE_POOL: "demo", ROLE: "engine"}),
        json!({RUN: "demo", ROLE: "sandbox"}),
        json!({}),
    ] {
        assert_eq!(
            named(&run, &pod(labels.clone(), &[("c", running())])),
            [""; 0],
            "{labels}"
        );
    }
}

#[test]
fn a_container_has_a_log_once_it_has_begun_and_only_wanted_parts_are_shown() {
    let labels = json!({INFERENCE_POOL: "shared", ROLE: "engine"});
    let states = [
        ("engine", json!({"waiting": {"reason": "ContainerCreating"}})),
        ("agent", json!({"terminated": {"exitCode": 0}})),
    ];
    assert_eq!(named(&run(&[]), &pod(labels.clone(), &states)), ["agent-0"]);
    let both = [("engine", running()), ("agent", running())];
    assert_eq!(named(&run(&[LogPart::Engine]), &pod(labels, &both)), ["engine-0"]);
}
