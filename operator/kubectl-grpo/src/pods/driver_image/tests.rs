use super::*;
use serde_json::json;

#[test]
fn a_neighbours_pod_has_image_pull_secrets_and_hub() {
    let pod = json!({"metadata": {"name": "a-driver-1-0"}, "spec": {
        "imagePullSecrets": [{"name": "pull"}],
        "containers": [{"name": "driver", "image": "driver:1", "env": [{"name": "HF_ENDPOINT", "value": "http://hub"}]}],
    }});
    let found = from_pod(serde_json::from_value(pod).unwrap()).unwrap();
    assert_eq!(
        (found.image.as_str(), found.hub_endpoint.as_deref()),
        ("driver:1", Some("http://hub"))
    );
    assert_eq!(found.pull_secrets[0].name, "pull");
}

#[test]
fn the_operators_deployment_names_image_pull_secrets_and_hub_in_its_arguments() {
    let deployment = |args: &[&str]| {
        let spec = json!({"selector": {}, "template": {"spec": {"containers": [{"name": "operator", "args": args}]}}});
        serde_json::from_value::<Deployment>(json!({"metadata": {"name": "o"}, "spec": spec})).unwrap()
    };
    let with = deployment(&[
        "--driver-image=driver:2",
        "--pull-secret=a",
        "--pull-secret=b",
        "--hub-endpoint=http://hub",
    ]);
    let found = from_deployment(&with).unwrap();
    assert_eq!(
        (found.image.as_str(), found.hub_endpoint.as_deref()),
        ("driver:2", Some("http://hub"))
    );
    assert_eq!(json!(found.pull_secrets), json!([{"name": "a"}, {"name": "b"}]));
    assert_eq!(from_deployment(&deployment(&["--listen=0.0.0.0:8080"])), None);
}
