mod admission;
mod agent_image;
mod colocation;
mod lifecycle;
mod process_pods;
mod references;
mod screens;
mod trainer_pods;

use std::collections::BTreeSet;

use grpo_contracts::reason::Reason;
use grpo_crds::{
    AttemptStatus, GrpoRun, InferencePool, SandboxPool,
    grpo_run::{Attempts, Phase},
};
use serde_json::{Value, json};

use super::{
    decide::decide,
    decision::{ClaimStep, Decision},
    observation::{QueueState, RunObservation, StoreVolume},
};
use crate::{
    admission::{Verdict, facts::VolumeTerms},
    desired_object::Owner,
    fixtures::{DEMO, assert_understood, ended, find, names, object, pod, running},
    pods::{PodFacts, PodState},
    settings::Settings,
};

pub(super) fn seen(run: GrpoRun) -> RunObservation {
    RunObservation {
        owner: Owner::of(&run).unwrap(),
        run,
        attempts: Attempts::default(),
        driver_pods: Vec::new(),
        trainer_pods: Vec::new(),
        inference: None,
        judge: None,
        sandboxes: None,
        store: StoreVolume::OneNode,
        volumes: VolumeTerms::new(),
        provisioning: BTreeSet::new(),
        gpu_memory: None,
        verdict: None,
        quota: None,
        unbound_engines: Vec::new(),
        engines_on_nodes: false,
        gpu_claims: Vec::new(),
        engines_left: false,
        queue: QueueState::default(),
        priority: None,
        missing: Vec::new(),
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
    }
}

pub(super) fn new_demo() -> RunObservation {
    seen(object(DEMO))
}

fn ready_pool(yaml: &str, status: Value) -> Value {
    let mut pool: Value = serde_yaml_ng::from_str(yaml).unwrap();
    pool["status"] = status;
    pool
}

fn ready(holds: &str, message: &str) -> Value {
    json!([{"type": "Ready", "status": holds, "reason": "R", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}])
}

pub(super) fn inference_pool(claimed_by: Option<&str>, holds: &str, message: &str) -> InferencePool {
    let yaml = "{apiVersion: grpo.dev/v1alpha1, kind: InferencePool, metadata: {name: demo, namespace: team}, \
                spec: {model: {image: {reference: 'grpo.dev/demo/model:1'}}, engine: {embedded: {}}}}";
    let mut status = json!({"conditions": ready(holds, message), "replicas": 1, "readyReplicas": 1});
    if let Some(uid) = claimed_by {
        status["claimedBy"] = json!({"name": "some-run", "uid": uid});
    }
    serde_json::from_value(ready_pool(yaml, status)).unwrap()
}

fn sandbox_pool() -> SandboxPool {
    let yaml =
        "{apiVersion: grpo.dev/v1alpha1, kind: SandboxPool, metadata: {name: demo, namespace: team}, spec: {max: 16}}";
    let status = json!({"conditions": ready("True", ""), "ready": 0, "leased": 0, "pending": 0});
    serde_json::from_value(ready_pool(yaml, status)).unwrap()
}

fn begun(attempt: u32) -> AttemptStatus {
    AttemptStatus {
        current: attempt,
        created: true,
        ..AttemptStatus::default()
    }
}

pub(super) fn admitted() -> Verdict {
    Verdict {
        admitted: true,
        reason: Reason::Admitted,
        message: "all of it fits".into(),
    }
}

/// The demo with everything running.
pub(super) fn running_demo() -> RunObservation {
    RunObservation {
        attempts: Attempts {
            driver: begun(1),
            trainer: begun(1),
        },
        driver_pods: vec![pod("demo-driver-1-0", 1, 0, running())],
        trainer_pods: vec![
            pod("demo-trainer-1-0", 1, 0, running()),
            pod("demo-trainer-1-1", 1, 1, running()),
        ],
        inference: Some(inference_pool(Some("uid-1"), "True", "1 of 1 replicas serve")),
        sandboxes: Some(sandbox_pool()),
        verdict: Some(admitted()),
        ..new_demo()
    }
}

pub(super) fn decided(seen: &RunObservation) -> Decision {
    decide(seen, &Settings::for_tests())
}

pub(super) fn with_spec(mut run: RunObservation, change: impl FnOnce(&mut GrpoRun)) -> RunObservation {
    change(&mut run.run);
    run
}

