use super::*;
use grpo_operator_core::grpo_run::references::{Reference, ReferenceKind};
use serde_json::json;

/// What a run with this blocker is said to wait for.
fn waits_for(reason: &str, message: &str) -> String {
    let condition = json!({
        "type": "Provisioned", "status": "False", "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status: GrpoRunStatus = serde_json::from_value(json!({"phase": "Pending", "conditions": [condition]})).unwrap();
    waits(&status).remove(0).thing
}

fn missing(kind: ReferenceKind, name: &str, key: Option<&str>) -> String {
    let reference = Reference {
        kind,
        name: name.to_owned(),
        key: key.map(str::to_owned),
        path: "tasks.train.dataset".to_owned(),
    };
    reference.message("team")
}

#[test]
fn a_run_with_a_missing_reference_waits_for_the_object_that_the_operator_names() {
    let cases = [
        (missing(ReferenceKind::Secret, "hub", Some("HF_TOKEN")), "Secret hub"),
        (missing(ReferenceKind::Secret, "bucket", None), "Secret bucket"),
        (
            missing(ReferenceKind::ConfigMap, "ids", Some("ids.txt")),
            "ConfigMap ids",
        ),
        (
            missing(ReferenceKind::DeviceClass, "gpu.nvidia.com", None),
            "DeviceClass gpu.nvidia.com",
        ),
    ];
    for (message, wanted) in &cases {
        assert_eq!(waits_for("ReferenceMissing", message), *wanted, "{message}");
    }
    let [(first, name), (second, _), ..] = &cases;
    assert_eq!(waits_for("ReferenceMissing", &format!("{first}; {second}")), *name);
}

#[test]
fn a_missing_reference_in_unknown_words_is_an_object_of_the_spec() {
    for message in ["", "there is no", "there is no ", "gone"] {
        assert_eq!(
            waits_for("ReferenceMissing", message),
            "an object that its spec names",
            "{message:?}"
        );
    }
}
