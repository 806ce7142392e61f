//! Runs whose trainer and engines take turns on the same devices: claims, pods, the pool, and what waits or goes.

use grpo_crds::grpo_run::{Mode, Phase};
use serde_json::{Value, json};

use super::{admitted, condition, created, decided, new_demo, running_demo, seen};
use crate::{
    admission::Verdict,
    desired_object::Keep,
    fixtures::{DEMO, assert_understood, ended, find, names, object, pod, running},
    grpo_run::{
        decision::{Decision, WorkloadStep},
        gpu_claims::shape,
        observation::{Asked, QueueState, RunObservation},
        references::{ReferenceKind, references},
    },
    pods::{PodFacts, PodState},
    quota::QuotaWait,
};

/// The demo with this trainer and these engines, colocated.
fn colocated(trainer: Value, pool: Value) -> RunObservation {
    let mut run: Value = serde_yaml_ng::from_str(DEMO).unwrap();
    run["spec"]["trainer"] = trainer;
    run["spec"]["trainer"]["colocate"] = json!(true);
    run["spec"]["inference"]["pool"] = pool;
    seen(object(&run.to_string()))
}

/// Two trainer pods of four GPUs, and four replicas of two, admitted.
fn on_gpus() -> RunObservation {
    RunObservation {
        verdict: Some(admitted()),
        ..colocated(
            json!({"nodes": 2, "gpusPerNode": 4}),
            json!({"engine": {"vllm": {"tensorParallel": 2}}, "replicas": 4}),
        )
    }
}

/// The same run with all of its pods on nodes.
fn on_nodes() -> RunObservation {
    let on = |pod: &PodFacts| PodFacts {
        node_name: Some("gpu-1".into()),
        ..pod.clone()
    };
    let demo = running_demo();
    let run = on_gpus();
    RunObservation {
        driver_pods: demo.driver_pods.iter().map(on).collect(),
        trainer_pods: demo.trainer_pods.iter().map(on).collect(),
        engines_on_nodes: true,
        run: run.run,
        ..demo
    }
}

/// The claims of a decision, as `<name>`.
fn claimed(decision: &Decision) -> Vec<&str> {
    let objects = decision.objects.iter();
    let claims = objects.filter(|desired| desired.kind() == "ResourceClaim");
    claims.map(|claim| claim.name.as_str()).collect()
}

