use super::*;

#[test]
fn of_a_pod_as_the_api_server_tells_it_what_the_gateway_looks_at_is_kept() {
    let text = r#"{"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"grpo.dev/sandbox-pool": "p", "grpo.dev/sandbox-slot": "2"},
                "annotations": {"grpo.dev/image": "x\n", "grpo.dev/gateway-term": "3", "other": "y"},
                "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]},
            "spec": {"nodeName": "node", "containers": [{"name": "sandbox", "image": "x", "env": [{"name": "A"}]}], "volumes": [{"name": "v"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}],
                "containerStatuses": [{"name": "sandbox", "restartCount": 3, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}}"#;
    let pod: SlimPod = serde_json::from_str(text).unwrap();
    let metadata = &pod.metadata;
    assert_eq!(
        (metadata.name.as_deref(), metadata.resource_version.as_deref()),
        (Some("a"), Some("7"))
    );
    assert_eq!(metadata.labels.as_ref().unwrap().len(), 1);
    assert_eq!(metadata.annotations.as_ref().unwrap()[IMAGE_ANNOTATION], "x\n");
    assert_eq!((crate::pod::slot(&pod), crate::pod::term(&pod)), (Some(2), Some(3)));
    assert!(metadata.deletion_timestamp.is_none());
    let (spec, status) = (pod.spec.unwrap(), pod.status.unwrap());
    assert_eq!((spec.node_name.as_deref(), spec.containers.len()), (Some("node"), 1));
    assert_eq!(
        (status.phase.as_deref(), status.pod_ip.as_deref()),
        (Some("Running"), Some("10.0.0.1"))
    );
    assert_eq!(status.conditions.unwrap().len(), 1);
    assert_eq!(status.container_statuses.unwrap()[0].restart_count, 3);
    // A watch's bookmark has only these fields.
    let bookmark: SlimPod =
        serde_json::from_str(r#"{"metadata": {"resourceVersion": "9"}, "spec": {"containers": []}}"#).unwrap();
    assert_eq!(bookmark.metadata.resource_version.as_deref(), Some("9"));
}
