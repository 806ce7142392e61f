use super::*;
use crate::index::{Action, Bounds};
use grpo_sandbox_protocol::Priority;

fn entry(lease: &str) -> LedgerEntry {
    LedgerEntry {
        lease: lease.into(),
        run: "r".into(),
        sandbox: format!("pod-{lease}"),
        pod_uid: format!("uid-{lease}"),
        restarts: 0,
        image: "x".into(),
        epoch: 3,
        expires_at: 1_000,
        ttl_millis: if lease == "a" { 300_000 } else { 0 },
        priority: Priority::Agent,
    }
}

fn pod(lease: &str, status: &str) -> SlimPod {
    let text = format!(
        "metadata: {{name: pod-{lease}, uid: uid-{lease}, labels: {{grpo.dev/sandbox-slot: '1'}}}}\n\
             spec: {{nodeName: node, containers: []}}\nstatus: {status}"
    );
    serde_yaml_ng::from_str(&text).unwrap()
}

fn index() -> Index {
    Index::new(Bounds {
        max: 4,
        reserved: 1,
        warm_max: 4,
        orders: 4,
        waiting: 4,
        per_node: None,
        max_ttl_millis: 100_000,
        idle_millis: 100_000,
    })
}

#[test]
fn a_lease_whose_pod_runs_goes_on_with_all_its_time_to_renew_it_and_the_others_are_lost() {
    let mut index = index();
    let pods = [
        pod("a", "{phase: Running, podIP: 10.0.0.1}"),
        pod("b", "{phase: Failed, reason: Evicted}"),
        pod("d", "{phase: Running, podIP: 10.0.0.2}"),
    ];
    let entries = ["a", "b", "c", "d"].map(entry).into();
    let changes = restore(&mut index, entries, &pods, "t", None, 50_000);
    assert_eq!(index.leases["a"].entry.expires_at, 350_000);
    assert_eq!(
        index.leases["d"].entry.expires_at, 110_000,
        "written by an older gateway"
    );
    assert_eq!(index.sandboxes["pod-a"].slot, Some(1));
    assert_eq!(index.cause_of("b"), Some(SandboxCause::Disrupted));
    assert_eq!(index.cause_of("c"), Some(SandboxCause::Unknown));
    assert_eq!(changes.len(), 2);
}

#[test]
fn of_a_pod_that_was_used_again_the_last_lease_goes_on_and_one_on_an_earlier_container_does_not() {
    let shown = |restarts: u32| {
        let container = format!("{{name: sandbox, image: x, imageID: x, ready: true, restartCount: {restarts}}}");
        pod(
            "a",
            &format!("{{phase: Running, podIP: 10.0.0.1, containerStatuses: [{container}]}}"),
        )
    };
    // The cluster shows a container restart a moment later.
    for (restarts, alive) in [(0, Some("b")), (1, Some("b")), (2, None)] {
        let mut index = index();
        let later = LedgerEntry {
            lease: "b".into(),
            epoch: 4,
            restarts: 1,
            ..entry("a")
        };
        let changes = restore(&mut index, vec![entry("a"), later], &[shown(restarts)], "t", None, 0);
        let leases: Vec<&str> = index.leases.keys().map(String::as_str).collect();
        assert_eq!(leases, alive.into_iter().collect::<Vec<_>>(), "{restarts}");
        assert_eq!(changes.len(), 2 - leases.len());
        assert!(index.sandboxes.values().all(|sandbox| sandbox.restarts == 1));
    }
}

#[test]
fn pods_that_nobody_leased_are_kept_if_they_are_as_they_would_be_made_now() {
    let mut index = index();
    let made_from = |name: &str, template: &str, status: &str| {
        let mut pod = pod(name, status);
        let annotations = [("grpo.dev/sandbox-template", template), ("grpo.dev/image", "x")];
        pod.metadata.annotations = Some(annotations.map(|(key, value)| (key.into(), value.into())).into());
        pod
    };
    let running = "{phase: Running, podIP: 10.0.0.1}";
    let pods = [
        made_from("a", "t", running),
        made_from("warm", "t", running),
        made_from("coming", "t", "{phase: Pending}"),
        made_from("old", "s", running),
        made_from("ended", "t", "{phase: Failed}"),
    ];
    restore(&mut index, vec![entry("a")], &pods, "t", None, 0);
    let names: Vec<&String> = index.sandboxes.keys().collect();
    assert_eq!(names, ["pod-a", "pod-coming", "pod-warm"]);
    assert!(index.sandboxes["pod-warm"].lease.is_none());
    // The watch shows its address, as for a new pod.
    assert!(index.observed("pod-warm", "uid", "10.0.0.1", "node", 0));
}

/// A pod with access to an index.
fn graders(lease: &str, url: &str) -> SlimPod {
    let mut pod = pod(lease, "{phase: Running, podIP: 10.0.0.1}");
    pod.metadata.labels = Some([("grpo.dev/grader".to_owned(), "true".to_owned())].into());
    let annotations = [
        ("grpo.dev/package-index", url),
        ("grpo.dev/sandbox-template", "t"),
        ("grpo.dev/image", "x"),
    ];
    pod.metadata.annotations = Some(annotations.map(|(key, value)| (key.into(), value.into())).into());
    pod
}

#[test]
fn a_grader_goes_on_only_in_a_pod_that_reaches_the_pools_package_index() {
    let packages: PackageIndex =
        serde_json::from_value(serde_json::json!({"url": "http://pypi", "cidr": "10.0.0.0/16"})).unwrap();
    for (pod, packages, goes_on) in [
        (graders("a", "http://pypi"), Some(&packages), true),
        (graders("a", "http://other"), Some(&packages), false),
        (pod("a", "{phase: Running, podIP: 10.0.0.1}"), Some(&packages), false),
        (pod("a", "{phase: Running, podIP: 10.0.0.1}"), None, true),
    ] {
        let mut index = index();
        let entry = LedgerEntry {
            priority: Priority::Grader,
            ..entry("a")
        };
        let changes = restore(&mut index, vec![entry], &[pod], "t", packages, 0);
        assert_eq!(index.leases.contains_key("a"), goes_on);
        assert_eq!(changes.is_empty(), goes_on);
        let lost = (!goes_on).then_some(SandboxCause::Disrupted);
        assert_eq!(index.cause_of("a"), lost, "an infrastructure fault: it is graded again");
    }
}

#[test]
fn a_pod_that_a_grader_had_is_never_taken_over_for_others_and_never_reset() {
    let mut index = index();
    index.resets = true;
    let grader = LedgerEntry {
        priority: Priority::Grader,
        ..entry("a")
    };
    let pods = [graders("a", "http://pypi"), graders("left", "http://pypi")];
    restore(&mut index, vec![grader], &pods, "t", None, 0);
    assert_eq!(index.sandboxes.keys().collect::<Vec<_>>(), ["pod-a"]);
    let actions = index.release("a", 0);
    let delete = Action::Delete { name: "pod-a".into() };
    assert!(actions.contains(&delete), "{actions:?}");
    assert!(index.sandboxes.is_empty());
}
