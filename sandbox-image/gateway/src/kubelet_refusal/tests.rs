use super::*;
use serde_json::{Value, json};

fn of(status: &Value) -> Option<String> {
    refusal(&serde_json::from_value(json!({"metadata": {"name": "s"}, "status": status})).unwrap())
}

#[test]
fn pods_that_failed_without_a_container_were_refused_by_their_node() {
    let message =
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 3500, capacity: 4000";
    for reason in ["OutOfcpu", "NodeAffinity", "UnexpectedAdmissionError", "AnyOther"] {
        let status = json!({"phase": "Failed", "reason": reason, "message": message});
        assert_eq!(of(&status), Some(format!("{reason}: {message}")));
    }
    let silent = json!({"phase": "Failed", "reason": "NodePorts"});
    assert_eq!(of(&silent).as_deref(), Some("NodePorts"));
}

#[test]
fn pods_that_ran_or_were_ended_by_a_controller_were_not_refused() {
    let ran = json!([{"name": "sandbox", "image": "x", "imageID": "x", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 137}}}]);
    let collected = json!([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]);
    for status in [
        json!({"phase": "Pending", "reason": "OutOfcpu"}),
        json!({"phase": "Failed"}),
        json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": ran}),
        json!({"phase": "Failed", "reason": "Terminated", "conditions": collected}),
        Value::Null,
    ] {
        assert_eq!(of(&status), None, "{status}");
    }
}