/// The same run one reconcile later, after the decision was written and executed.
pub(super) fn after(mut run: RunObservation) -> RunObservation {
    let decision = decided(&run);
    run.run.status = Some(decision.status.clone());
    run.attempts = decision.status.attempts.clone().unwrap_or_default();
    let gone = [&decision.give_back, &decision.delete_pods];
    let stays = |pod: &PodFacts| !gone.iter().any(|names| names.contains(&pod.name));
    run.driver_pods.retain(stays);
    run.trainer_pods.retain(stays);
    run
}

pub(super) fn condition(decision: &Decision, type_: &str) -> (String, String, String) {
    let found = decision
        .status
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_)
        .unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

pub(super) fn created<'a>(decision: &'a Decision, name: &str) -> &'a Value {
    &decision
        .create
        .iter()
        .find(|(_, pod, _)| pod.name == name)
        .unwrap()
        .1
        .object
}

fn variable(container: &Value, name: &str) -> String {
    let variables = container["env"].as_array().unwrap();
    let found = variables.iter().find(|variable| variable["name"] == name).unwrap();
    found["value"].as_str().unwrap().to_owned()
}

#[test]
fn a_new_run_is_given_everything_the_contract_names() {
    let decision = decided(&new_demo());
    assert_eq!(
        names(&decision.objects),
        [
            "ConfigMap/demo-config",
            "PersistentVolumeClaim/demo-store",
            "ServiceAccount/demo-driver",
            "Role/demo-driver",
            "RoleBinding/demo-driver",
            "Service/demo-driver",
            "NetworkPolicy/demo-driver",
            "ServiceAccount/demo-trainer",
            "NetworkPolicy/demo-trainer",
            "Service/demo-trainer-1",
            "Service/demo-trainer",
            "InferencePool/demo",
            "SandboxPool/demo",
        ]
    );
    let pods: Vec<&str> = decision.create.iter().map(|(_, pod, _)| pod.name.as_str()).collect();
    assert_eq!(pods, ["demo-driver-1-0", "demo-trainer-1-0", "demo-trainer-1-1"]);
    assert_eq!(decision.status.phase, Some(Phase::Queued));
}

#[test]
fn everything_made_is_understood_by_kubernetes_and_owned_by_the_run() {
    let decision = decided(&new_demo());
    for desired in decision
        .objects
        .iter()
        .chain(decision.create.iter().map(|(_, pod, _)| pod))
    {
        assert_understood(desired);
        let owner = &desired.object["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["uid"], &owner["controller"]),
            (&json!("uid-1"), &json!(true)),
            "{}",
            desired.name
        );
        assert_eq!(
            desired.object["metadata"]["labels"]["grpo.dev/run"], "demo",
            "{}",
            desired.name
        );
    }
}

#[test]
fn driver_and_trainer_are_reached_by_those_of_their_run_only() {
    let decision = decided(&new_demo());
    let ingress = |name: &str| find(&decision.objects, "NetworkPolicy", name)["spec"]["ingress"].clone();
    let driver = ingress("demo-driver");
    assert_eq!(
        driver[0]["from"][0]["podSelector"]["matchLabels"],
        json!({"grpo.dev/role": "engine", "grpo.dev/inference-pool": "demo"})
    );
    assert_eq!(driver[0]["ports"], json!([{"protocol": "TCP", "port": 8070}]));
    let trainer = ingress("demo-trainer");
    assert_eq!(
        trainer[0],
        json!({"from": [{"podSelector": {"matchLabels": {"grpo.dev/run": "demo", "grpo.dev/role": "trainer"}}}]})
    );
    assert_eq!(
        trainer[1]["from"][0]["podSelector"]["matchLabels"],
        json!({"grpo.dev/run": "demo", "grpo.dev/role": "driver"})
    );
    assert_eq!(trainer[1]["ports"], json!([{"protocol": "TCP", "port": 8090}]));
}

#[test]
fn the_driver_may_write_its_own_status_only() {
    let decision = decided(&new_demo());
    let rules = find(&decision.objects, "Role", "demo-driver")["rules"]
        .as_array()
        .unwrap();
    for rule in rules {
        assert_eq!(rule["resourceNames"], json!(["demo"]));
    }
    assert_eq!(rules[1]["resources"], json!(["grporuns/status"]));
}

