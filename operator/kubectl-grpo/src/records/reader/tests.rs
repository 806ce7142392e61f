use super::*;

const TEN_MINUTES: Duration = Duration::from_secs(600);

fn run() -> GrpoRun {
    serde_json::from_value(json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun",
        "metadata": {"name": "demo", "namespace": "team", "uid": "uid-1"},
        "spec": {
            "model": {"image": {"reference": "m"}}, "tasks": {}, "agent": {"bash": {}},
            "inference": {"poolRef": {"name": "p"}}, "sandboxes": {"poolRef": {"name": "p"}},
            "store": {"volumeClaimTemplate": {"resources": {"requests": {"storage": "1Gi"}}}},
        },
    }))
    .unwrap()
}

#[test]
fn the_reader_is_restricted_reads_only_and_ends_by_itself() {
    let made: Pod = serde_json::from_value(pod(&run(), "driver:1", None, TEN_MINUTES)).unwrap();
    let spec = made.spec.unwrap();
    assert_eq!(spec.active_deadline_seconds, Some(600));
    assert_eq!(spec.automount_service_account_token, Some(false));
    let security = spec.security_context.unwrap();
    assert_eq!(
        (
            security.run_as_non_root,
            security.seccomp_profile.unwrap().type_.as_str()
        ),
        (Some(true), "RuntimeDefault")
    );
    let container = &spec.containers[0];
    let locked = container.security_context.as_ref().unwrap();
    assert_eq!(
        (locked.allow_privilege_escalation, locked.read_only_root_filesystem),
        (Some(false), Some(true))
    );
    assert_eq!(locked.capabilities.as_ref().unwrap().drop, Some(vec!["ALL".to_owned()]));
    assert_eq!(container.volume_mounts.as_ref().unwrap()[0].read_only, Some(true));
    let volume = spec.volumes.as_ref().unwrap()[0]
        .persistent_volume_claim
        .as_ref()
        .unwrap();
    assert_eq!(
        (volume.claim_name.as_str(), volume.read_only),
        ("demo-store", Some(true))
    );
    assert_eq!(container.args.as_ref().unwrap(), &["records", "--path", "team/demo"]);
    assert_eq!(made.metadata.owner_references.unwrap()[0].uid, "uid-1");
}

#[test]
fn what_let_the_last_driver_run_lets_the_reader_run() {
    let last: PodSpec = serde_json::from_value(json!({
        "containers": [{"name": "driver"}], "imagePullSecrets": [{"name": "pull"}],
        "tolerations": [{"key": "team", "operator": "Exists"}], "nodeSelector": {"pool": "cpu"},
    }))
    .unwrap();
    let made: Pod = serde_json::from_value(pod(&run(), "driver:1", Some(&last), TEN_MINUTES)).unwrap();
    let spec = made.spec.unwrap();
    assert_eq!(spec.image_pull_secrets, last.image_pull_secrets);
    assert_eq!(
        (spec.tolerations, spec.node_selector),
        (last.tolerations, last.node_selector)
    );
}

#[test]
fn a_bucket_is_read_with_the_runs_credentials_and_no_value_of_them_in_sight() {
    let mut run = run();
    run.spec.store = serde_json::from_value(json!({"objectStore": {
        "url": "s3://runs/a", "endpoint": "http://minio:9000", "credentialsSecretRef": {"name": "s3"}}}))
    .unwrap();
    let made: Pod = serde_json::from_value(pod(&run, "driver:1", None, TEN_MINUTES)).unwrap();
    let spec = made.spec.unwrap();
    let container = &spec.containers[0];
    let args = container.args.as_ref().unwrap().join(" ");
    assert_eq!(
        args,
        "records --path team/demo --url s3://runs/a --endpoint http://minio:9000 --credentials /store-credentials"
    );
    assert_eq!(container.env, None);
    let volumes = spec.volumes.unwrap();
    assert_eq!(volumes.len(), 1);
    let secret = volumes[0].secret.as_ref().unwrap();
    assert_eq!(secret.secret_name.as_deref(), Some("s3"));
    assert_eq!(spec.service_account_name.as_deref(), Some("demo-driver"));
}
