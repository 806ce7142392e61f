//! What a pool's status says of replicas of several pods, and of an update that does not come to its end.

use super::*;

#[test]
fn a_replica_of_several_pods_that_serves_its_own_model_again_has_the_weights_of_no_run() {
    let mut pool = with_engine("{vllm: {tensorParallel: 2, nodes: 2}}", 1);
    let status = json!({"weightsOf": {"name": "first", "uid": "uid-of-first"}});
    pool.pool.status = Some(serde_json::from_value(status).unwrap());
    pool.pods = [0, 1]
        .map(|rank| PodFacts {
            rank,
            name: format!("demo-engine-0-1-{rank}"),
            ..current(&pool, 0, running())
        })
        .into();
    assert!(decided(&pool).status.weights_of.is_some(), "its agent does not answer");
    pool.agents = [("demo-engine-0-1-0".to_owned(), agent(Some("base"), None, None))].into();
    assert_eq!(decided(&pool).status.weights_of, None);
}

#[test]
fn an_update_whose_new_replica_cannot_start_says_why_although_the_old_ones_serve() {
    let mut pool = with_engine("{vllm: {}}", 1);
    (pool.pool.spec.update.max_surge, pool.pool.spec.update.max_unavailable) = (1, 0);
    let old = PodFacts {
        template: Some("of an earlier spec".into()),
        ..current(&pool, 0, running())
    };
    pool.pods = vec![old.clone()];
    let said = decided(&pool).status.message.unwrap();
    assert!(said.ends_with("of an earlier spec, being replaced: 1"), "{said}");
    let waiting = PodState::Waiting {
        reason: "Unschedulable".into(),
        message: "pod demo-engine-1-1-0 cannot be scheduled: Insufficient nvidia.com/gpu".into(),
    };
    pool.pods = vec![old, current(&pool, 1, waiting)];
    let decision = decided(&pool);
    assert!(decision.create.is_empty() && decision.delete.is_empty());
    let (status, said) = condition(&decision, "Ready");
    assert_eq!(status, "True");
    let why = "being replaced: 1 (pod demo-engine-1-1-0 cannot be scheduled";
    assert!(said.contains(why), "{said}");
}
