use grpo_crds::InferencePool;
use serde_json::json;

use super::{
    decide::{Decision, decide},
    engine_pod::engine,
    read::Seen,
};
use crate::{
    child::Owner,
    fixtures::{assert_understood, ended, find, names, object, pod, running},
    names::TEMPLATE,
    pods::{PodFacts, PodState},
    settings::Settings,
};

fn seen(replicas: u32) -> Seen {
    let pool: InferencePool = object(&format!(
        "{{apiVersion: grpo.dev/v1alpha1, kind: InferencePool, metadata: {{name: demo}}, \
         spec: {{model: {{image: {{reference: 'example.com/model:1', path: weights}}}}, engine: {{embedded: {{}}}}, replicas: {replicas}}}}}"
    ));
    Seen {
        owner: Owner::of(&pool).unwrap(),
        pool,
        pods: Vec::new(),
        run: Some("demo".into()),
        claim_is_void: false,
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
    }
}

fn decided(seen: &Seen) -> Decision {
    decide(seen, &Settings::for_tests())
}

/// A pod made from what is wanted now.
fn current(seen: &Seen, replica: u32, state: PodState) -> PodFacts {
    let wanted = engine(seen, &Settings::for_tests(), replica);
    PodFacts {
        template: wanted.object["metadata"]["annotations"][TEMPLATE]
            .as_str()
            .map(str::to_owned),
        ..pod(&wanted.name, 1, 0, state)
    }
}

fn made(decision: &Decision) -> Vec<&str> {
    decision.create.iter().map(|(pod, _)| pod.name.as_str()).collect()
}

#[test]
fn a_new_pool_is_given_its_pods_and_a_service_that_names_them_all() {
    let decision = decided(&seen(2));
    assert_eq!(made(&decision), ["demo-engine-0", "demo-engine-1"]);
    assert_eq!(names(&decision.children), ["Service/demo-engines"]);
    let service = find(&decision.children, "Service", "demo-engines");
    assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
    decision
        .children
        .iter()
        .chain(decision.create.iter().map(|(pod, _)| pod))
        .for_each(assert_understood);
}

#[test]
fn the_engine_listens_on_loopback_and_the_agent_is_its_only_door() {
    let decision = decided(&seen(1));
    let containers = &decision.create[0].0.object["spec"]["containers"];
    assert_eq!(
        containers[0]["args"],
        json!(["--model-dir", "/model/weights", "--listen", "127.0.0.1:8001"])
    );
    assert_eq!(containers[0]["ports"], json!(null));
    assert_eq!(
        containers[1]["args"],
        json!(["--engine", "http://127.0.0.1:8001", "--cache-dir", "/cache"])
    );
    assert_eq!(containers[1]["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert_eq!(decision.create[0].0.object["spec"]["restartPolicy"], "Always");
}

#[test]
fn replicas_that_serve_are_left_alone() {
    let mut pool = seen(2);
    pool.pods = vec![current(&pool, 0, running()), current(&pool, 1, running())];
    let decision = decided(&pool);
    assert!(decision.create.is_empty() && decision.delete.is_empty());
    assert_eq!(decision.status.ready.as_deref(), Some("2/2"));
    assert_eq!(decision.status.conditions[0].status, "True");
}

#[test]
fn surplus_finished_and_outdated_replicas_go() {
    let mut pool = seen(3);
    pool.pods = vec![
        current(&pool, 0, running()),
        current(&pool, 1, ended(1, "")),
        PodFacts {
            template: Some("of another spec".into()),
            ..current(&pool, 2, running())
        },
        pod("demo-engine-3", 1, 0, running()),
    ];
    let mut decision = decided(&pool);
    decision.delete.sort();
    assert_eq!(decision.delete, ["demo-engine-1", "demo-engine-2", "demo-engine-3"]);
    assert!(
        decision.create.is_empty(),
        "their names are free only when they are gone"
    );
}

#[test]
fn what_a_replica_waits_for_is_in_the_message() {
    let mut pool = seen(1);
    let waiting = PodState::Waiting {
        reason: "ImagePullBackOff".into(),
        message: "pod demo-engine-0 cannot get an image".into(),
    };
    pool.pods = vec![current(&pool, 0, waiting)];
    let decision = decided(&pool);
    assert_eq!(decision.status.conditions[0].status, "False");
    assert!(decision.status.message.unwrap().contains("cannot get an image"));
}

#[test]
fn a_claim_of_a_run_that_is_gone_is_released_and_the_operators_status_never_holds_one() {
    let mut pool = seen(1);
    pool.claim_is_void = true;
    let decision = decided(&pool);
    assert!(decision.release_claim);
    assert_eq!(decision.status.claimed_by, None);
}
