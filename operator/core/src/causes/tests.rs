use super::*;
use serde_json::json;

fn cause_of(status: serde_json::Value) -> Option<&'static str> {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap();
    cause(&pod, &PodFacts::of(&pod))
}

#[test]
fn a_failure_is_counted_by_a_word_of_a_fixed_list() {
    let ended = |reason: &str| {
        json!({"phase": "Failed", "containerStatuses": [{
            "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 137, "reason": reason}}}]})
    };
    assert_eq!(cause_of(ended("OOMKilled")), Some("OOMKilled"));
    assert_eq!(cause_of(ended("whatever-name-42")), Some("Other"));
    assert_eq!(
        cause_of(json!({"phase": "Failed", "reason": "Evicted"})),
        Some("Evicted")
    );
    assert_eq!(cause_of(json!({"phase": "Running"})), None);
}

#[test]
fn a_pod_without_a_node_is_told_from_one_that_starts_and_from_one_behind_a_gate() {
    let waits = |status: &str, reason: &str| {
        let scheduled = json!({"type": "PodScheduled", "status": status, "reason": reason, "message": "m"});
        let status = json!({"phase": "Pending", "conditions": [scheduled]});
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap();
        state(&PodFacts::of(&pod))
    };
    assert_eq!(waits("False", "Unschedulable"), "Unschedulable");
    assert_eq!(waits("False", "SchedulingGated"), "Waiting");
    assert_eq!(waits("True", ""), "Waiting");
}
