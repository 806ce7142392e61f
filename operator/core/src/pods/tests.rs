use super::*;
use serde_json::json;

fn read(status: serde_json::Value) -> PodState {
    let pod = json!({
        "metadata": {"name": "demo-driver-1-0", "labels": {"grpo.dev/attempt": "1", "grpo.dev/rank": "0"}},
        "status": status,
    });
    PodFacts::of(&serde_json::from_value(pod).unwrap()).state
}

fn container(state: serde_json::Value) -> serde_json::Value {
    json!([{"name": "driver", "image": "example.com/driver:1", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
}

fn said(state: PodState) -> (String, String) {
    match state {
        PodState::Waiting { reason, message } => (reason, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_schedulers_own_words_are_shown() {
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: 1 Insufficient cpu"});
    let (reason, message) = said(read(json!({"phase": "Pending", "conditions": [condition]})));
    assert_eq!(reason, "Unschedulable");
    assert!(message.contains("Insufficient cpu"), "{message}");
}

#[test]
fn a_missing_image_is_named_with_what_to_do() {
    let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "not found: example.com/model:1"}});
    let (reason, message) = said(read(
        json!({"phase": "Pending", "containerStatuses": container(waiting)}),
    ));
    assert_eq!(reason, "ErrImagePull");
    for words in ["demo-driver-1-0", "example.com/model:1", "Correct the name"] {
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_crash_is_told_with_image_exit_code_and_last_lines() {
    let ended = json!({"terminated": {"exitCode": 3, "reason": "Error", "message": "first\n\nlast line\n"}});
    let PodState::Failed(failure) = read(json!({"phase": "Failed", "containerStatuses": container(ended)})) else {
        panic!()
    };
    assert_eq!((failure.exit_code, failure.disrupted), (Some(3), false));
    assert_eq!(
        failure.message,
        "pod demo-driver-1-0 (image example.com/driver:1) ended with exit code 3: first | last line"
    );
}

#[test]
fn running_out_of_memory_is_the_processes_own_doing() {
    let ended = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
    let PodState::Failed(failure) = read(json!({"phase": "Failed", "containerStatuses": container(ended)})) else {
        panic!()
    };
    assert!(
        !failure.disrupted && failure.message.contains("OOMKilled"),
        "{failure:?}"
    );
}

#[test]
fn preemption_drain_and_node_loss_are_the_clusters_doing() {
    let condition =
        json!({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "by x"});
    for status in [
        json!({"phase": "Failed", "conditions": [condition]}),
        json!({"phase": "Failed", "reason": "NodeLost"}),
    ] {
        let PodState::Failed(failure) = read(status) else {
            panic!()
        };
        assert!(failure.disrupted, "{failure:?}");
    }
}

#[test]
fn a_pod_evicted_for_its_own_limit_is_not_taken_away_by_the_cluster() {
    let status =
        json!({"phase": "Failed", "reason": "Evicted", "message": "ephemeral local storage usage exceeds the limit"});
    let PodState::Failed(failure) = read(status) else {
        panic!()
    };
    assert!(
        !failure.disrupted && failure.message.contains("exceeds the limit"),
        "{failure:?}"
    );
}

#[test]
fn pods_that_a_kubelet_refused_to_start_are_the_clusters_doing_and_others_without_an_exit_code_are_not() {
    let no_devices = "Pod was rejected: Allocate failed due to no healthy devices present";
    let pressure = "Pod was rejected: The node had condition: [DiskPressure].";
    for (reason, message, refused) in [
        ("UnexpectedAdmissionError", no_devices, true),
        (
            "TopologyAffinityError",
            "Resources cannot be allocated with Topology locality",
            true,
        ),
        ("OutOfcpu", "Node didn't have enough resource: cpu", true),
        ("OutOfpods", "Node didn't have enough capacity: pods", true),
        ("OutOfnvidia.com/gpu", "Node didn't have enough resource", true),
        ("NodePorts", "Predicate NodePorts failed", true),
        ("Evicted", pressure, true),
        (
            "Evicted",
            "Pod ephemeral local storage usage exceeds the total limit",
            false,
        ),
        (
            "DeadlineExceeded",
            "Pod was active on the node longer than the specified deadline",
            false,
        ),
        ("SysctlForbidden", "forbidden sysctl", false),
    ] {
        let PodState::Failed(failure) = read(json!({"phase": "Failed", "reason": reason, "message": message})) else {
            panic!("{reason}")
        };
        let found = (failure.refused, failure.disrupted, failure.exit_code);
        assert_eq!(found, (refused, refused, None), "{failure:?}");
        assert!(
            failure.message.contains(&format!("({reason}): {message}")),
            "{failure:?}"
        );
        assert_eq!(
            failure.message.contains("before a process started"),
            refused,
            "{failure:?}"
        );
    }
    // A kubelet that restarts may refuse a pod that had run: its process ended by itself.
    let ended = container(json!({"terminated": {"exitCode": 3}}));
    let ran = json!({"phase": "Failed", "reason": "OutOfcpu", "containerStatuses": ended});
    let PodState::Failed(failure) = read(ran) else { panic!() };
    assert_eq!(
        (failure.refused, failure.disrupted, failure.exit_code),
        (false, false, Some(3))
    );
}

#[test]
fn a_container_that_keeps_ending_is_waiting_although_its_pod_runs() {
    let mut status = container(json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}));
    status[0]["lastState"] = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "no model"}});
    let (reason, message) = said(read(json!({"phase": "Running", "containerStatuses": status})));
    assert_eq!(reason, "CrashLoopBackOff");
    assert!(message.contains("exit code 1: no model"), "{message}");
}

