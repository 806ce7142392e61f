use super::*;

fn shows(status: Value) -> PullStatus {
    seen(&serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap())
}

fn container(image_id: &str, state: Value) -> Value {
    let status =
        json!({"name": "image", "image": "i", "imageID": image_id, "ready": false, "restartCount": 0, "state": state});
    json!({"phase": "Pending", "containerStatuses": [status]})
}

#[test]
fn a_status_says_whether_the_image_is_there() {
    let waiting =
        |reason: &str, message: &str| container("", json!({"waiting": {"reason": reason, "message": message}}));
    let waits = |why: Option<&str>| PullStatus::Waits {
        why: why.map(str::to_owned),
    };
    let message = |text: &str| text.to_owned();
    let unscheduled = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}]});
    for (status, wanted) in [
        (json!({}), waits(None)),
        (json!({"phase": "Pending"}), waits(None)),
        (unscheduled, waits(Some("0/3 nodes are available"))),
        (waiting("ContainerCreating", ""), waits(None)),
        (waiting("ErrImagePull", "timeout"), waits(Some("timeout"))),
        (
            waiting("ImagePullBackOff", "no such tag"),
            PullStatus::Failed {
                message: message("no such tag"),
            },
        ),
        (
            waiting("InvalidImageName", ""),
            PullStatus::Refused {
                message: message("InvalidImageName"),
            },
        ),
        (waiting("CreateContainerError", "no such file"), PullStatus::Pulled),
        (waiting("RunContainerError", "no such file"), PullStatus::Pulled),
        (
            waiting("CreateContainerConfigError", "image has non-numeric user"),
            PullStatus::Pulled,
        ),
        (
            container("sha256:ab", json!({"waiting": {"reason": "RunContainerError"}})),
            PullStatus::Pulled,
        ),
        (
            container(
                "sha256:ab",
                json!({"terminated": {"exitCode": 128, "reason": "StartError"}}),
            ),
            PullStatus::Pulled,
        ),
        (
            json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}),
            PullStatus::Ended {
                message: message("Evicted: The node was low on resource: ephemeral-storage."),
            },
        ),
    ] {
        assert_eq!(shows(status.clone()), wanted, "{status}");
    }
}

#[test]
fn the_pod_is_restricted_tolerates_everything_and_runs_on_its_node_only() {
    let template = Template {
        call: "prepull-ab".into(),
        pull_secrets: vec!["pull".into()],
        runtime_class: Some("gvisor".into()),
        deadline_seconds: 60,
    };
    let name = template.name(3, 2);
    let pod: Pod = serde_json::from_value(template.pod(&name, "node-a", "swebench/a:1")).unwrap();
    assert_eq!(pod.metadata.name.as_deref(), Some("prepull-ab-3-2"));
    let spec = pod.spec.unwrap();
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert_eq!(spec.active_deadline_seconds, Some(60));
    assert_eq!(json!(spec.tolerations), json!([{"operator": "Exists"}]));
    assert_eq!(json!(spec.image_pull_secrets), json!([{"name": "pull"}]));
    assert_eq!(spec.runtime_class_name.as_deref(), Some("gvisor"));
    assert_eq!(spec.security_context.unwrap().run_as_non_root, Some(true));
    let affinity = json!(spec.affinity);
    let field = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0];
    assert_eq!(field["matchFields"][0]["values"], json!(["node-a"]));
    let container = &spec.containers[0];
    assert_eq!(container.image_pull_policy.as_deref(), Some("IfNotPresent"));
    assert_eq!(
        container.security_context.as_ref().unwrap().allow_privilege_escalation,
        Some(false)
    );
}