#[test]
fn a_run_whose_pods_and_pools_are_ready_runs() {
    let decision = decided(&running_demo());
    assert_eq!(decision.status.phase, Some(Phase::Running));
    assert_eq!(condition(&decision, "Provisioned").0, "True");
    assert!(decision.create.is_empty() && decision.delete_pods.is_empty());
    assert_eq!(decision.claim, ClaimStep::Leave);
}

#[test]
fn every_reason_for_waiting_is_in_the_message() {
    let waiting = PodState::Waiting {
        reason: "Unschedulable".into(),
        message: "pod demo-driver-1-0 cannot be scheduled: 0/1 nodes are available: 1 Insufficient cpu".into(),
    };
    let decision = decided(&RunObservation {
        driver_pods: vec![pod("demo-driver-1-0", 1, 0, waiting)],
        inference: Some(inference_pool(None, "False", "0 of 1 replicas serve; no image")),
        ..running_demo()
    });
    let (status, reason, message) = condition(&decision, "Provisioned");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "InferencePoolNotReady"));
    for words in ["InferencePool demo (grpo.dev)", "no image", "Insufficient cpu"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(decision.claim, ClaimStep::Take);
}

#[test]
fn a_pool_that_follows_another_run_is_waited_for_and_not_taken() {
    let decision = decided(&RunObservation {
        inference: Some(inference_pool(Some("uid-of-another"), "True", "")),
        ..running_demo()
    });
    assert_eq!(decision.claim, ClaimStep::Leave);
    let (_, reason, message) = condition(&decision, "Provisioned");
    assert_eq!(reason, "InferencePoolClaimed");
    assert!(message.contains("GrpoRun some-run"), "{message}");
}

#[test]
fn a_store_that_does_not_exist_is_named() {
    let mut run: GrpoRun = object(DEMO);
    run.spec.store = serde_yaml_ng::from_str("persistentVolumeClaim: {claimName: runs}").unwrap();
    let decision = decided(&RunObservation {
        store: StoreVolume::Missing,
        ..seen(run)
    });
    assert!(
        condition(&decision, "Provisioned")
            .2
            .contains("there is no PersistentVolumeClaim runs in namespace team")
    );
    assert!(!names(&decision.objects).contains(&"PersistentVolumeClaim/demo-store".to_owned()));
}

#[test]
fn a_failed_rank_begins_a_new_attempt_with_its_own_hostnames() {
    let decision = decided(&RunObservation {
        trainer_pods: vec![
            pod("demo-trainer-1-0", 1, 0, running()),
            pod("demo-trainer-1-1", 1, 1, ended(1, "no")),
        ],
        ..running_demo()
    });
    assert_eq!(decision.delete_pods, ["demo-trainer-1-0", "demo-trainer-1-1"]);
    assert_eq!(decision.delete_services, ["demo-trainer-1"]);
    let attempts = decision.status.attempts.as_ref().unwrap();
    assert_eq!((attempts.trainer.current, attempts.driver.current), (2, 1));
    let pod = created(&decision, "demo-trainer-2-0");
    assert_eq!(
        variable(&pod["spec"]["containers"][0], "MASTER_ADDR"),
        "demo-trainer-2-0.demo-trainer-2"
    );
    let service = find(&decision.objects, "Service", "demo-trainer");
    assert_eq!(service["spec"]["selector"]["grpo.dev/attempt"], "2");
    assert_eq!(decision.events[0].reason, "TrainerAttemptEnded");
}

#[test]
fn a_driver_that_ends_well_ends_the_run_and_frees_what_it_held() {
    let decision = decided(&RunObservation {
        driver_pods: vec![pod("demo-driver-1-0", 1, 0, PodState::Succeeded)],
        ..running_demo()
    });
    assert_eq!(decision.status.phase, Some(Phase::Succeeded));
    assert_eq!(condition(&decision, "Succeeded").0, "True");
    assert_eq!(condition(&decision, "Failed").0, "False");
    assert_eq!(decision.give_back, ["demo-trainer-1-0", "demo-trainer-1-1"]);
    assert!(decision.delete_pools);
    assert_eq!(decision.claim, ClaimStep::Release);
}

