use super::*;

/// A Workload with these conditions (type, status, reason) and the rest of its status.
fn workload(conditions: &[(&str, &str, &str)], status: Value) -> Workload {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(type_, holds, reason)| {
            json!({"type": type_, "status": holds, "reason": reason, "message": format!("{type_} is {holds}"), "lastTransitionTime": "2026-01-01T00:00:00Z"})
        })
        .collect();
    let mut object = json!({
        "metadata": {"name": "grporun-demo", "generation": 3},
        "spec": {"podSets": [{"name": "driver", "count": 1}, {"name": "engine", "count": 4}]},
        "status": status,
    });
    object["status"]["conditions"] = json!(conditions);
    serde_json::from_value(object).unwrap()
}

fn admission() -> Value {
    json!({"admission": {"clusterQueue": "gpus", "podSetAssignments": [
        {"name": "driver", "flavors": {"cpu": "any", "memory": "any"}},
        {"name": "engine", "flavors": {"cpu": "h200", "nvidia.com/gpu": "h200", "memory": "any"}},
    ]}})
}

#[test]
fn a_run_may_have_pods_from_its_admission_to_its_eviction() {
    let now = "2026-01-02T00:00:00Z".parse().unwrap();
    let reserved = ("QuotaReserved", "True", "QuotaReserved");
    let admitted = ("Admitted", "True", "Admitted");
    let evicted = ("Evicted", "True", "Preempted");
    // Conditions; admitted, holds quota, is evicted.
    let cases: [(&[_], Value, bool, bool, bool); 5] = [
        (&[], json!({}), false, false, false),
        (&[reserved], admission(), false, true, false),
        (&[reserved, admitted], admission(), true, true, false),
        (&[reserved, admitted, evicted], admission(), false, true, true),
        (
            &[
                ("QuotaReserved", "False", "Pending"),
                ("Admitted", "False", "NoReservation"),
                evicted,
            ],
            json!({}),
            false,
            false,
            false,
        ),
    ];
    for (conditions, status, is_admitted, holds, is_evicted) in cases {
        let workload = workload(conditions, status);
        let found = (
            workload.is_admitted(),
            workload.holds_quota(),
            workload.eviction().is_some(),
        );
        assert_eq!(found, (is_admitted, holds, is_evicted), "{conditions:?}");
        // Afterwards it holds nothing, in each of these states.
        let mut returned = json!(workload);
        for (field, value) in workload.without_quota(now)["status"].as_object().unwrap() {
            returned["status"][field] = value.clone();
        }
        let returned: Workload = serde_json::from_value(returned).unwrap();
        assert!(!returned.holds_quota() && !returned.is_admitted() && returned.eviction().is_none());
    }
}

#[test]
fn quota_is_returned_as_kueue_does_it_for_its_own_jobs() {
    let now = "2026-01-02T00:00:00Z".parse().unwrap();
    // Reason of the eviction, whether Kueue may admit the run again at once, and the reason that Kueue looks for.
    for (reason, at_once, requeued) in [
        ("Preempted", "True", "Preempted"),
        ("NodeFailures", "True", "NodeFailures"),
        ("PodsReadyTimeout", "False", "PodsReadyTimeout"),
        ("Deactivated", "False", "Deactivated"),
        ("DeactivatedDueToRequeuingLimitExceeded", "False", "Deactivated"),
        ("AdmissionCheck", "False", "AdmissionCheck"),
    ] {
        let before = [
            ("QuotaReserved", "True", "QuotaReserved"),
            ("Admitted", "True", "Admitted"),
            ("PodsReady", "True", "Started"),
            ("Evicted", "True", reason),
        ];
        let patch = workload(&before, admission()).without_quota(now);
        let conditions = patch["status"]["conditions"].as_array().unwrap();
        let of = |type_: &str| conditions.iter().find(|condition| condition["type"] == type_).unwrap();
        assert_eq!(patch["status"]["admission"], Value::Null);
        assert_eq!(of("QuotaReserved")["status"], "False");
        assert_eq!(of("QuotaReserved")["message"], "Evicted is True");
        assert_eq!(of("QuotaReserved")["lastTransitionTime"], "2026-01-02T00:00:00Z");
        assert_eq!(of("QuotaReserved")["observedGeneration"], 3);
        assert_eq!(
            (&of("Admitted")["status"], &of("PodsReady")["status"]),
            (&json!("False"), &json!("False"))
        );
        assert_eq!(
            of("PodsReady")["reason"],
            "WaitForStart",
            "the next start has its own time"
        );
        assert_eq!(
            (&of("Requeued")["status"], &of("Requeued")["reason"]),
            (&json!(at_once), &json!(requeued))
        );
        assert_eq!(
            of("Evicted")["status"],
            "True",
            "Kueue sets it back when it admits the run again"
        );
        assert_eq!(of("Evicted")["lastTransitionTime"], "2026-01-01T00:00:00Z");
    }
}

