use serde::Deserialize;

use super::*;
use crate::{
    fixtures::{DEMO, surroundings},
    names::{self, role},
};

fn manifests(yaml: &str) -> Vec<Value> {
    serde_yaml_ng::Deserializer::from_str(yaml)
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

fn demo(change: impl FnOnce(&mut Value)) -> Vec<Value> {
    let mut found = manifests(DEMO);
    change(&mut found[0]["spec"]);
    found
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

#[test]
fn a_run_with_an_unimplemented_field_gets_no_pods_of_its_own() {
    let settings = Settings::for_tests();
    let refused = demo(|spec| spec["algorithm"]["allowFrozenSampler"] = json!(true));
    let objects = objects(&refused, &surroundings("team", &settings)).unwrap();
    assert!(of_kind(&objects, "Pod").is_empty());
    assert_eq!(objects[0]["status"]["phase"], "Failed");
}

#[test]
fn pods_name_no_user_and_no_groups_where_the_cluster_assigns_them() {
    let ids_of = |settings: &Settings| -> Vec<[Value; 3]> {
        let objects = objects(&demo(|_| {}), &surroundings("team", settings)).unwrap();
        let pods = of_kind(&objects, "Pod").into_iter().map(|pod| &pod["spec"]);
        let gateways = of_kind(&objects, "Deployment").into_iter();
        let gateways = gateways.map(|deployment| &deployment["spec"]["template"]["spec"]);
        let security = pods.chain(gateways).map(|spec| &spec["securityContext"]);
        let security = security.inspect(|security| assert_eq!(security["runAsNonRoot"], true));
        security
            .map(|security| ["runAsUser", "runAsGroup", "fsGroup"].map(|id| security[id].clone()))
            .collect()
    };
    let named = ids_of(&Settings::for_tests());
    // Driver, trainer, engine and gateway.
    assert!(
        named.len() >= 4 && named.iter().flatten().all(|id| *id == 65532),
        "{named:?}"
    );
    let assigned = ids_of(&Settings {
        cluster_assigns_ids: true,
        ..Settings::for_tests()
    });
    assert_eq!(assigned.len(), named.len());
    assert!(assigned.iter().flatten().all(Value::is_null), "{assigned:?}");
}

#[test]
fn gpus_that_trainer_and_engines_share_are_counted_once() {
    let settings = Settings::for_tests();
    let colocated = manifests(include_str!("../../../../docs/examples/2-swe-pdb-8b.yaml"));
    let objects = objects(&colocated, &surroundings("a-namespace", &settings)).unwrap();
    assert_eq!(of_kind(&objects, "ResourceClaim").len(), 1);
    let page = crate::plan::plan("2-swe-pdb-8b", "a-namespace", &objects).unwrap();
    let waiting: Vec<Value> = objects
        .into_iter()
        .filter(|object| object["kind"] != "ResourceClaim")
        .collect();
    let before = crate::plan::plan("2-swe-pdb-8b", "a-namespace", &waiting).unwrap();
    assert_eq!(before, page, "claims are made when the run is admitted");
    for line in [
        "1 trainer pod of GrpoRun swe-pdb-8b with 4 shared GPUs",
        "2 engine pods of InferencePool swe-pdb-8b with 2 shared GPUs each",
        "and 4 GPUs, besides the sandboxes",
        "engine-1: 2 GPUs",
    ] {
        assert!(page.contains(line), "{line}:\n{page}");
    }
}

#[test]
fn pods_with_a_store_that_many_nodes_mount_are_not_put_onto_one() {
    let settings = Settings::for_tests();
    let around = surroundings("team", &settings);
    for (mode, together) in [("ReadWriteOnce", true), ("ReadWriteMany", false)] {
        let made = demo(|spec| spec["store"]["volumeClaimTemplate"]["accessModes"] = json!([mode]));
        let objects = objects(&made, &around).unwrap();
        let pods = of_kind(&objects, "Pod");
        let is_driver = |pod: &&&Value| pod["metadata"]["labels"][names::ROLE] == role::DRIVER;
        let driver = pods.iter().find(is_driver).unwrap();
        assert_eq!(!driver["spec"]["affinity"].is_null(), together, "{mode}");
    }
}

#[test]
fn a_run_is_told_what_blocks_it_before_it_asks_for_capacity() {
    let settings = Settings::for_tests();
    let around = surroundings("team", &settings);
    let told = |manifests: &[Value], around: &Surroundings<'_>| {
        let objects = objects(manifests, around).unwrap();
        let run = serde_json::from_value(objects[0].clone()).unwrap();
        standing(&run, &objects, around).unwrap()
    };
    assert_eq!(told(&demo(|_| {}), &around).reason, "NotEvaluated");
    let named = demo(|spec| spec["sandboxes"] = json!({"poolRef": {"name": "others"}}));
    let missing = told(&named, &around);
    assert_eq!(missing.reason, "SandboxPoolMissing");
    assert!(missing.message.contains("others"), "{}", missing.message);
    let on_gpus = demo(|spec| {
        spec["model"] = json!({"hub": {"repo": "Qwen/Qwen3-32B"}});
        spec["trainer"]["gpusPerNode"] = json!(1);
    });
    let small = Surroundings {
        gpu_memory: Some(24_576),
        ..around
    };
    assert_eq!(told(&on_gpus, &small).reason, "ExceedsGpuMemory");
}

#[test]
fn all_replicas_of_several_pods_are_shown_although_they_are_made_in_turn() {
    let settings = Settings::for_tests();
    let pool = manifests(
        "{apiVersion: grpo.dev/v1alpha1, kind: InferencePool, metadata: {name: shared}, \
         spec: {model: {image: {reference: 'example.com/model:1'}}, replicas: 2, \
         engine: {vllm: {tensorParallel: 8, pipelineParallel: 2, nodes: 2}}}}",
    );
    let objects = objects(&pool, &surroundings("team", &settings)).unwrap();
    assert_eq!(of_kind(&objects, "Pod").len(), 4);
}

#[test]
fn another_kind_is_refused_by_its_name() {
    let settings = Settings::for_tests();
    let pod = json!({"kind": "Pod", "metadata": {"name": "mine"}});
    let error = objects(&[pod], &surroundings("team", &settings)).unwrap_err();
    assert!(error.to_string().contains("Pod mine"), "{error}");
}
