use super::*;
use grpo_sandbox_protocol::FaultOrigin;
use serde_json::Value;

fn of(status: &Value, deleted: bool) -> SandboxCause {
    let pod = serde_json::json!({"metadata": {"name": "s"}, "status": status});
    cause(&serde_json::from_value(pod).unwrap(), deleted)
}

/// The holder gets the same cause, no matter which statuses the watch shows and which it skips.
#[test]
fn recorded_statuses_tell_the_policys_doing_from_the_infrastructures() {
    let faults: Vec<Value> = serde_yaml_ng::from_str(include_str!("../cause/faults.yaml")).unwrap();
    for fault in &faults {
        let wanted: SandboxCause = serde_json::from_value(fault["cause"].clone()).unwrap();
        let steps = fault["steps"].as_array().unwrap();
        let is_deleted = steps.iter().any(|step| step.get("delete").is_some());
        if let Some(last) = steps.iter().rev().find(|step| step.get("status").is_some()) {
            assert_eq!(of(&last["status"], is_deleted), wanted, "{}", fault["fault"]);
        }
    }
    assert!(faults.len() >= 25);
}

#[test]
fn only_what_the_policy_can_bring_about_is_its_fault() {
    use SandboxCause::*;
    for cause in [OutOfMemory, Killed, EvictedOwnLimit, DiskFull, Exited] {
        assert_eq!(cause.fault(), FaultOrigin::Workload);
    }
    for cause in [Deleted, NodeLost, Preempted, Disrupted, Expired, Unknown] {
        assert_eq!(cause.fault(), FaultOrigin::Infrastructure);
    }
}

#[test]
fn a_pod_that_is_deleted_while_it_runs_was_deleted() {
    assert_eq!(
        of(&serde_json::json!({"phase": "Running"}), true),
        SandboxCause::Deleted
    );
    assert_eq!(of(&Value::Null, true), SandboxCause::Unknown);
}
