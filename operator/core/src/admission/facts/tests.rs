use super::*;
use serde_json::{Value, json};

fn requested(spec: Value, resource: &str) -> i64 {
    let spec: PodSpec = serde_json::from_value(spec).unwrap();
    requests(&spec).get(resource).copied().unwrap_or(0) / 1000
}

#[test]
fn requests_of_a_whole_pod_replace_those_of_its_containers() {
    let pod = |of_pod: Value, of_container: Value| {
        json!({
            "resources": of_pod,
            "overhead": {"cpu": "1"},
            "initContainers": [{"name": "first", "resources": {"requests": {"memory": "100"}}}],
            "containers": [{"name": "main", "resources": of_container}, {"name": "beside"}],
        })
    };
    let gpu = json!({"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "2"}});
    for (of_pod, of_container, cpu, memory) in [
        (json!({}), json!({}), 1, 100),
        (json!({}), gpu.clone(), 3, 100),
        (json!({"requests": {"cpu": "12", "memory": "400"}}), json!({}), 13, 400),
        (json!({"requests": {"cpu": "12"}}), gpu.clone(), 13, 100),
        (json!({"limits": {"cpu": "6"}}), json!({}), 7, 100),
        (json!({"limits": {"cpu": "6"}}), gpu.clone(), 3, 100),
        (
            json!({"limits": {"cpu": "6"}, "requests": {"cpu": "5"}}),
            json!({}),
            6,
            100,
        ),
    ] {
        let spec = pod(of_pod, of_container.clone());
        assert_eq!(requested(spec.clone(), "cpu"), cpu, "{spec}");
        assert_eq!(requested(spec.clone(), "memory"), memory, "{spec}");
        let gpus = if of_container == gpu { 8 } else { 0 };
        assert_eq!(requested(spec.clone(), "nvidia.com/gpu"), gpus, "{spec}");
        assert_eq!(requested(spec, PODS), 1);
    }
}
