use super::*;

fn spec(text: &str) -> SandboxPoolSpec {
    serde_yaml_ng::from_str(text).unwrap()
}

fn egress_of(spec_text: &str, reached: &[&str], failed: Option<&str>) -> (ConditionStatus, &'static str, String) {
    let found = EgressReport {
        at: 1,
        tried: vec![
            "the API server (10.0.0.1:443)".into(),
            "another sandbox (10.1.0.2:7070)".into(),
        ],
        reached: reached.iter().map(|&what| what.to_owned()).collect(),
        blocked_after_seconds: None,
        failed: failed.map(str::to_owned),
    };
    let finding = egress(&spec(spec_text), Some(&found));
    (finding.status, finding.reason.text(), finding.message)
}

#[test]
fn a_pool_whose_policies_are_enforced_late_gives_no_leases_and_names_the_setting() {
    let late = EgressReport {
        at: 1,
        tried: vec!["the API server (10.0.0.1:443)".into()],
        reached: vec!["the API server (10.0.0.1:443)".into()],
        blocked_after_seconds: Some(6),
        failed: None,
    };
    assert!(!late.is_blocked());
    let finding = egress(&spec("{max: 4}"), Some(&late));
    assert_eq!(
        (finding.status, finding.reason),
        (ConditionStatus::False, Reason::Reached)
    );
    for words in [
        "reached the API server",
        "reached nothing 6 s later",
        "NETWORK_POLICY_ENFORCING_MODE=strict",
        "leases are refused",
    ] {
        assert!(finding.message.contains(words), "{}", finding.message);
    }
    assert!(
        !finding.message.contains("install a network plugin"),
        "{}",
        finding.message
    );
}

#[test]
fn what_a_probe_reached_decides_whether_the_way_out_is_blocked() {
    let (status, reason, message) = egress_of("{max: 4}", &[], None);
    assert_eq!((status, reason), (ConditionStatus::True, "NothingReached"));
    assert!(
        message.contains("the API server (10.0.0.1:443), another sandbox"),
        "{message}"
    );
    let (status, _, message) = egress_of("{max: 4}", &["the API server (10.0.0.1:443)"], None);
    assert_eq!(status, ConditionStatus::False);
    assert!(
        message.contains("reached the API server") && message.contains("leases are refused"),
        "{message}"
    );
    let (status, _, message) = egress_of("{max: 4, allowUnenforced: true}", &["x"], None);
    assert_eq!(status, ConditionStatus::False);
    assert!(message.contains("given all the same"), "{message}");
    let (status, reason, message) = egress_of("{max: 4}", &[], Some("no sandbox was free in time"));
    assert_eq!((status, reason), (ConditionStatus::Unknown, "ProbeFailed"));
    assert!(message.contains("leases wait"), "{message}");
    let without_report = findings(&spec("{max: 4}"), None);
    assert!(
        without_report[..2]
            .iter()
            .all(|finding| finding.status == ConditionStatus::Unknown)
    );
}

#[test]
fn every_bound_that_is_missing_is_named_with_who_sets_it() {
    let found = Limits {
        memory_bytes: Some(2 << 30),
        cpu_millis: Some(1500),
        processes: None,
        user_namespace: true,
    };
    let bare = limits(&spec("{max: 4}"), Some(&found));
    assert_eq!(bare.status, ConditionStatus::True);
    assert_eq!(
        bare.message,
        "a sandbox has: memory 2048 MiB, CPU 1500m, processes as the kubelet's podPidsLimit says, \
             disk 20Gi (by eviction), root inside is an unprivileged user outside"
    );
    let unbounded = Limits {
        memory_bytes: None,
        ..found
    };
    let unbounded = limits(&spec("{max: 4}"), Some(&unbounded));
    assert_eq!(unbounded.status, ConditionStatus::False);
    assert!(
        unbounded
            .message
            .starts_with("a sandbox has no bound on memory (set resources.limits.memory)")
    );
    let whole = Limits {
        processes: Some(512),
        ..found
    };
    let disk = "{max: 4, resources: {limits: {ephemeral-storage: 4Gi}}}";
    assert_eq!(limits(&spec(disk), Some(&whole)).status, ConditionStatus::True);
    let unmapped = Limits {
        user_namespace: false,
        ..whole
    };
    assert_eq!(limits(&spec(disk), Some(&unmapped)).status, ConditionStatus::False);
}

#[test]
fn images_that_cannot_be_had_are_named_until_they_can() {
    assert_eq!(images(&[]).status, ConditionStatus::True);
    let trouble = |nth: u32| ImageTrouble {
        image: format!("task:{nth}"),
        code: grpo_sandbox_protocol::ErrorCode::ImageUnavailable,
        message: "not found".into(),
        failures: nth,
        until: 0,
    };
    let finding = images(&(1..=5).map(trouble).collect::<Vec<_>>());
    assert_eq!(finding.status, ConditionStatus::False);
    assert!(
        finding.message.contains("task:1 (failed 1 times in a row): not found"),
        "{}",
        finding.message
    );
    assert!(finding.message.contains("and 2 more") && !finding.message.contains("task:4"));
}

#[test]
fn pods_without_an_address_are_named_with_their_node_and_what_the_cluster_says() {
    assert_eq!(starts(&[]).status, ConditionStatus::True);
    let stuck = |pod: &str, node: &str| StuckPod {
        pod: pod.into(),
        node: node.into(),
        message: "no addresses left".into(),
        since: 0,
    };
    let finding = starts(&[stuck("p-sbx-1", "n-1"), stuck("p-sbx-2", "")]);
    assert_eq!(
        (finding.status, finding.reason),
        (ConditionStatus::False, Reason::NoAddress)
    );
    assert!(
        finding
            .message
            .contains("p-sbx-1 on node n-1: no addresses left; p-sbx-2: no"),
        "{}",
        finding.message
    );
}

#[test]
fn a_pod_that_its_node_refuses_is_not_said_to_lack_an_address_and_the_next_step_is_at_the_node() {
    let refused = StuckPod {
        pod: "p-sbx-1".into(),
        node: "n-1".into(),
        message: "the kubelet refused to run it: OutOfcpu".into(),
        since: 0,
    };
    let finding = starts(&[refused]);
    assert_eq!(finding.status, ConditionStatus::False);
    let message = finding.message;
    let what = "pods of sandboxes do not start: p-sbx-1 on node n-1: the kubelet refused to run it: OutOfcpu";
    assert!(message.starts_with(what), "{message}");
    assert!(message.contains("free or correct the node"), "{message}");
    assert!(!message.contains("address"), "{message}");
}
