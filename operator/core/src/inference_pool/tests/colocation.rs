//! Replicas that take turns with a trainer, on GPUs that belong to its pods too.

use super::*;
use crate::admission::facts::PodNeeds;

/// The pool as the operator makes it for its colocated run.
fn of_run(mut seen: InferencePoolObservation, colocated: Value) -> InferencePoolObservation {
    let run = json!({"apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "name": "demo", "uid": "uid-of-run", "controller": true});
    seen.pool.metadata.owner_references = serde_json::from_value(json!([run])).unwrap();
    seen.pool.spec.colocated = serde_json::from_value(colocated).unwrap();
    seen
}

/// A pool of a colocated run: two claims with the GPUs of two replicas each.
fn sharing(replicas: u32) -> InferencePoolObservation {
    let colocated = json!({"claims": ["demo-gpus-0", "demo-gpus-1"], "replicasPerClaim": 2});
    of_run(with_engine("{vllm: {tensorParallel: 2}}", replicas), colocated)
}

/// A pod of replica 0 on a node, which is being deleted.
fn ending(seen: &InferencePoolObservation, state: PodState) -> PodFacts {
    PodFacts {
        deleting: true,
        gone_by: Some(seen.now + Duration::from_secs(30)),
        node_name: Some("gpu-1".into()),
        ..current(seen, 0, state)
    }
}

#[test]
fn only_the_pool_that_the_operator_made_for_a_run_may_have_its_gpus() {
    let refused = |change: &dyn Fn(&mut InferencePool)| {
        let mut pool = sharing(4);
        change(&mut pool.pool);
        let decision = decided(&pool);
        let (is, message) = condition(&decision, "Accepted");
        assert_eq!(decision.create.is_empty(), is == "False", "{message}");
        (is == "False").then(|| message.to_owned())
    };
    assert_eq!(refused(&|_| ()), None);
    assert_eq!(
        refused(&|pool| {
            pool.spec.colocated = None;
            pool.metadata.owner_references = None;
        }),
        None,
        "a pool of its own"
    );
    // Labels, and even the owner, may be copied with the rest of the manifest.
    let copies: [&dyn Fn(&mut InferencePool); 4] = [
        &|pool| pool.metadata.owner_references = None,
        &|pool| pool.metadata.name = Some("demo-copy".into()),
        &|pool| pool.metadata.owner_references.as_mut().unwrap()[0].controller = Some(false),
        &|pool| {
            pool.metadata.owner_references = None;
            pool.spec.colocated.as_mut().unwrap().claims.clear();
        },
    ];
    for (number, copy) in copies.into_iter().enumerate() {
        let message = refused(copy).unwrap_or_else(|| panic!("copy {number} is accepted"));
        assert!(message.contains("remove spec.colocated"), "{message}");
    }
}

#[test]
fn a_replica_waits_for_the_pod_that_may_still_use_its_gpus_and_the_pool_names_it() {
    let mut pool = sharing(1);
    pool.pods = vec![ending(&pool, running())];
    let decision = decided(&pool);
    assert!(decision.create.is_empty());
    let (is, message) = condition(&decision, "Ready");
    assert_eq!(is, "False");
    for words in [
        "replica 0 is made later",
        "demo-engine-0-1-0 on node gpu-1",
        "kubectl describe pod",
    ] {
        assert!(message.contains(words), "{message}");
    }
    assert!(decision.again.is_some(), "its node may be lost");
    pool.now += Duration::from_secs(90);
    assert_eq!(made(&decided(&pool)), ["demo-engine-0-2-0"], "its node is lost");
}

#[test]
fn a_replica_of_a_pool_that_was_made_again_waits_for_the_pods_of_the_earlier_pool() {
    let mut pool = sharing(2);
    let left = ending(&pool, running());
    for (earlier, created) in [
        (left.clone(), vec!["demo-engine-1-1-0"]),
        (
            PodFacts {
                state: PodState::Succeeded,
                ..left.clone()
            },
            vec!["demo-engine-0-1-0", "demo-engine-1-1-0"],
        ),
    ] {
        pool.earlier_pods = vec![earlier];
        assert_eq!(made(&decided(&pool)), created);
    }
    pool.earlier_pods = vec![left];
    let decision = decided(&pool);
    let message = condition(&decision, "Ready").1;
    assert!(message.contains("demo-engine-0-1-0 on node gpu-1"), "{message}");
    let lost = Duration::from_secs(91);
    assert!(decision.again.is_some_and(|again| again < lost), "{:?}", decision.again);
    pool.pool.spec.colocated = None;
    assert_eq!(
        made(&decided(&pool)).len(),
        2,
        "with GPUs of their own nothing is waited for"
    );
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
        let turns = colocated.then(|| json!({"claims": ["demo-gpus-0"], "replicasPerClaim": 1}));
        let pool = of_run(with_engine(engine, 1), turns.into());
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
    let pool = of_run(seen(3), json!({"replicasPerClaim": 1}));
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
