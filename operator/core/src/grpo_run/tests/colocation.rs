//! Runs whose trainer and engines take turns on the same devices: claims, pods, the pool, and what waits or goes.

use grpo_crds::grpo_run::{Mode, Phase};
use serde_json::{Value, json};

use super::{condition, created, decided, new_demo, running_demo, seen};
use crate::{
    desired_object::Keep,
    fixtures::{DEMO, assert_understood, find, names, object},
    grpo_run::{
        observation::RunObservation,
        references::{ReferenceKind, references},
    },
};

/// The demo with this trainer and these engines, colocated.
fn colocated(trainer: Value, pool: Value) -> RunObservation {
    let mut run: Value = serde_yaml_ng::from_str(DEMO).unwrap();
    run["spec"]["trainer"] = trainer;
    run["spec"]["trainer"]["colocate"] = json!(true);
    run["spec"]["inference"]["pool"] = pool;
    seen(object(&run.to_string()))
}

/// Two trainer pods of four GPUs, and four replicas of two.
fn on_gpus() -> RunObservation {
    colocated(
        json!({"nodes": 2, "gpusPerNode": 4}),
        json!({"engine": {"vllm": {"tensorParallel": 2}}, "replicas": 4}),
    )
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
    let decision = decided(&seen(run));
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
    let decision = decided(&colocated(json!({"nodes": 2}), json!({"engine": {"embedded": {}}})));
    let made = names(&decision.objects);
    assert!(!made.iter().any(|name| name.starts_with("ResourceClaim")), "{made:?}");
    let pool = &find(&decision.objects, "InferencePool", "demo")["spec"];
    assert_eq!(pool["colocated"], json!({"replicasPerClaim": 1}));
    let pod = created(&decision, "demo-trainer-1-0");
    assert_eq!(pod["spec"]["resourceClaims"], Value::Null);
}

#[test]
fn only_mode_train_takes_turns() {
    let mut run = on_gpus().run;
    run.spec.mode = Mode::Evaluate;
    let decision = decided(&seen(run));
    let made = names(&decision.objects);
    assert!(!made.iter().any(|name| name.starts_with("ResourceClaim")), "{made:?}");
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
    let made = names(&suspended.objects);
    assert!(!made.iter().any(|name| name.starts_with("ResourceClaim")), "{made:?}");
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