#[test]
fn pods_are_placed_by_the_flavors_of_all_their_resources_and_by_admission_checks() {
    let mut status = admission();
    status["admissionChecks"] = json!([{"name": "nodes", "state": "Ready", "message": "", "podSetUpdates": [
        {"name": "engine", "nodeSelector": {"request": "r-1"}, "annotations": {"autoscaling.x-k8s.io/consume-provisioning-request": "r-1"}},
    ]}]);
    let workload = workload(&[("Admitted", "True", "Admitted")], status);
    let flavors: BTreeMap<String, Flavor> = serde_json::from_value(json!({
        "any": {},
        "h200": {"nodeLabels": {"gpu": "h200"}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
    }))
    .unwrap();
    let placements = workload.placements(&flavors);
    assert_eq!(placements["driver"], Placement::default());
    let mut pod = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"tolerations": [{"key": "mine"}]}});
    placements["engine"].lay_onto(&mut pod);
    assert_eq!(
        pod,
        json!({
            "metadata": {
                "labels": {"a": "b"},
                "annotations": {"autoscaling.x-k8s.io/consume-provisioning-request": "r-1"},
            },
            "spec": {
                "nodeSelector": {"gpu": "h200", "request": "r-1"},
                "tolerations": [{"key": "mine"}, {"key": "nvidia.com/gpu", "operator": "Exists"}],
            },
        })
    );
    assert_eq!((workload.pods("engine"), workload.pods("trainer")), (4, 0));
}

#[test]
fn a_wait_has_the_words_of_what_it_waits_for() {
    let mut inactive = workload(&[("QuotaReserved", "False", "Pending")], json!({}));
    assert_eq!(inactive.wait(), "QuotaReserved is False");
    inactive.spec.active = Some(false);
    assert!(inactive.wait().contains("spec.active"));
    let evicted = [("Evicted", "True", "DeactivatedDueToRequeuingLimitExceeded")];
    let mut by_kueue = workload(&evicted, json!({}));
    by_kueue.spec.active = Some(false);
    assert!(by_kueue.wait().contains("Evicted is True"), "{}", by_kueue.wait());
    let mut status = admission();
    status["admissionChecks"] = json!([
        {"name": "budget", "state": "Ready", "message": ""},
        {"name": "nodes", "state": "Pending", "message": "2 of 4 nodes are there"},
    ]);
    let checked = workload(&[("QuotaReserved", "True", "QuotaReserved")], status);
    assert_eq!(
        checked.wait(),
        "admission check nodes is Pending: 2 of 4 nodes are there"
    );
    assert!(workload(&[], json!({})).wait().contains("has not looked at it yet"));
}

#[test]
fn quota_that_is_returned_without_an_eviction_can_be_had_again_at_once() {
    let now = "2026-01-02T00:00:00Z".parse().unwrap();
    let before = [
        ("QuotaReserved", "True", "QuotaReserved"),
        ("Evicted", "False", "PodsReadyTimeout"),
    ];
    let patch = workload(&before, admission()).without_quota(now);
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    let requeued = conditions
        .iter()
        .find(|condition| condition["type"] == "Requeued")
        .unwrap();
    assert_eq!(
        (&requeued["status"], &requeued["reason"]),
        (&json!("True"), &json!("Pending"))
    );
}

#[test]
fn kueue_is_told_of_each_change_of_the_pods_and_of_their_first_start_apart_from_a_recovery() {
    let now = "2026-01-02T00:00:00Z".parse().unwrap();
    let before = "2026-01-01T00:00:00Z";
    let change = "2026-01-02T00:00:00Z";
    // The known condition, whether the pods are ready; the condition that is written, and since when it holds.
    type Told = Option<(&'static str, &'static str)>;
    type Case = (Told, bool, Told, &'static str);
    let cases: [Case; 10] = [
        (None, false, None, ""),
        (None, true, Some(("True", "Started")), change),
        (Some(("False", "WaitForStart")), false, None, ""),
        (Some(("False", "WaitForStart")), true, Some(("True", "Started")), change),
        (Some(("True", "Started")), true, None, ""),
        (
            Some(("True", "Started")),
            false,
            Some(("False", "WaitForRecovery")),
            change,
        ),
        (Some(("False", "WaitForRecovery")), false, None, ""),
        (
            Some(("False", "WaitForRecovery")),
            true,
            Some(("True", "Recovered")),
            change,
        ),
        (Some(("True", "Recovered")), true, None, ""),
        (
            Some(("True", "Recovered")),
            false,
            Some(("False", "WaitForRecovery")),
            change,
        ),
    ];
    for (known, ready, wanted, since) in cases {
        let mut conditions = vec![("Admitted", "True", "Admitted")];
        conditions.extend(known.map(|(status, reason)| ("PodsReady", status, reason)));
        let workload = workload(&conditions, admission());
        let has_started = known.is_some_and(|(status, reason)| status == "True" || reason == "WaitForRecovery");
        assert_eq!(workload.has_started(), has_started, "{known:?}");
        let patch = workload.with_pods_ready(ready, now);
        let Some(patch) = patch else {
            assert_eq!(wanted, None, "{known:?} {ready}");
            continue;
        };
        let written = patch["status"]["conditions"].as_array().unwrap();
        assert_eq!(written.len(), 2, "the other conditions stay: {written:?}");
        assert_eq!(written[0]["lastTransitionTime"], before);
        let told = (
            written[1]["status"].as_str().unwrap(),
            written[1]["reason"].as_str().unwrap(),
        );
        assert_eq!(Some(told), wanted, "{known:?} {ready}");
        assert_eq!(written[1]["lastTransitionTime"], since);
        assert_eq!(patch["status"].get("admission"), None, "the quota stays");
    }
}
