//! The pods of the trainer's ranks: environment, images, devices, networks and deadlines.

use serde_json::{Value, json};

use super::*;

/// The first trainer pod of the demo with `trainer` as its trainer.
fn trainer_pod(trainer: &str) -> Value {
    let mut run: Value = serde_yaml_ng::from_str(DEMO).unwrap();
    run["spec"]["trainer"] = serde_yaml_ng::from_str(trainer).unwrap();
    let decision = decided(&seen(object(&run.to_string())));
    for (_, pod, _) in &decision.create {
        assert_understood(pod);
    }
    created(&decision, "demo-trainer-1-0").clone()
}

#[test]
fn rdma_is_asked_for_without_a_capability_that_a_process_of_another_user_would_not_have() {
    let rdma = trainer_pod(
        "{gpusPerNode: 8, network: {rdma: {resource: rdma/hca, count: 2}}, resources: {limits: {memory: 1Ti}}}",
    );
    let container = &rdma["spec"]["containers"][0];
    assert_eq!(
        container["resources"]["limits"],
        json!({"memory": "1Ti", "nvidia.com/gpu": "8", "rdma/hca": "2"})
    );
    assert_eq!(container["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(variable(container, "GRPO_RDMA"), "1");
    let plain = trainer_pod("{gpusPerNode: 8, network: {interface: eth1}}");
    let container = &plain["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"], json!({"nvidia.com/gpu": "8"}));
    let names = container["env"].as_array().unwrap().iter();
    assert_eq!(names.filter(|one| one["name"] == "GRPO_RDMA").count(), 0);
}

#[test]
fn the_interface_reaches_nccl_and_gloo() {
    let pod = trainer_pod(
        "{network: {interface: eth1}, env: [{name: GLOO_SOCKET_IFNAME, value: other}, {name: NCCL_DEBUG, value: INFO}]}",
    );
    let container = &pod["spec"]["containers"][0];
    for (name, value) in [
        ("NCCL_SOCKET_IFNAME", "eth1"),
        ("GLOO_SOCKET_IFNAME", "eth1"),
        ("NCCL_DEBUG", "INFO"),
    ] {
        assert_eq!(variable(container, name), value, "{name}");
    }
    let names = container["env"].as_array().unwrap().iter();
    assert_eq!(names.filter(|one| one["name"] == "GLOO_SOCKET_IFNAME").count(), 1);
}

#[test]
fn trainer_pods_get_the_environment_of_torchrun() {
    let mut run: GrpoRun = object(DEMO);
    run.spec.trainer.as_mut().unwrap().gpus_per_node = 8;
    let decision = decided(&seen(run));
    let pod = created(&decision, "demo-trainer-1-1");
    let container = &pod["spec"]["containers"][0];
    let wanted = [
        ("MASTER_ADDR", "demo-trainer-1-0.demo-trainer-1"),
        ("MASTER_PORT", "29500"),
        ("RANK", "8"),
        ("WORLD_SIZE", "16"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "8"),
        ("GROUP_RANK", "1"),
        ("GROUP_WORLD_SIZE", "2"),
        ("NODE_RANK", "1"),
    ];
    for (name, value) in wanted {
        assert_eq!(variable(container, name), value, "{name}");
    }
    assert_eq!(pod["spec"]["hostname"], "demo-trainer-1-1");
    assert_eq!(pod["spec"]["subdomain"], "demo-trainer-1");
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "8");
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    assert_eq!(pod["spec"]["serviceAccountName"], "demo-trainer");
}

#[test]
fn another_trainers_image_is_started_in_the_same_way() {
    let own = &trainer_pod("{}")["spec"]["containers"][0];
    let other = &trainer_pod("{image: 'example.com/megatron:2'}")["spec"]["containers"][0];
    assert_eq!(own["image"], json!(Settings::for_tests().trainer_image));
    assert_eq!(other["image"], "example.com/megatron:2");
    assert_eq!(other["args"], own["args"]);
}

#[test]
fn ranks_on_gpus_have_the_image_that_computes_on_them_unless_the_run_names_one() {
    let image = |trainer: &str| trainer_pod(trainer)["spec"]["containers"][0]["image"].clone();
    let settings = Settings::for_tests();
    assert_ne!(settings.trainer_image, settings.trainer_cuda_image);
    assert_eq!(image("{gpusPerNode: 1}"), json!(settings.trainer_cuda_image));
    assert_eq!(
        image("{gpusPerNode: 1, image: 'example.com/own:1'}"),
        "example.com/own:1"
    );
}

#[test]
fn ranks_on_gpus_share_memory_of_a_bounded_size() {
    let pod = trainer_pod("{gpusPerNode: 1}");
    let volume = pod["spec"]["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "shm");
    assert_eq!(
        volume.unwrap()["emptyDir"],
        json!({"medium": "Memory", "sizeLimit": "16Gi"})
    );
    assert!(!trainer_pod("{}").to_string().contains("/dev/shm"));
}

#[test]
fn a_trainer_is_ready_when_it_says_so_and_the_kubelet_is_more_patient_than_the_operator() {
    let probe = &trainer_pod("{deadlines: {start: 5m}}")["spec"]["containers"][0]["startupProbe"];
    assert_eq!(probe["httpGet"], json!({"path": "/readyz", "port": 8090}));
    let seconds = probe["periodSeconds"].as_u64().unwrap() * probe["failureThreshold"].as_u64().unwrap();
    assert_eq!(seconds, 300 + 600);
}