#[test]
fn a_declared_fault_fails_the_run_with_the_drivers_own_words() {
    let words = r#"{"reason": "NoTasks", "message": "the dataset has no rows that fit"}"#;
    let decision = decided(&RunObservation {
        driver_pods: vec![pod("demo-driver-1-0", 1, 0, ended(42, words))],
        ..running_demo()
    });
    assert_eq!(decision.status.phase, Some(Phase::Failed));
    let (status, reason, message) = condition(&decision, "Failed");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "NoTasks"));
    assert_eq!(message, "the dataset has no rows that fit");
    assert!(decision.create.is_empty());
}

#[test]
fn a_fault_without_a_termination_message_is_taken_from_the_runs_own_progress() {
    let fault = |uid: &str| {
        let mut demo = running_demo();
        demo.driver_pods = vec![pod("demo-driver-1-0", 1, 0, ended(42, "not JSON"))];
        let progress = json!({"runUid": uid, "fault": {"reason": "Store full!", "message": "no space left"}});
        demo.run.status = Some(serde_json::from_value(json!({"progress": progress})).unwrap());
        condition(&decided(&demo), "Failed").1
    };
    assert_eq!(fault("uid-1"), "Storefull", "a reason is made one word");
    assert_eq!(fault("uid-of-a-namesake"), "DriverFault");
}

#[test]
fn an_end_once_written_is_never_taken_back() {
    let mut over = running_demo();
    let end = decided(&RunObservation {
        driver_pods: vec![pod("demo-driver-1-0", 1, 0, PodState::Succeeded)],
        ..running_demo()
    });
    over.run.status = Some(end.status.clone());
    over.driver_pods = Vec::new();
    over.trainer_pods = Vec::new();
    let decision = decided(&over);
    assert_eq!(decision.status.phase, Some(Phase::Succeeded));
    assert!(decision.create.is_empty() && decision.objects.is_empty() && decision.events.is_empty());
    assert_eq!(decision.status, end.status);
}

#[test]
fn the_operators_part_of_the_status_never_holds_progress() {
    let mut demo = running_demo();
    demo.run.status = Some(serde_json::from_value(json!({"progress": {"iteration": 3}})).unwrap());
    assert_eq!(decided(&demo).status.progress, None);
}

#[test]
fn an_evaluation_has_no_trainer() {
    let mut run: GrpoRun = object(DEMO);
    run.spec.mode = grpo_crds::grpo_run::Mode::Evaluate;
    let decision = decided(&seen(run));
    assert!(decision.create.iter().all(|(role, ..)| *role == "driver"));
    assert!(!names(&decision.objects).iter().any(|name| name.contains("trainer")));
}

#[test]
fn a_run_that_is_deleted_makes_nothing_more() {
    let mut demo = new_demo();
    demo.run.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(demo.now));
    let decision = decided(&demo);
    assert_eq!(decision.status.phase, Some(Phase::Terminating));
    assert!(decision.create.is_empty() && decision.objects.is_empty());
}

#[test]
fn pods_that_were_just_made_are_not_taken_for_lost() {
    let demo = RunObservation {
        driver_pods: vec![PodFacts::just_made("demo-driver-1-0".into(), 1, 0)],
        ..running_demo()
    };
    let decision = decided(&demo);
    assert!(decision.create.is_empty() && decision.delete_pods.is_empty());
    assert_eq!(decision.status.phase, Some(Phase::Provisioning));
}

#[test]
fn a_run_asks_for_room_before_the_server_of_its_own_external_pool_is_probed() {
    let mut run: GrpoRun = object(DEMO);
    let external = "{external: {url: 'https://example.com/v1', weights: Agent}}";
    run.spec.inference.pool.as_mut().unwrap().engine = serde_yaml_ng::from_str(external).unwrap();
    let mut pool = inference_pool(None, "False", "not probed yet");
    pool.spec = run
        .spec
        .inference
        .pool
        .as_ref()
        .unwrap()
        .serving(&run.spec.model.source());
    let owned = decided(&RunObservation {
        inference: Some(pool.clone()),
        sandboxes: Some(sandbox_pool()),
        ..seen(run.clone())
    });
    assert_eq!(owned.status.phase, Some(Phase::Queued), "{:?}", owned.status.message);

    run.spec.inference = serde_yaml_ng::from_str("{poolRef: {name: demo}}").unwrap();
    let referred = decided(&RunObservation {
        inference: Some(pool),
        sandboxes: Some(sandbox_pool()),
        ..seen(run)
    });
    assert_eq!(
        referred.status.phase,
        Some(Phase::Pending),
        "somebody else's pool is probed already"
    );
}