#[test]
fn each_trainer_pod_has_a_claim_with_a_request_for_each_replica_beside_it() {
    let decision = decided(&on_gpus());
    let claims: Vec<_> = decision
        .objects
        .iter()
        .filter(|desired| desired.kind() == "ResourceClaim")
        .collect();
    let names: Vec<&str> = claims.iter().map(|claim| claim.name.as_str()).collect();
    assert_eq!(names, ["demo-gpus-0", "demo-gpus-1"]);
    let request = |name: &str| json!({"name": name, "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 2}});
    for claim in claims {
        assert_understood(claim);
        assert_eq!(
            claim.object["spec"],
            json!({"devices": {"requests": [request("engine-0"), request("engine-1")]}})
        );
        let metadata = &claim.object["metadata"];
        assert_eq!(metadata["ownerReferences"][0]["uid"], "uid-1");
        assert_eq!(metadata["labels"]["grpo.dev/run"], "demo");
        assert_eq!(claim.keep, Keep::CreatedOnce, "its spec is immutable");
    }
}

#[test]
fn the_claims_are_made_before_the_pool_that_names_them() {
    let decision = decided(&on_gpus());
    let made = names(&decision.objects);
    let place = |name: &str| made.iter().position(|one| one == name).unwrap();
    assert!(
        place("ResourceClaim/demo-gpus-1") < place("InferencePool/demo"),
        "{made:?}"
    );
    let pool = &find(&decision.objects, "InferencePool", "demo")["spec"];
    assert_eq!(
        pool["colocated"],
        json!({"claims": ["demo-gpus-0", "demo-gpus-1"], "replicasPerClaim": 2})
    );
}

#[test]
fn a_trainer_pod_uses_its_whole_claim_in_place_of_gpus_of_a_device_plugin() {
    let decision = decided(&on_gpus());
    for (number, (_, pod, _)) in decision
        .create
        .iter()
        .filter(|(role, ..)| *role == "trainer")
        .enumerate()
    {
        assert_understood(pod);
        let spec = &pod.object["spec"];
        assert_eq!(
            spec["resourceClaims"],
            json!([{"name": "gpus", "resourceClaimName": format!("demo-gpus-{number}")}])
        );
        let container = &spec["containers"][0];
        assert_eq!(container["resources"]["claims"], json!([{"name": "gpus"}]));
        assert!(
            !container["resources"].to_string().contains("nvidia.com/gpu"),
            "{container}"
        );
        assert!(spec["volumes"].to_string().contains("\"shm\""), "{spec}");
    }
    let mut run = on_gpus().run;
    run.spec.trainer.as_mut().unwrap().colocate = false;
    let decision = decided(&RunObservation {
        verdict: Some(admitted()),
        ..seen(run)
    });
    assert_eq!(claimed(&decision), [""; 0]);
    let spec = &created(&decision, "demo-trainer-1-0")["spec"];
    assert_eq!(spec["resourceClaims"], Value::Null);
    assert_eq!(
        spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], "4",
        "a trainer with GPUs of its own"
    );
    assert_eq!(
        find(&decision.objects, "InferencePool", "demo")["spec"]["colocated"],
        Value::Null
    );
}

#[test]
fn on_cpus_the_pool_knows_of_the_turns_and_nothing_is_claimed() {
    let on_cpus = colocated(json!({"nodes": 2}), json!({"engine": {"embedded": {}}}));
    assert_eq!(shape(&on_cpus.run), None);
    let decision = decided(&RunObservation {
        verdict: Some(admitted()),
        ..on_cpus
    });
    assert_eq!(claimed(&decision), [""; 0]);
    let pool = &find(&decision.objects, "InferencePool", "demo")["spec"];
    assert_eq!(pool["colocated"], json!({"replicasPerClaim": 1}));
    let pod = created(&decision, "demo-trainer-1-0");
    assert_eq!(pod["spec"]["resourceClaims"], Value::Null);
}

#[test]
fn only_mode_train_takes_turns() {
    let mut run = on_gpus().run;
    run.spec.mode = Mode::Evaluate;
    let decision = decided(&RunObservation {
        verdict: Some(admitted()),
        ..seen(run)
    });
    assert_eq!(claimed(&decision), [""; 0]);
    let pool = &find(&decision.objects, "InferencePool", "demo")["spec"];
    assert_eq!(pool["colocated"], Value::Null);
}

#[test]
fn a_cluster_without_the_class_of_gpus_is_told_what_to_install() {
    let run = on_gpus();
    let class = references(&run.run.spec)
        .into_iter()
        .find(|reference| reference.kind == ReferenceKind::DeviceClass)
        .unwrap();
    let decision = decided(&RunObservation {
        missing: vec![class],
        ..run
    });
    let (is, reason, message) = condition(&decision, "Admitted");
    assert_eq!((is.as_str(), reason.as_str()), ("False", "ReferenceMissing"));
    for words in [
        "trainer.colocate",
        "no DeviceClass gpu.nvidia.com",
        "install NVIDIA's DRA driver",
        "leave trainer.colocate out",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let needs = |run: &RunObservation| {
        let mut found = references(&run.run.spec).into_iter();
        found.any(|reference| reference.kind == ReferenceKind::DeviceClass)
    };
    assert!(!needs(&new_demo()));
    assert!(
        !needs(&colocated(json!({}), json!({"engine": {"embedded": {}}}))),
        "on CPUs"
    );
}

#[test]
fn a_run_that_is_suspended_or_over_gives_its_claims_back() {
    assert!(!decided(&on_gpus()).delete_gpu_claims);
    let mut run = on_gpus().run;
    run.spec.suspend = true;
    let suspended = decided(&seen(run));
    assert_eq!(suspended.status.phase, Some(Phase::Suspended));
    assert!(suspended.delete_gpu_claims);
    assert_eq!(claimed(&suspended), [""; 0]);
    // The spec may have changed in the same request: claims of the earlier one go all the same.
    let mut apart = running_demo();
    apart.run.spec.suspend = true;
    assert!(decided(&apart).delete_gpu_claims);
    let mut over = running_demo();
    over.driver_pods[0].state = crate::pods::PodState::Succeeded;
    let over = decided(&over);
    assert_eq!(over.status.phase, Some(Phase::Succeeded));
    assert!(over.delete_gpu_claims);
}

#[test]
fn the_plan_in_the_status_says_that_gpus_are_shared() {
    let plan = decided(&on_gpus()).status.plan;
    let each = |role: &str| {
        let row = plan.iter().find(|row| row.role == role).unwrap();
        row.each.clone().unwrap()
    };
    assert!(each("trainer").starts_with("4 shared GPUs"), "{}", each("trainer"));
    assert!(each("engine").starts_with("2 shared GPUs"), "{}", each("engine"));
}

fn refused(refused: bool) -> Option<QuotaWait> {
    Some(QuotaWait {
        until: "2026-01-01T00:00:10Z".parse().unwrap(),
        refused,
        message: "exceeded quota".into(),
    })
}

#[test]
fn claims_are_made_when_the_run_is_admitted_and_returned_while_it_waits() {
    let waits = || {
        Some(Verdict {
            admitted: false,
            ..admitted()
        })
    };
    let with_trainer = |state: PodState, node: Option<&str>| {
        let trainer = PodFacts {
            node_name: node.map(str::to_owned),
            ..pod("demo-trainer-1-0", 1, 0, state)
        };
        vec![trainer]
    };
    let waiting = || RunObservation {
        verdict: waits(),
        ..on_gpus()
    };
    /// What is seen, whether it is created, whether it is deleted.
    type Case = (&'static str, RunObservation, bool, bool);
    let cases: [Case; 9] = [
        ("admitted", on_gpus(), true, false),
        ("waiting", waiting(), false, true),
        (
            "not looked at, for example after a start of the operator",
            RunObservation {
                verdict: None,
                ..on_gpus()
            },
            false,
            false,
        ),
        (
            "not looked at, and a trainer is on a node",
            RunObservation {
                verdict: None,
                trainer_pods: with_trainer(running(), Some("gpu-1")),
                ..on_gpus()
            },
            true,
            false,
        ),
        (
            "a trainer waits, and an engine is on a node",
            RunObservation {
                engines_on_nodes: true,
                ..waiting()
            },
            true,
            false,
        ),
        (
            "what is left of the trainer has ended",
            RunObservation {
                trainer_pods: with_trainer(ended(1, ""), Some("gpu-1")),
                ..waiting()
            },
            false,
            true,
        ),
        (
            "refused by a quota",
            RunObservation {
                quota: refused(true),
                ..on_gpus()
            },
            false,
            true,
        ),
        (
            "refused by a quota with a trainer on a node",
            RunObservation {
                quota: refused(true),
                trainer_pods: with_trainer(running(), Some("gpu-1")),
                ..on_gpus()
            },
            false,
            false,
        ),
        (
            "behind a run that a quota refused",
            RunObservation {
                quota: refused(false),
                ..on_gpus()
            },
            false,
            false,
        ),
    ];
    for (what, run, creates, deletes) in cases {
        let decision = decided(&run);
        assert_eq!(claimed(&decision).len(), if creates { 2 } else { 0 }, "{what}");
        assert_eq!(decision.delete_gpu_claims, deletes, "{what}");
    }
    let apart = RunObservation {
        verdict: waits(),
        ..new_demo()
    };
    assert!(
        !decided(&apart).delete_gpu_claims,
        "it shares no GPUs: nothing is listed"
    );
}

#[test]
fn the_gpus_of_a_run_in_kueues_queue_are_claimed_when_it_is_admitted() {
    let mut run = RunObservation {
        verdict: None,
        ..on_gpus()
    };
    run.run.spec.queue_name = Some("team".into());
    assert_eq!(claimed(&decided(&run)), [""; 0]);
    let WorkloadStep::Create(workload) = decided(&run).workload else {
        panic!("it asks for quota")
    };
    run.queue = QueueState::Asked(Box::new(Asked::granted(&workload).unwrap()));
    assert_eq!(claimed(&decided(&run)), ["demo-gpus-0", "demo-gpus-1"]);
}

#[test]
fn no_pod_of_the_next_trainer_attempt_is_made_while_one_of_the_last_may_use_the_gpus() {
    let mut run = on_nodes();
    run.trainer_pods[1].state = ended(1, "no");
    let first = decided(&run);
    assert_eq!(first.delete_pods, ["demo-trainer-1-0", "demo-trainer-1-1"]);
    assert!(first.create.is_empty());
    let attempts = first.status.attempts.clone().unwrap();
    assert_eq!((attempts.trainer.current, attempts.trainer.created), (2, false));

    run.attempts = attempts;
    run.trainer_pods.iter_mut().for_each(|pod| pod.deleting = true);
    for verdict in [
        admitted(),
        Verdict {
            admitted: false,
            ..admitted()
        },
    ] {
        run.verdict = Some(verdict);
        let waits = decided(&run);
        assert!(waits.create.is_empty());
        let message = waits.status.message.unwrap();
        for words in [
            "attempt 2 waits",
            "demo-trainer-1-0 on node gpu-1",
            "kubectl describe pod",
        ] {
            assert!(message.contains(words), "{message}");
        }
    }
    run.trainer_pods.remove(0);
    let made: Vec<String> = decided(&run)
        .create
        .iter()
        .map(|(_, pod, _)| pod.name.clone())
        .collect();
    assert_eq!(made, ["demo-trainer-2-0", "demo-trainer-2-1"]);
}

/// The claims as the API server returns them, made from a run with this number of GPUs for each replica.
fn claims_of(gpus: u32, nodes: u32) -> RunObservation {
    let engine = json!({"vllm": {"tensorParallel": gpus}});
    let made = RunObservation {
        verdict: Some(admitted()),
        ..colocated(
            json!({"nodes": nodes, "gpusPerNode": 4}),
            json!({"engine": engine, "replicas": nodes * 4 / gpus}),
        )
    };
    let claims = decided(&made).objects;
    let claims = claims.iter().filter(|desired| desired.kind() == "ResourceClaim");
    RunObservation {
        gpu_claims: claims.map(|claim| object(&claim.object.to_string())).collect(),
        ..on_nodes()
    }
}

#[test]
fn claims_of_an_earlier_spec_are_returned_with_the_pods_that_were_made_with_them() {
    let now = on_nodes().now;
    for (what, gpus, nodes) in [("engines of another size", 4, 2), ("fewer claims than before", 2, 3)] {
        let mut run = claims_of(gpus, nodes);
        let decision = decided(&run);
        assert!(decision.delete_gpu_claims && decision.delete_pools, "{what}");
        assert_eq!(
            decision.give_back,
            ["demo-driver-1-0", "demo-trainer-1-0", "demo-trainer-1-1"],
            "{what}"
        );
        assert!(decision.create.is_empty() && claimed(&decision).is_empty(), "{what}");
        assert_eq!(decision.status.phase, Some(Phase::Pending));
        let (is, reason, message) = condition(&decision, "Admitted");
        assert_eq!((is.as_str(), reason.as_str()), ("False", "Suspended"));
        assert!(
            message.contains("claimed as an earlier spec asked for them"),
            "{message}"
        );
        let attempts = decision.status.attempts.unwrap();
        assert_eq!((attempts.driver.current, attempts.trainer.current), (2, 2), "new pods");

        for claim in &mut run.gpu_claims {
            claim.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
        }
        let later = decided(&run);
        assert!(
            !later.delete_gpu_claims && !later.delete_pools,
            "{what}: they go by themselves"
        );
    }
}

#[test]
fn claims_of_the_same_spec_stay_and_a_missing_one_is_made() {
    let mut run = claims_of(2, 2);
    assert_eq!(run.gpu_claims.len(), 2);
    for _ in 0..2 {
        let decision = decided(&run);
        assert!(!decision.delete_gpu_claims && decision.give_back.is_empty());
        assert_eq!(claimed(&decision), ["demo-gpus-0", "demo-gpus-1"]);
        run.gpu_claims.pop();
    }
}

#[test]
fn the_shape_of_the_claims_changes_with_the_gpus_and_with_nothing_else() {
    let shape_of = |trainer: Value, pool: Value| shape(&colocated(trainer, pool).run).unwrap();
    let engine = |gpus: u32| json!({"vllm": {"tensorParallel": gpus}});
    let first = shape_of(
        json!({"nodes": 2, "gpusPerNode": 4}),
        json!({"engine": engine(2), "replicas": 4}),
    );
    for (nodes, gpus, same) in [(2, 2, true), (3, 2, false), (2, 4, false)] {
        let pool = json!({"engine": engine(gpus), "replicas": nodes * 4 / gpus, "env": [{"name": "A", "value": "b"}]});
        let other = shape_of(json!({"nodes": nodes, "gpusPerNode": 4}), pool);
        assert_eq!(other == first, same, "{nodes} nodes, {gpus} GPUs");
    }
}
