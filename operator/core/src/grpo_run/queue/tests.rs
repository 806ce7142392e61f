//! Runs in Kueue's queue, from asking for quota to returning it.

mod claims;
mod pods_ready;

use std::time::Duration;

use grpo_crds::grpo_run::Phase;
use serde_json::{Value, json};

use super::*;
use crate::kueue::Workload;
use crate::{
    fixtures::{assert_understood, find},
    grpo_run::{
        decision::Decision,
        observation::Asked,
        tests::{condition, created, decided, new_demo, running_demo, with_spec},
    },
    pods::PodState,
    settings::Settings,
};

/// A run with a queue.
fn queued(run: RunObservation) -> RunObservation {
    with_spec(run, |run| run.spec.queue_name = Some("gpus".into()))
}

fn requested(decision: &Decision) -> Value {
    match &decision.workload {
        WorkloadStep::Create(workload) => workload.object.clone(),
        other => panic!("{other:?}"),
    }
}

/// The Workload that this run asks with, with these conditions that hold.
fn workload_of(run: &RunObservation, conditions: &[&str]) -> Workload {
    let mut object = requested(&decided(run));
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|type_| json!({"type": type_, "status": "True", "reason": "R", "message": "as told", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
        .collect();
    object["status"] = json!({"conditions": conditions});
    serde_json::from_value(object).unwrap()
}

fn asked(run: RunObservation, conditions: &[&str]) -> RunObservation {
    let workload = workload_of(&queued(new_demo()), conditions);
    let placement = Placement {
        node_selector: [("gpu".to_owned(), "h200".to_owned())].into(),
        ..Placement::default()
    };
    let roles = [role::DRIVER, role::TRAINER, role::ENGINE];
    RunObservation {
        queue: QueueState::Asked(Box::new(Asked {
            workload,
            placements: roles.map(|role| (role.to_owned(), placement.clone())).into(),
            lacks_flavor: None,
        })),
        verdict: None,
        ..queued(run)
    }
}

/// Admitted to a flavor that was deleted.
fn lacking_flavor() -> RunObservation {
    let mut run = asked(new_demo(), &ADMITTED);
    if let QueueState::Asked(asked) = &mut run.queue {
        asked.lacks_flavor = Some("h200".into());
    }
    run
}

const ADMITTED: [&str; 2] = ["QuotaReserved", "Admitted"];
const EVICTED: [&str; 3] = ["QuotaReserved", "Admitted", "Evicted"];

#[test]
fn a_run_asks_for_the_quota_of_all_its_pods_before_any_of_them_is_made() {
    let decision = decided(&queued(new_demo()));
    assert!(decision.create.is_empty());
    let kinds: Vec<&str> = decision.objects.iter().map(|object| object.kind()).collect();
    assert!(!kinds.contains(&"InferencePool"), "{kinds:?}");
    assert_eq!(decision.status.phase, Some(Phase::Queued));
    let workload = requested(&decision);
    assert_eq!(workload["metadata"]["name"], "grporun-demo");
    assert_eq!(workload["metadata"]["ownerReferences"][0]["uid"], "uid-1");
    assert_eq!(workload["spec"]["queueName"], "gpus");
    let sets: Vec<(&str, u64)> = workload["spec"]["podSets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|set| (set["name"].as_str().unwrap(), set["count"].as_u64().unwrap()))
        .collect();
    assert_eq!(sets, [("driver", 1), ("trainer", 2), ("engine", 1)]);
    for set in workload["spec"]["podSets"].as_array().unwrap() {
        let spec = &set["template"]["spec"];
        let pod: k8s_openapi::api::core::v1::PodSpec = serde_json::from_value(spec.clone()).unwrap();
        assert!(
            pod.containers.iter().all(|container| container.resources.is_some()),
            "{spec}"
        );
        assert!(pod.volumes.is_none() && pod.containers[0].env.is_none(), "{spec}");
    }
}

#[test]
fn an_admitted_run_makes_its_pods_and_engines_where_kueue_places_them() {
    let decision = decided(&asked(new_demo(), &ADMITTED));
    assert_eq!(decision.status.phase, Some(Phase::Provisioning));
    for name in ["demo-driver-1-0", "demo-trainer-1-0", "demo-trainer-1-1"] {
        let pod = created(&decision, name);
        assert_eq!(pod["spec"]["nodeSelector"]["gpu"], "h200", "{name}");
        assert_eq!(pod["spec"]["schedulingGates"], Value::Null, "{name}");
    }
    let pool = find(&decision.objects, "InferencePool", "demo");
    let quota: EngineQuota =
        serde_json::from_str(pool["metadata"]["annotations"]["grpo.dev/quota"].as_str().unwrap()).unwrap();
    assert_eq!(
        (quota.pods, &quota.placement.node_selector["gpu"]),
        (1, &"h200".to_owned())
    );
    assert!(matches!(decision.workload, WorkloadStep::Leave));
    decision.objects.iter().for_each(assert_understood);
}

#[test]
fn a_run_that_waits_for_quota_says_what_kueue_says() {
    for (queue, words) in [
        (
            asked(new_demo(), &[]).queue,
            "LocalQueue gpus of namespace team: Kueue has not looked at it yet",
        ),
        (QueueState::NotServed, "install Kueue 0.15 or later"),
        (QueueState::NotAllowed, "install the operator for all namespaces"),
        (
            QueueState::LacksClass("WorkloadPriorityClass urgent".into()),
            "there is no WorkloadPriorityClass urgent",
        ),
        (lacking_flavor().queue, "ResourceFlavor h200, which is missing"),
    ] {
        let decision = decided(&RunObservation {
            queue,
            ..queued(new_demo())
        });
        let (_, reason, message) = condition(&decision, "Admitted");
        assert_eq!(reason, "WaitsForQuota");
        assert!(message.contains(words), "{message}");
        assert_eq!(decision.status.phase, Some(Phase::Queued));
        assert!(
            decision.create.is_empty() && matches!(decision.workload, WorkloadStep::Leave),
            "{words}"
        );
    }
}

#[test]
fn kueue_learns_that_a_run_works_once() {
    let on_nodes = |mut run: RunObservation| {
        run.driver_pods[0].node_name = Some("a".into());
        run
    };
    let decision = decided(&on_nodes(asked(running_demo(), &ADMITTED)));
    assert_eq!(decision.status.phase, Some(Phase::Running));
    let WorkloadStep::Status(patch) = &decision.workload else {
        panic!("{:?}", decision.workload)
    };
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    let ready = conditions
        .iter()
        .find(|condition| condition["type"] == "PodsReady")
        .unwrap();
    assert_eq!(ready["status"], "True");
    let told = decided(&on_nodes(asked(
        running_demo(),
        &["QuotaReserved", "Admitted", "PodsReady"],
    )));
    assert!(matches!(told.workload, WorkloadStep::Leave));
}

#[test]
fn an_evicted_run_ends_all_of_its_pods_and_then_returns_its_quota() {
    let evicted = asked(running_demo(), &EVICTED);
    let first = decided(&evicted);
    assert_eq!(first.status.phase, Some(Phase::Queued));
    assert_eq!(
        first.give_back,
        ["demo-driver-1-0", "demo-trainer-1-0", "demo-trainer-1-1"]
    );
    assert!(first.delete_pools && first.create.is_empty());
    assert!(
        matches!(first.workload, WorkloadStep::Leave),
        "its pods still use the quota"
    );
    let (_, reason, message) = condition(&first, "Admitted");
    assert_eq!(reason, "WaitsForQuota");
    assert!(
        message.starts_with("Kueue evicted it (R): as told. 3 of its pods are ending"),
        "{message}"
    );

    let mut ending = evicted.clone();
    ending.driver_pods.clear();
    ending.trainer_pods.truncate(1);
    ending.trainer_pods[0].deleting = true;
    assert!(
        matches!(decided(&ending).workload, WorkloadStep::Leave),
        "a pod that is being deleted still uses it"
    );
    let gone = |engines_left: bool| {
        decided(&RunObservation {
            driver_pods: Vec::new(),
            trainer_pods: Vec::new(),
            engines_left,
            attempts: first.status.attempts.clone().unwrap(),
            ..evicted.clone()
        })
    };
    assert!(matches!(gone(true).workload, WorkloadStep::Leave));
    assert!(gone(true).retry_in.is_some(), "an engine's end is no event of the run");
    let WorkloadStep::Status(patch) = gone(false).workload else {
        panic!("the quota is returned")
    };
    assert_eq!(patch["status"]["admission"], Value::Null);

    let again = decided(&RunObservation {
        driver_pods: Vec::new(),
        trainer_pods: Vec::new(),
        attempts: first.status.attempts.clone().unwrap(),
        ..asked(running_demo(), &ADMITTED)
    });
    created(&again, "demo-driver-2-0");
    let attempts = again.status.attempts.unwrap();
    assert_eq!(
        attempts.driver.consecutive_failures, 0,
        "an eviction is no failure of the run"
    );
}

#[test]
fn a_run_whose_workload_was_deleted_gives_all_back_and_asks_again() {
    let mut lost = queued(running_demo());
    lost.driver_pods[0].node_name = Some("a".into());
    // Also if its class is gone.
    let classless = RunObservation {
        queue: QueueState::LacksClass("WorkloadPriorityClass urgent".into()),
        ..lost.clone()
    };
    assert_eq!(decided(&classless).give_back.len(), 3);
    let decision = decided(&lost);
    assert_eq!(decision.give_back.len(), 3);
    assert!(condition(&decision, "Admitted").2.contains("its Workload is gone"));
    let after = RunObservation {
        driver_pods: Vec::new(),
        trainer_pods: Vec::new(),
        ..lost
    };
    requested(&decided(&after));
}

#[test]
fn a_suspended_or_ended_run_keeps_its_quota_until_its_last_pod_is_gone() {
    let suspended = || with_spec(asked(running_demo(), &ADMITTED), |run| run.spec.suspend = true);
    let mut ended = asked(running_demo(), &ADMITTED);
    ended.driver_pods[0].state = PodState::Succeeded;
    for mut run in [suspended(), ended] {
        let first = decided(&run);
        assert!(matches!(first.workload, WorkloadStep::Leave));
        assert!(first.retry_in.unwrap() <= Duration::from_secs(5));
        run.trainer_pods.clear();
        run.driver_pods.retain(|pod| pod.is_finished());
        run.engines_left = true;
        assert!(
            matches!(decided(&run).workload, WorkloadStep::Leave),
            "an engine is left"
        );
        run.engines_left = false;
        assert!(matches!(decided(&run).workload, WorkloadStep::Delete));
        run.queue = QueueState::Unasked;
        assert!(matches!(decided(&run).workload, WorkloadStep::Leave));
    }
}

#[test]
fn a_run_that_cannot_begin_holds_no_quota() {
    let blocked = with_spec(asked(new_demo(), &ADMITTED), |run| {
        run.spec.sandboxes = serde_json::from_value(json!({"poolRef": {"name": "there-is-none"}})).unwrap();
    });
    assert!(matches!(decided(&blocked).workload, WorkloadStep::Delete));
}

#[test]
fn a_waiting_run_that_asks_for_something_else_asks_anew_and_an_admitted_one_keeps_its_quota() {
    let larger = |conditions: &[&str]| {
        with_spec(asked(new_demo(), conditions), |run| {
            run.spec.inference.pool.as_mut().unwrap().replicas = 3;
        })
    };
    assert!(matches!(decided(&larger(&[])).workload, WorkloadStep::Delete));
    let admitted = decided(&larger(&ADMITTED));
    assert!(matches!(admitted.workload, WorkloadStep::Leave));
    let pool = find(&admitted.objects, "InferencePool", "demo");
    let pool: grpo_crds::InferencePool = serde_json::from_value(pool.clone()).unwrap();
    assert_eq!(EngineQuota::of_pool(&pool).unwrap().replicas(1), 1);
}

#[test]
fn the_place_in_the_queue_is_that_of_the_runs_class() {
    let classed = |label: bool, value: Option<i32>| {
        let mut run = with_spec(queued(new_demo()), |run| {
            run.spec.priority_class_name = Some("urgent".into())
        });
        if label {
            run.run.metadata.labels =
                Some([("kueue.x-k8s.io/priority-class".to_owned(), "research".to_owned())].into());
        }
        run.priority = value;
        requested(&decided(&run))["spec"].clone()
    };
    let of_pods = classed(false, Some(7));
    assert_eq!(of_pods["priority"], 7);
    assert_eq!(
        of_pods["priorityClassRef"],
        json!({"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "urgent"})
    );
    let of_kueue = classed(true, Some(9));
    assert_eq!(of_kueue["priorityClassRef"]["kind"], "WorkloadPriorityClass");
    assert_eq!(of_kueue["priorityClassRef"]["name"], "research");
}

#[test]
fn gpus_that_trainer_and_engines_share_are_counted_once() {
    let mut run = queued(new_demo());
    run.run.spec.trainer =
        Some(serde_json::from_value(json!({"nodes": 5, "gpusPerNode": 4, "colocate": true, "image": "a"})).unwrap());
    let pool = json!({"engine": {"vllm": {"tensorParallel": 4}}, "replicas": 5});
    run.run.spec.inference = serde_json::from_value(json!({"pool": pool})).unwrap();
    let workload = requested(&decided(&run));
    let gpus = |at: usize| {
        let set = &workload["spec"]["podSets"][at];
        (
            set["count"].clone(),
            set["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"].clone(),
        )
    };
    assert_eq!(gpus(1), (json!(5), json!("4")));
    assert_eq!(gpus(2), (json!(5), Value::Null));
    assert!(
        !workload.to_string().contains("resourceClaims"),
        "Kueue does not admit pods with claims by default"
    );
}

#[test]
fn a_run_whose_pods_exist_keeps_its_quota_while_it_lacks_something() {
    let mut blocked = with_spec(asked(running_demo(), &ADMITTED), |run| {
        run.spec.sandboxes = serde_json::from_value(json!({"poolRef": {"name": "there-is-none"}})).unwrap();
    });
    blocked.sandboxes = None;
    // They wait for nodes: without the Workload they would begin without quota.
    blocked.driver_pods.iter_mut().for_each(|pod| pod.node_name = None);
    assert!(matches!(decided(&blocked).workload, WorkloadStep::Leave));
}

#[test]
fn a_run_that_was_stopped_by_its_workload_stays_stopped() {
    let stopped = |run: RunObservation, conditions: &[&str]| {
        let mut run = asked(run, conditions);
        if let QueueState::Asked(asked) = &mut run.queue {
            asked.workload.spec.active = Some(false);
        }
        run
    };
    for blocked in [true, false] {
        let run = with_spec(stopped(new_demo(), &[]), |run| {
            if blocked {
                run.spec.inference = serde_json::from_value(json!({"poolRef": {"name": "there-is-none"}})).unwrap();
            }
        });
        let decision = decided(&run);
        assert!(matches!(decision.workload, WorkloadStep::Leave) && decision.create.is_empty());
    }
    let (_, _, message) = condition(&decided(&stopped(new_demo(), &[])), "Admitted");
    assert!(message.contains("spec.active is false"), "{message}");
}

#[test]
fn a_resource_quota_that_refuses_pods_does_not_cost_the_place_in_kueues_queue() {
    let refused = RunObservation {
        quota: Some(crate::quota::QuotaWait {
            until: new_demo().now + jiff::SignedDuration::from_secs(10),
            refused: true,
            message: "exceeded quota: pods".into(),
        }),
        ..asked(new_demo(), &ADMITTED)
    };
    let decision = decided(&refused);
    assert!(decision.create.is_empty());
    assert!(matches!(decision.workload, WorkloadStep::Leave));
    assert_eq!(condition(&decision, "Provisioned").1, "QuotaExceeded");
}

#[test]
fn a_run_that_was_changed_while_its_pods_ended_gives_its_old_quota_back() {
    let changed = with_spec(asked(running_demo(), &ADMITTED), |run| {
        run.spec.trainer.as_mut().unwrap().nodes = 5;
    });
    let first = decided(&changed);
    assert_eq!(first.give_back.len(), 3);
    assert!(matches!(first.workload, WorkloadStep::Leave));
    let gone = decided(&RunObservation {
        driver_pods: Vec::new(),
        trainer_pods: Vec::new(),
        attempts: first.status.attempts.clone().unwrap(),
        ..changed
    });
    assert!(
        matches!(gone.workload, WorkloadStep::Delete),
        "the next one asks for five"
    );
}

#[test]
fn a_run_that_works_ends_for_other_devices_and_not_for_what_an_operator_of_another_version_asks_for() {
    let with_shape_of = |change: fn(&mut grpo_crds::GrpoRun)| {
        let made_by_another = requested(&decided(&with_spec(queued(new_demo()), change)));
        let mut run = asked(running_demo(), &["QuotaReserved", "Admitted", "PodsReady"]);
        if let QueueState::Asked(asked) = &mut run.queue {
            let annotations = made_by_another["metadata"]["annotations"].clone();
            asked.workload.metadata.annotations = Some(serde_json::from_value(annotations).unwrap());
        }
        decided(&run)
    };
    let memory = with_shape_of(|run| {
        let resources = json!({"requests": {"memory": "7Gi"}, "limits": {"memory": "9Gi"}});
        run.spec.trainer.as_mut().unwrap().resources = Some(serde_json::from_value(resources).unwrap());
    });
    assert!(memory.give_back.is_empty() && matches!(memory.workload, WorkloadStep::Leave));
    let engines = with_shape_of(|run| run.spec.inference.pool.as_mut().unwrap().replicas = 4);
    assert!(engines.give_back.is_empty());
    let devices = with_shape_of(|run| run.spec.trainer.as_mut().unwrap().gpus_per_node = 8);
    assert_eq!(devices.give_back.len(), 3);
}

#[test]
fn a_run_works_on_when_kueue_leaves_the_cluster_and_one_that_ends_makes_no_new_pods() {
    let left = |deleting: bool| {
        let mut run = RunObservation {
            queue: QueueState::NotServed,
            ..asked(running_demo(), &ADMITTED)
        };
        run.driver_pods.iter_mut().for_each(|pod| pod.deleting = deleting);
        decided(&run)
    };
    let works = left(false);
    assert!(works.give_back.is_empty());
    assert_eq!(condition(&works, "Admitted").0, "True");
    assert!(left(true).create.is_empty());
    assert_eq!(condition(&left(true), "Admitted").1, "WaitsForQuota");
}

#[test]
fn another_image_and_nodes_to_avoid_are_no_other_quota() {
    let mut run = asked(new_demo(), &[]);
    run.attempts.trainer.avoid_nodes = vec!["broken".into()];
    let mut settings = Settings::for_tests();
    settings.driver_image = "grpo.dev/driver:next".into();
    let decision = crate::grpo_run::decide::decide(&run, &settings);
    assert!(matches!(decision.workload, WorkloadStep::Leave));
}

#[test]
fn a_driver_that_succeeded_while_kueue_evicted_its_run_ends_the_run() {
    let mut done = asked(running_demo(), &EVICTED);
    done.driver_pods[0].state = PodState::Succeeded;
    assert_eq!(decided(&done).status.phase, Some(Phase::Succeeded));
    let mut failed = asked(running_demo(), &EVICTED);
    failed.driver_pods[0].state = crate::fixtures::ended(9, "no");
    let decision = decided(&failed);
    assert!(decision.create.is_empty(), "there is no quota for another attempt");
}

#[test]
fn a_run_that_left_the_queue_while_it_was_suspended_leaves_no_workload() {
    let left = with_spec(asked(new_demo(), &ADMITTED), |run| run.spec.queue_name = None);
    let decision = decided(&left);
    assert!(matches!(decision.workload, WorkloadStep::Delete));
    assert!(!decision.create.is_empty());
}
