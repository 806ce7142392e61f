use grpo_contracts::reason::Reason;
use serde_json::json;

use crate::{
    inference_pool::{
        decide::{Decision, decide},
        observation::InferencePoolObservation,
        template::template,
        tests::seeing,
    },
    pods::{PodFacts, PodState},
    settings::Settings,
};

/// A pool of replicas of two pods, which no run owns.
fn pool(replicas: u32) -> InferencePoolObservation {
    seeing(&format!(
        "{{apiVersion: grpo.dev/v1alpha1, kind: InferencePool, metadata: {{name: demo}}, \
         spec: {{model: {{image: {{reference: 'example.com/model:1'}}}}, replicas: {replicas}, \
         engine: {{vllm: {{tensorParallel: 8, pipelineParallel: 2, nodes: 2}}}}}}}}"
    ))
}

fn decided(seen: &InferencePoolObservation) -> Decision {
    decide(seen, &Settings::for_tests())
}

fn made(decision: &Decision) -> Vec<&str> {
    decision.create.iter().map(|(pod, _)| pod.name.as_str()).collect()
}

/// A pod of a replica whose engine does not serve yet; without a node it waits for one.
fn member(seen: &InferencePoolObservation, group: u32, rank: u32, node: Option<&str>) -> PodFacts {
    let name = format!("demo-engine-{group}-1-{rank}");
    let state = match node {
        Some(_) => PodState::Running { ready: false },
        None => PodState::Waiting {
            reason: "Unschedulable".into(),
            message: format!("pod {name} cannot be scheduled: no free GPUs"),
        },
    };
    PodFacts {
        group,
        state,
        node_name: node.map(str::to_owned),
        template: Some(template(seen, &Settings::for_tests())),
        ..PodFacts::just_made(name, 1, rank)
    }
}

#[test]
fn replicas_of_several_pods_are_made_in_turn_when_no_admission_places_their_pods_together() {
    let mut pool = pool(2);
    assert_eq!(made(&decided(&pool)), ["demo-engine-0-1-0", "demo-engine-0-1-1"]);
    pool.pods = vec![member(&pool, 0, 0, Some("node-a")), member(&pool, 0, 1, None)];
    assert_eq!(made(&decided(&pool)), [""; 0]);
    pool.pods[1] = member(&pool, 0, 1, Some("node-b"));
    assert_eq!(made(&decided(&pool)), ["demo-engine-1-1-0", "demo-engine-1-1-1"]);
}

#[test]
fn the_rest_of_a_replica_is_made_before_another_replica_whether_or_not_its_first_pod_waits_for_a_node() {
    for node in [None, Some("node-a")] {
        let mut pool = pool(2);
        pool.pods = vec![member(&pool, 0, 0, node)];
        assert_eq!(made(&decided(&pool)), ["demo-engine-0-1-1"], "{node:?}");
    }
}

#[test]
fn the_pods_of_a_pool_with_a_scheduler_of_its_own_are_made_together_because_it_may_wait_for_all() {
    for (scheduler, pods) in [("gangs", 4), ("default-scheduler", 2)] {
        let mut pool = pool(2);
        let overlay = json!({"spec": {"schedulerName": scheduler}});
        pool.pool.spec.pod_template = serde_json::from_value(overlay).unwrap();
        assert_eq!(decided(&pool).create.len(), pods, "{scheduler}");
    }
}

#[test]
fn the_pods_of_a_pool_of_a_run_are_made_together_because_admission_places_them() {
    let mut pool = pool(2);
    let run = json!([{"apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "name": "demo", "uid": "uid-2", "controller": true}]);
    pool.pool.metadata.owner_references = serde_json::from_value(run).unwrap();
    assert_eq!(decided(&pool).create.len(), 4);
}

#[test]
fn a_replica_with_only_some_pods_on_nodes_is_named_with_what_to_do() {
    let mut pool = pool(1);
    pool.pods = vec![member(&pool, 0, 0, Some("node-a")), member(&pool, 0, 1, None)];
    let decision = decided(&pool);
    let mut conditions = decision.status.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == "Ready").unwrap();
    assert_eq!(ready.reason, Reason::ReplicasNotReady.text());
    for words in [
        "no free GPUs",
        "replica 0 has 1 of its 2 pods on nodes",
        "spec.replicas",
    ] {
        assert!(ready.message.contains(words), "{}", ready.message);
    }
    pool.pods[1] = member(&pool, 0, 1, Some("node-b"));
    assert!(!decided(&pool).status.message.unwrap().contains("pods on nodes"));
}
