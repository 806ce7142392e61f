use super::*;
use grpo_crds::GrpoRun;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

fn config(tasks: Value, more: Value) -> RunConfig {
    let mut run = json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun",
        "metadata": {"name": "demo", "namespace": "team", "uid": "uid-1"},
        "spec": {
            "model": {"image": {"reference": "m"}}, "tasks": tasks, "agent": {"bash": {}},
            "inference": {"poolRef": {"name": "p"}}, "sandboxes": {"poolRef": {"name": "p"}},
            "store": {"persistentVolumeClaim": {"claimName": "runs"}},
        },
    });
    run["spec"]
        .as_object_mut()
        .unwrap()
        .append(more.clone().as_object_mut().unwrap());
    RunConfig::of(&serde_json::from_value::<GrpoRun>(run).unwrap())
}

fn spec(config: &RunConfig) -> PodSpec {
    let driver = DriverImage {
        image: "driver:1".into(),
        pull_secrets: Vec::new(),
        hub_endpoint: Some("http://mirror".into()),
    };
    serde_json::from_value::<Pod>(pod(config, &driver))
        .unwrap()
        .spec
        .unwrap()
}

#[test]
fn the_pod_has_the_volumes_of_datasets_and_lists_and_nothing_else_of_the_run() {
    let ids = json!({"configMapRef": {"name": "ids", "key": "ids.txt"}});
    let hub = json!({"hub": {"repo": "a/b", "tokenSecretRef": {"name": "hf", "key": "token"}}});
    let bucket = json!({"objectStore": {"url": "s3://tasks/a.jsonl", "credentialsSecretRef": {"name": "s3"}}});
    let tasks = json!({
        "train": {"dataset": {"persistentVolumeClaim": {"claimName": "rows", "path": "a.jsonl"}}, "select": {"instanceIds": ids}},
        "evaluate": [
            {"name": "image", "dataset": {"image": {"reference": "rows:1", "path": "a.jsonl"}}},
            {"name": "hub", "dataset": hub},
            {"name": "bucket", "dataset": bucket},
        ],
    });
    let spec = spec(&config(tasks, json!({})));
    let volumes = spec.volumes.unwrap();
    let names: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "tmp",
            "dataset-0",
            "dataset-1",
            "dataset-2",
            "dataset-3",
            "config-map-0"
        ]
    );
    assert_eq!(volumes[1].persistent_volume_claim.as_ref().unwrap().claim_name, "rows");
    assert_eq!(volumes[2].image.as_ref().unwrap().reference.as_deref(), Some("rows:1"));
    let mounts = spec.containers[0].volume_mounts.as_ref().unwrap();
    assert!(
        mounts[1..].iter().all(|mount| mount.read_only == Some(true)),
        "{mounts:?}"
    );
    assert_eq!(mounts[1].mount_path, "/datasets/0");
}

#[test]
fn the_pod_is_restricted_has_no_token_and_ends_by_itself() {
    let spec = spec(&config(json!({}), json!({})));
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert_eq!(spec.service_account_name, None);
    assert!(spec.active_deadline_seconds.is_some());
    assert_eq!(spec.security_context.unwrap().run_as_non_root, Some(true));
    let security = spec.containers[0].security_context.as_ref().unwrap();
    assert_eq!(
        (security.allow_privilege_escalation, security.read_only_root_filesystem),
        (Some(false), Some(true))
    );
}

#[test]
fn what_the_runs_driver_needs_to_run_the_pod_has_too() {
    let driver = json!({
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "resources": {"limits": {"memory": "1Gi"}},
        "podTemplate": {"spec": {"nodeSelector": {"pool": "cpu"}, "imagePullSecrets": [{"name": "b"}]}},
    });
    let run = config(
        json!({}),
        json!({"driver": driver, "imagePullSecrets": [{"name": "a"}]}),
    );
    let spec = spec(&run);
    let env = json!(spec.containers[0].env);
    let wanted = json!([
        {"name": "HOME", "value": "/tmp"}, {"name": "HF_ENDPOINT", "value": "http://mirror"},
        {"name": "HTTPS_PROXY", "value": "http://proxy"},
    ]);
    assert_eq!(env, wanted);
    assert_eq!(json!(spec.image_pull_secrets), json!([{"name": "a"}, {"name": "b"}]));
    assert_eq!(json!(spec.node_selector), json!({"pool": "cpu"}));
    assert_eq!(
        json!(spec.containers[0].resources),
        json!({"limits": {"memory": "1Gi"}})
    );
}

#[test]
fn a_run_that_names_its_own_hub_keeps_it() {
    let driver = json!({"env": [{"name": "HF_ENDPOINT", "value": "http://own"}]});
    let env = json!(spec(&config(json!({}), json!({"driver": driver}))).containers[0].env);
    assert_eq!(env[1], json!({"name": "HF_ENDPOINT", "value": "http://own"}));
    assert_eq!(env.as_array().unwrap().len(), 2);
}
