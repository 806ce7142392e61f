use super::is_ready;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

#[test]
fn a_pod_is_ready_while_its_condition_holds_and_it_is_not_deleted() {
    let of = |conditions: Value, deleted: Option<&str>| {
        let pod = json!({
            "metadata": {"name": "a", "deletionTimestamp": deleted},
            "status": {"conditions": conditions},
        });
        is_ready(&serde_json::from_value::<Pod>(pod).unwrap())
    };
    let scheduled = json!({"type": "PodScheduled", "status": "True"});
    let ready = json!({"type": "Ready", "status": "True"});
    let unready = json!({"type": "Ready", "status": "False"});
    assert!(of(json!([scheduled, ready]), None));
    assert!(!of(json!([ready]), Some("2026-01-01T00:00:00Z")));
    assert!(!of(json!([scheduled, unready]), None));
    assert!(!of(json!([scheduled]), None));
    assert!(!of(json!(null), None));
    assert!(!is_ready(&Pod::default()));
}
