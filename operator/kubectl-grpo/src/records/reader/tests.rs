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

fn image() -> DriverImage {
    DriverImage {
        image: "driver:1".to_owned(),
        ..DriverImage::default()
    }
}

/// The reader of a run whose driver has these options, and whose other pods are gone.
fn reader_of(driver: Value, image: &DriverImage) -> Pod {
    let mut run = run();
    run.spec.driver = serde_json::from_value(driver).unwrap();
    run.spec.image_pull_secrets = serde_json::from_value(json!([{"name": "of-run"}])).unwrap();
    serde_json::from_value(pod(&run, image, None, TEN_MINUTES)).unwrap()
}

#[test]
fn the_reader_is_restricted_reads_only_and_ends_by_itself() {
    let made: Pod = serde_json::from_value(pod(&run(), &image(), None, TEN_MINUTES)).unwrap();
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
    let made: Pod = serde_json::from_value(pod(&run(), &image(), Some(&last), TEN_MINUTES)).unwrap();
    let spec = made.spec.unwrap();
    assert_eq!(spec.image_pull_secrets, last.image_pull_secrets);
    assert_eq!(
        (spec.tolerations, spec.node_selector),
        (last.tolerations, last.node_selector)
    );
}

#[test]
fn without_a_driver_pod_the_reader_is_pulled_and_scheduled_as_the_run_says() {
    let driver = json!({"podTemplate": {"spec": {
        "nodeSelector": {"pool": "cpu"}, "tolerations": [{"key": "team", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "of-template"}, {"name": "of-run"}],
    }}});
    let neighbour = DriverImage {
        pull_secrets: serde_json::from_value(json!([{"name": "of-neighbour"}, {"name": "of-run"}])).unwrap(),
        ..image()
    };
    let spec = reader_of(driver, &neighbour).spec.unwrap();
    assert_eq!(
        json!(spec.image_pull_secrets),
        json!([{"name": "of-run"}, {"name": "of-neighbour"}, {"name": "of-template"}])
    );
    assert_eq!(json!(spec.node_selector), json!({"pool": "cpu"}));
    assert_eq!(json!(spec.tolerations), json!([{"key": "team", "operator": "Exists"}]));
}

#[test]
fn the_scheduling_of_the_last_driver_pod_is_completed_by_that_of_the_run() {
    let mut run = run();
    let template = json!({"podTemplate": {"spec": {
        "nodeSelector": {"pool": "new"}, "tolerations": [{"key": "team"}, {"key": "new"}],
    }}});
    run.spec.driver = serde_json::from_value(template).unwrap();
    let last: PodSpec = serde_json::from_value(json!({
        "containers": [], "nodeSelector": {"pool": "cpu"}, "tolerations": [{"key": "team"}],
    }))
    .unwrap();
    let made: Pod = serde_json::from_value(pod(&run, &image(), Some(&last), TEN_MINUTES)).unwrap();
    let spec = made.spec.unwrap();
    assert_eq!(json!(spec.node_selector), json!({"pool": "cpu"}));
    assert_eq!(json!(spec.tolerations), json!([{"key": "team"}, {"key": "new"}]));
}

#[test]
fn the_reader_has_the_drivers_environment_labels_and_annotations_and_no_label_of_the_operator() {
    let driver = json!({
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "podTemplate": {"metadata": {
            "labels": {
                "azure.workload.identity/use": "true", MANAGED_BY.0: "someone",
                RUN: "demo", "grpo.dev/role": "driver",
            },
            "annotations": {"team": "a", "grpo.dev/admitted-with": "1"},
        }},
    });
    let made = reader_of(driver, &image());
    assert_eq!(
        json!(made.metadata.labels),
        json!({"azure.workload.identity/use": "true", MANAGED_BY.0: MANAGED_BY.1})
    );
    assert_eq!(json!(made.metadata.annotations), json!({"team": "a"}));
    let container = &made.spec.unwrap().containers[0];
    assert_eq!(
        json!(container.env),
        json!([{"name": "HTTPS_PROXY", "value": "http://proxy"}])
    );
}

#[test]
fn a_bucket_is_read_with_the_runs_credentials_and_no_value_of_them_in_sight() {
    let mut run = run();
    run.spec.store = serde_json::from_value(json!({"objectStore": {
        "url": "s3://runs/a", "endpoint": "http://minio:9000", "credentialsSecretRef": {"name": "s3"}}}))
    .unwrap();
    let made: Pod = serde_json::from_value(pod(&run, &image(), None, TEN_MINUTES)).unwrap();
    let spec = made.spec.unwrap();
    let container = &spec.containers[0];
    let args = container.args.as_ref().unwrap().join(" ");
    assert_eq!(
        args,
        "records --path team/demo --url s3://runs/a --endpoint http://minio:9000 --credentials /store-credentials"
    );
    assert_eq!(json!(container.env), json!([]));
    let volumes = spec.volumes.unwrap();
    assert_eq!(volumes.len(), 1);
    let secret = volumes[0].secret.as_ref().unwrap();
    assert_eq!(secret.secret_name.as_deref(), Some("s3"));
    assert_eq!(spec.service_account_name.as_deref(), Some("demo-driver"));
}