/// The state of a driver's pod in this phase, and whether a container besides the driver's still runs.
fn with_sidecar(phase: &str, driver: serde_json::Value, sidecar: serde_json::Value) -> (PodState, bool) {
    let named = |name: &str, state: serde_json::Value| {
        let mut container = container(state)[0].clone();
        container["name"] = json!(name);
        container
    };
    let pod = json!({
        "metadata": {"name": "demo-driver-1-0", "labels": {"grpo.dev/role": "driver", "grpo.dev/attempt": "1"}},
        "status": {"phase": phase, "containerStatuses": [named("mesh", sidecar), named("driver", driver)]},
    });
    let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
    (facts.state, facts.outlived)
}

#[test]
fn a_pod_ends_as_its_own_container_whatever_runs_or_ends_beside_it() {
    let ended = |code: i32| json!({"terminated": {"exitCode": code}});
    let runs = || json!({"running": {}});
    assert_eq!(with_sidecar("Running", ended(0), runs()), (PodState::Succeeded, true));
    assert_eq!(with_sidecar("Failed", ended(0), ended(1)), (PodState::Succeeded, false));
    assert_eq!(
        with_sidecar("Running", runs(), runs()),
        (PodState::Running { ready: false }, false)
    );
    assert_eq!(
        with_sidecar("Running", runs(), ended(1)),
        (PodState::Running { ready: false }, false)
    );
    for (phase, sidecar, outlived) in [("Running", runs(), true), ("Failed", ended(1), false)] {
        let (state, outlives) = with_sidecar(phase, ended(42), sidecar);
        let PodState::Failed(failure) = state else {
            panic!("{state:?}")
        };
        assert_eq!((failure.exit_code, outlives), (Some(42), outlived), "{phase}");
    }
}

#[test]
fn a_pod_whose_last_container_ended_waits_for_the_words_of_its_end() {
    let ended = json!({"terminated": {"exitCode": 137, "reason": "Error"}});
    let (state, outlived) = with_sidecar("Running", ended.clone(), ended);
    assert_eq!((state, outlived), (PodState::Running { ready: false }, false));
}

#[test]
fn a_silent_node_is_told_from_a_failing_readiness_probe() {
    let condition =
        |kind: &str, status: &str, reason: Option<&str>| json!({"type": kind, "status": status, "reason": reason});
    let probe = Some("ContainersNotReady");
    for (ready, containers, silent) in [
        (("True", None), Some(("True", None)), false),
        (("False", None), Some(("True", None)), true),
        (("False", probe), Some(("False", probe)), false),
        // The node was lost while the probe failed already.
        (("False", None), Some(("False", probe)), false),
        (("False", Some("ReadinessGatesNotReady")), Some(("True", None)), false),
        (("False", None), None, false),
    ] {
        let mut conditions = vec![condition("Ready", ready.0, ready.1)];
        conditions.extend(containers.map(|(status, reason)| condition("ContainersReady", status, reason)));
        let pod =
            json!({"metadata": {"name": "p-engine-0-1-0"}, "status": {"phase": "Running", "conditions": conditions}});
        let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
        assert_eq!(facts.node_silent, silent, "{ready:?} {containers:?}");
    }
}
