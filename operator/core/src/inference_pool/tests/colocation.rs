//! Replicas that take turns with a trainer, on GPUs that belong to its pods too.

use super::*;
use crate::admission::facts::PodNeeds;

/// A pool of a colocated run: two claims with the GPUs of two replicas each.
fn sharing(replicas: u32) -> InferencePoolObservation {
    let mut seen = with_engine("{vllm: {tensorParallel: 2}}", replicas);
    let colocated = json!({"claims": ["demo-gpus-0", "demo-gpus-1"], "replicasPerClaim": 2});
    seen.pool.spec.colocated = serde_json::from_value(colocated).unwrap();
    seen
}

#[test]
fn each_replica_uses_a_request_of_its_own_in_place_of_gpus_of_a_device_plugin() {
    let decision = decided(&sharing(4));
    let used: Vec<(Value, Value)> = decision
        .create
        .iter()
        .map(|(pod, _)| {
            assert_understood(pod);
            let spec = &pod.object["spec"];
            let resources = &spec["containers"][0]["resources"];
            assert!(!resources.to_string().contains("nvidia.com/gpu"), "{resources}");
            (spec["resourceClaims"].clone(), resources["claims"].clone())
        })
        .collect();
    let of = |claim: &str, request: &str| {
        (
            json!([{"name": "gpus", "resourceClaimName": claim}]),
            json!([{"name": "gpus", "request": request}]),
        )
    };
    assert_eq!(
        used,
        [
            of("demo-gpus-0", "engine-0"),
            of("demo-gpus-0", "engine-1"),
            of("demo-gpus-1", "engine-0"),
            of("demo-gpus-1", "engine-1"),
        ]
    );
}

#[test]
fn no_replica_is_made_beyond_the_claims_and_the_pool_says_so() {
    let mut pool = sharing(5);
    let decision = decided(&pool);
    assert_eq!(decision.create.len(), 4);
    pool.pods = (0..4).map(|replica| current(&pool, replica, running())).collect();
    let decision = decided(&pool);
    assert!(decision.create.is_empty() && decision.delete.is_empty());
    let (is, message) = condition(&decision, "Ready");
    assert_eq!(is, "True");
    for words in ["4 of 4 replicas serve", "5 replicas are asked for", "enough for 4"] {
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_replica_ends_before_its_successor_gets_the_same_gpus() {
    let mut pool = sharing(4);
    pool.pool.spec.update = serde_json::from_value(json!({"maxSurge": 2, "maxUnavailable": 0})).unwrap();
    pool.pods = (0..4)
        .map(|replica| PodFacts {
            template: Some("of another spec".into()),
            ..current(&pool, replica, running())
        })
        .collect();
    let decision = decided(&pool);
    assert_eq!(
        (decision.delete.len(), decision.create.len()),
        (1, 0),
        "there are no GPUs for a fifth replica"
    );
    pool.pods[0].deleting = true;
    assert!(decided(&pool).create.is_empty(), "the old replica still has its GPUs");
    pool.pods.remove(0);
    assert_eq!(made(&decided(&pool)), ["demo-engine-0-1-0"]);
}

#[test]
fn engines_that_take_turns_can_sleep_and_others_cannot() {
    let flags = |engine: &str, colocated: bool| {
        let mut pool = with_engine(engine, 1);
        let turns = json!({"claims": ["demo-gpus-0"], "replicasPerClaim": 1});
        pool.pool.spec.colocated = colocated.then(|| serde_json::from_value(turns).unwrap());
        let args = decided(&pool).create[0].0.object["spec"]["containers"][0]["args"].clone();
        let all: Vec<String> = serde_json::from_value(args).unwrap();
        [
            "--enable-sleep-mode",
            "--enable-memory-saver",
            "--enable-weights-cpu-backup",
        ]
        .map(|flag| all.iter().any(|one| one == flag))
    };
    assert_eq!(flags("{vllm: {}}", true), [true, false, false]);
    assert_eq!(flags("{sglang: {}}", true), [false, true, true]);
    assert_eq!(flags("{vllm: {}}", false), [false; 3]);
    assert_eq!(flags("{sglang: {}}", false), [false; 3]);
}

#[test]
fn an_embedded_engine_that_takes_turns_claims_nothing_and_scales() {
    let mut pool = seen(3);
    pool.pool.spec.colocated = serde_json::from_value(json!({"replicasPerClaim": 1})).unwrap();
    let decision = decided(&pool);
    assert_eq!(decision.create.len(), 3);
    for (pod, _) in &decision.create {
        assert_eq!(pod.object["spec"]["resourceClaims"], Value::Null);
    }
}

#[test]
fn replicas_that_sleep_are_explained_by_the_trainers_turn() {
    let mut pool = sharing(1);
    pool.pods = vec![current(&pool, 0, PodState::Running { ready: false })];
    let asleep = AgentStatus {
        state: AgentState::Asleep,
        ..agent(None, Some("l1-v3"), None)
    };
    pool.agents.insert("demo-engine-0-1-0".into(), asleep);
    let decision = decided(&pool);
    for type_ in ["Ready", "Updated"] {
        let (is, message) = condition(&decision, type_);
        assert_eq!(is, "False", "{type_}");
        assert!(
            message.contains("engines sleep while the trainer has their devices"),
            "{message}"
        );
    }
}

#[test]
fn admission_counts_processors_and_memory_and_leaves_the_gpus_to_the_scheduler() {
    let mut pool = sharing(1);
    pool.pool.spec.resources = serde_json::from_value(json!({"requests": {"cpu": "8"}})).unwrap();
    let pod = decided(&pool).create[0].0.object.clone();
    let needs = PodNeeds::planned(&serde_json::from_value(pod).unwrap());
    assert!(needs.requests.get("cpu").is_some_and(|cpu| *cpu >= 8000), "{needs:?}");
    assert!(!needs.requests.contains_key("nvidia.com/gpu"), "{needs:?}");
}
