use serde_json::{Value, json};

use super::*;

const NAMESPACE: &str = "the-namespace";

fn owned(kind: &str, name: &str, body: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": format!("uid-{name}"), "labels": {"grpo.dev/role": "engine"},
            "ownerReferences": [{
                "apiVersion": "grpo.dev/v1alpha1", "kind": "InferencePool", "name": "judge", "uid": "uid-judge", "controller": true,
            }],
        },
    });
    object["spec"] = body;
    object
}

fn engine(number: u32) -> Value {
    owned(
        "Pod",
        &format!("judge-engine-{number}-1-0"),
        json!({"containers": [{
            "name": "engine", "image": "example.com/engine:1",
            "args": ["--pool-uid", "uid-judge", "--url", format!("http://judge.{NAMESPACE}.svc")],
            "env": [{"name": "RANK", "value": number.to_string()}],
            "resources": {"limits": {"nvidia.com/gpu": "8"}},
        }]}),
    )
}

/// A pod with the fields that an API server adds.
fn stored(mut pod: Value) -> Value {
    let spec = &mut pod["spec"];
    spec["serviceAccountName"] = json!("default");
    spec["terminationGracePeriodSeconds"] = json!(30);
    spec["restartPolicy"] = json!("Always");
    spec["tolerations"] = json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]);
    spec["volumes"] = json!([{"name": "kube-api-access-abcde", "projected": {"sources": []}}]);
    spec["containers"][0]["volumeMounts"] =
        json!([{"name": "kube-api-access-abcde", "mountPath": "/var/run/secrets", "readOnly": true}]);
    spec["containers"][0]["resources"]["requests"] = json!({"nvidia.com/gpu": "8"});
    pod["metadata"]["uid"] = json!("3f0e");
    pod["status"] = json!({"phase": "Pending"});
    pod
}

#[test]
fn pods_of_a_group_are_shown_once_with_what_differs_side_by_side() {
    let page = plan("two", NAMESPACE, &[engine(10), engine(9)]).unwrap();
    assert!(
        page.contains("2 engine pods of InferencePool judge with 8 GPUs each"),
        "{page}"
    );
    assert!(page.contains("together 2 pods and 16 GPUs"), "{page}");
    assert!(page.contains("RANK: 9 | 10"), "{page}");
}

#[test]
fn uids_and_the_namespace_are_named_instead_of_shown() {
    let judge = json!({"kind": "InferencePool", "metadata": {"name": "judge", "uid": "uid-judge"}});
    let page = plan("one", NAMESPACE, &[judge, engine(0)]).unwrap();
    assert!(page.contains("--pool-uid <uid-of-InferencePool-judge>"), "{page}");
    assert!(page.contains("--url http://judge.<namespace>.svc"), "{page}");
}

#[test]
fn what_the_api_server_adds_is_left_out() {
    let wanted = plan("one", NAMESPACE, &[engine(0)]).unwrap();
    assert_eq!(plan("one", NAMESPACE, &[stored(engine(0))]).unwrap(), wanted);
}

#[test]
fn what_somebody_decided_is_never_left_out() {
    let wanted = plan("one", NAMESPACE, &[engine(0)]).unwrap();
    let changes: [(&str, Value); 8] = [
        ("/spec/containers/0/image", json!("example.com/engine:2")),
        ("/spec/containers/0/args", json!(["--other"])),
        ("/spec/containers/0/env", json!([])),
        (
            "/spec/containers/0/resources",
            json!({"limits": {"nvidia.com/gpu": "4"}}),
        ),
        ("/spec/containers/0/ports", json!([{"containerPort": 8000}])),
        ("/spec/schedulingGates", json!([{"name": "grpo.dev/admission"}])),
        ("/spec/nodeSelector", json!({"gpu": "h200"})),
        (
            "/spec/tolerations",
            json!([{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        ),
    ];
    for (path, value) in changes {
        let mut pod = engine(0);
        let (parent, field) = path.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value;
        assert_ne!(plan("one", NAMESPACE, &[pod]).unwrap(), wanted, "{path}");
    }
}

#[test]
fn objects_of_others_are_not_shown() {
    let mut pod = engine(0);
    pod["metadata"]["ownerReferences"][0]["apiVersion"] = json!("apps/v1");
    let page = plan("none", NAMESPACE, &[pod]).unwrap();
    assert!(page.contains("pods: nothing"), "{page}");
}
