//! A trainer of four pods under every fault of a cluster, with statuses as API servers report them.

use serde_json::{Value, json};

use super::{super::*, ranks};

const START: Duration = Duration::from_secs(1800);

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Ten minutes after the pods started.
fn now() -> Timestamp {
    at("2026-01-01T00:10:00Z")
}

fn group() -> PodGroups {
    PodGroups {
        groups: 1,
        size: 4,
        update: UpdatePolicy::Recreate,
        limit: Some(3),
        fault_code: None,
        ranks_report_peers: true,
        mark: Some("l1-v3".into()),
        start: Some(START),
        same_devices: false,
    }
}

/// Third attempt; two failures since version 3 was published.
fn known() -> AttemptStatus {
    AttemptStatus {
        current: 3,
        created: true,
        consecutive_failures: 2,
        progress_mark: Some("l1-v3".into()),
        ..AttemptStatus::default()
    }
}

fn ready(status: &str, since: &str) -> Value {
    json!({"type": "Ready", "status": status, "lastTransitionTime": since})
}

fn container(state: Value) -> Value {
    json!([{"name": "trainer", "image": "example.com/trainer:1", "imageID": "", "ready": true, "restartCount": 0, "state": state}])
}

fn runs() -> Value {
    json!({
        "phase": "Running",
        "conditions": [ready("True", "2026-01-01T00:01:00Z")],
        "containerStatuses": container(json!({"running": {"startedAt": "2026-01-01T00:00:30Z"}})),
    })
}

fn not_ready_yet() -> Value {
    let mut status = runs();
    status["conditions"] = json!([ready("False", "2026-01-01T00:00:10Z")]);
    status
}

fn ended(code: i32, reason: &str, words: &str, second: u32) -> Value {
    let terminated = json!({"terminated": {
        "exitCode": code, "reason": reason, "message": words, "finishedAt": format!("2026-01-01T00:09:{second:02}Z"),
    }});
    json!({"phase": "Failed", "containerStatuses": container(terminated)})
}

fn disrupted(mut status: Value, reason: &str) -> Value {
    let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "the cluster wants its node"});
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    status["conditions"] = Value::Array([conditions, vec![condition]].concat());
    status
}

fn lost_its_peers(second: u32) -> Value {
    ended(
        44,
        "Error",
        "all-gather on rank 0 of 4: connection closed by peer",
        second,
    )
}

fn hung(rank: u32, second: u32) -> Value {
    let words = json!({"message": format!("rank 0 waited 120 s in all-gather of step 4: rank {rank} did not arrive"), "ranks": [rank], "pods": [rank]});
    ended(43, "Error", &words.to_string(), second)
}

fn pod(rank: usize, status: Value, deleted: bool) -> PodFacts {
    let mut pod = json!({
        "metadata": {
            "name": format!("demo-trainer-3-{rank}"),
            "labels": {"grpo.dev/attempt": "3", "grpo.dev/rank": rank.to_string()},
        },
        "spec": {"nodeName": format!("gpu-{rank}"), "containers": []},
        "status": status,
    });
    if deleted {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:09:30Z");
    }
    PodFacts::of(&serde_json::from_value(pod).unwrap())
}

fn pods(statuses: [Value; 4]) -> Vec<PodFacts> {
    statuses
        .into_iter()
        .enumerate()
        .map(|(rank, status)| pod(rank, status, false))
        .collect()
}

fn told(update: &GroupUpdate) -> &str {
    &update.ended.as_ref().unwrap().1
}

/// The next attempt begins at once, and the failure is not counted.
fn begins_again_uncounted(update: &GroupUpdate) {
    assert_eq!(
        (update.status.current, ranks(update)),
        (4, vec![0, 1, 2, 3]),
        "{update:?}"
    );
    assert_eq!(update.status.consecutive_failures, 2, "{update:?}");
    assert_eq!(update.retry_in, None);
}

#[test]
fn a_pod_that_was_deleted_is_not_counted_whether_it_is_still_seen_or_not() {
    let mut killed = pods([runs(), runs(), runs(), lost_its_peers(20)]);
    killed[2] = pod(2, runs(), true);
    let update = advance(&group(), &known(), &killed, now());
    begins_again_uncounted(&update);
    assert!(told(&update).contains("demo-trainer-3-2 was deleted"), "{update:?}");

    killed.remove(2);
    let update = advance(&group(), &known(), &killed, now());
    begins_again_uncounted(&update);
    assert!(told(&update).contains("rank 2 was deleted"), "{update:?}");
}

#[test]
fn a_lost_node_whose_pod_never_finishes_terminating_does_not_hold_up_the_next_attempt() {
    let mut unreachable = disrupted(runs(), "DeletionByTaintManager");
    unreachable["conditions"][0] = ready("False", "2026-01-01T00:08:00Z");
    let mut seen = pods([runs(), runs(), runs(), runs()]);
    seen[1] = pod(1, unreachable, true);
    let update = advance(&group(), &known(), &seen, now());
    begins_again_uncounted(&update);
    assert_eq!(
        update.delete,
        ["demo-trainer-3-0", "demo-trainer-3-2", "demo-trainer-3-3"],
        "the stuck one is deleted already"
    );
    assert!(
        told(&update).contains("demo-trainer-3-1 was taken away by the cluster (DeletionByTaintManager)"),
        "{update:?}"
    );

    // The pod still exists when the next attempt runs, and is ignored.
    let mut later = vec![seen[1].clone()];
    later.extend((0..4).map(|rank| PodFacts {
        attempt: 4,
        name: format!("demo-trainer-4-{rank}"),
        ..pod(rank, runs(), false)
    }));
    let again = advance(&group(), &update.status, &later, now());
    assert_eq!((again.state, again.delete.len()), (GroupState::Running, 0));
}

#[test]
fn an_image_that_cannot_be_pulled_is_waited_for_however_long() {
    let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}});
    let pulling = json!({"phase": "Pending", "containerStatuses": container(waiting)});
    let seen = pods([not_ready_yet(), not_ready_yet(), not_ready_yet(), pulling]);
    let update = advance(&group(), &known(), &seen, at("2026-01-03T00:00:00Z"));
    assert!(
        matches!(&update.state, GroupState::Starting { message } if message.contains("example.com/trainer:1")),
        "{update:?}"
    );
    assert_eq!((update.status, update.retry_in), (known(), None));
}

#[test]
fn a_drained_and_a_preempted_pod_are_not_counted_whatever_the_others_say_then() {
    for (reason, code) in [("EvictionByEvictionAPI", 143), ("PreemptionByScheduler", 137)] {
        let gone = disrupted(ended(code, "Error", "told to end", 30), reason);
        let seen = pods([
            lost_its_peers(31),
            gone,
            lost_its_peers(29),
            ended(1, "Error", "also", 31),
        ]);
        let update = advance(&group(), &known(), &seen, now());
        begins_again_uncounted(&update);
        assert!(told(&update).contains(reason), "{update:?}");
    }
}

#[test]
fn a_hung_rank_counts_is_named_with_its_pod_and_its_node_is_avoided_from_then_on() {
    let seen = pods([hung(2, 20), lost_its_peers(19), runs(), hung(2, 20)]);
    let update = advance(
        &group(),
        &AttemptStatus {
            consecutive_failures: 0,
            ..known()
        },
        &seen,
        now(),
    );
    for words in [
        "rank 2 did not arrive",
        "all-gather of step 4",
        "pod demo-trainer-3-2 on node gpu-2",
    ] {
        assert!(told(&update).contains(words), "{update:?}");
    }
    assert_eq!(update.status.avoid_nodes, ["gpu-2"]);
    assert_eq!((update.status.consecutive_failures, update.create.len()), (1, 4));
}

#[test]
fn a_rank_that_hangs_because_its_node_is_gone_is_the_clusters_doing() {
    let mut out_of_reach = runs();
    out_of_reach["conditions"] = json!([ready("False", "2026-01-01T00:08:00Z")]);
    let seen = pods([hung(2, 20), hung(2, 20), out_of_reach, hung(2, 20)]);
    let update = advance(&group(), &known(), &seen, now());
    begins_again_uncounted(&update);
    assert!(told(&update).contains("whose node does not answer"), "{update:?}");
    assert_eq!(update.status.avoid_nodes, ["gpu-2"]);
}

#[test]
fn avoided_nodes_are_bounded_newest_last_and_forgotten_when_something_is_finished() {
    let full = AttemptStatus {
        consecutive_failures: 0,
        avoid_nodes: (0..8).map(|n| format!("gpu-{n}")).collect(),
        ..known()
    };
    let seen = pods([hung(2, 20), runs(), runs(), runs()]);
    let update = advance(&group(), &full, &seen, now());
    let names: Vec<&str> = update.status.avoid_nodes.iter().map(String::as_str).collect();
    assert_eq!(
        names,
        ["gpu-0", "gpu-1", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-7", "gpu-2"]
    );

    let others = AttemptStatus {
        avoid_nodes: (10..18).map(|n| format!("gpu-{n}")).collect(),
        ..full
    };
    let update = advance(&group(), &others, &seen, now());
    assert_eq!(update.status.avoid_nodes.len(), 8);
    assert_eq!(update.status.avoid_nodes[7], "gpu-2");
    assert_eq!(update.status.avoid_nodes[0], "gpu-11");

    let further = PodGroups {
        mark: Some("l1-v4".into()),
        ..group()
    };
    let update = advance(&further, &others, &pods([runs(), runs(), runs(), runs()]), now());
    assert_eq!(update.status.avoid_nodes, [] as [&str; 0]);
}

#[test]
fn of_four_ranks_the_last_lines_of_the_one_that_failed_are_told_and_not_those_of_its_peers() {
    let out_of_memory = ended(137, "OOMKilled", "step 4\npacking\nallocating 40 GiB\n", 21);
    let seen = pods([
        lost_its_peers(20),
        lost_its_peers(21),
        out_of_memory,
        lost_its_peers(22),
    ]);
    let update = advance(
        &group(),
        &AttemptStatus {
            consecutive_failures: 0,
            ..known()
        },
        &seen,
        now(),
    );
    assert!(
        told(&update).ends_with("exit code 137 (OOMKilled): step 4 | packing | allocating 40 GiB"),
        "{update:?}"
    );
    assert_eq!(update.status.consecutive_failures, 1);
}

/// One rank in each pod; the pod ends as NCCL ended the rank.
#[test]
fn a_rank_that_nccl_aborted_is_not_told_as_the_cause_where_another_failed_by_itself() {
    let aborted = |second| ended(134, "Error", "Watchdog caught collective operation timeout", second);
    let known = AttemptStatus {
        consecutive_failures: 0,
        ..known()
    };
    let failed = ended(1, "Error", "CUDA error: device-side assert", 25);
    let seen = pods([aborted(20), lost_its_peers(19), failed, aborted(21)]);
    let update = advance(&group(), &known, &seen, now());
    assert!(
        told(&update).ends_with("exit code 1: CUDA error: device-side assert"),
        "{update:?}"
    );

    let seen = pods([lost_its_peers(19), lost_its_peers(19), aborted(20), lost_its_peers(19)]);
    let update = advance(&group(), &known, &seen, now());
    assert!(told(&update).contains("Watchdog caught"), "{update:?}");
    assert_eq!(update.status.consecutive_failures, 1);
}

#[test]
fn of_two_that_failed_by_themselves_the_first_is_told() {
    let seen = pods([
        ended(9, "Error", "second", 30),
        runs(),
        ended(8, "Error", "first", 20),
        runs(),
    ]);
    let update = advance(
        &group(),
        &AttemptStatus {
            consecutive_failures: 0,
            ..known()
        },
        &seen,
        now(),
    );
    assert!(told(&update).ends_with("exit code 8: first"), "{update:?}");
}

#[test]
fn a_lost_peer_alone_is_given_a_moment_for_its_cause_to_be_seen_and_no_longer() {
    let seen = pods([lost_its_peers(58), runs(), runs(), runs()]);
    let update = advance(&group(), &known(), &seen, now());
    assert_eq!((update.retry_in, &update.ended), (Some(Duration::from_secs(1)), &None));
    assert_eq!(update.status, known());

    let update = advance(
        &group(),
        &AttemptStatus {
            consecutive_failures: 0,
            ..known()
        },
        &seen,
        at("2026-01-01T00:10:01Z"),
    );
    assert!(told(&update).contains("connection closed by peer"), "{update:?}");
    assert_eq!(update.status.consecutive_failures, 1);
}

#[test]
fn ranks_that_are_not_ready_within_the_deadline_are_named_and_the_attempt_is_over() {
    let seen = pods([runs(), not_ready_yet(), runs(), not_ready_yet()]);
    let update = advance(&group(), &known(), &seen, now());
    assert_eq!(update.retry_in, Some(Duration::from_secs(1800 - 570)));
    assert!(
        matches!(&update.state, GroupState::Starting { message } if message.contains("rank 1 (pod demo-trainer-3-1 on node gpu-1), rank 3")),
        "{update:?}"
    );

    let known = AttemptStatus {
        consecutive_failures: 0,
        ..known()
    };
    let update = advance(&group(), &known, &seen, at("2026-01-01T00:30:30Z"));
    for words in [
        "2 of 4 pods",
        "1800 s",
        "spec.trainer.deadlines.start",
        "rank 1 (pod",
        "rank 3 (pod",
    ] {
        assert!(told(&update).contains(words), "{words}: {update:?}");
    }
    assert_eq!((update.status.consecutive_failures, update.create.len()), (1, 4));
}

#[test]
fn the_start_deadline_begins_with_the_last_pod_and_is_over_once_all_were_ready() {
    let mut late = not_ready_yet();
    late["containerStatuses"] = container(json!({"running": {"startedAt": "2026-01-01T05:00:00Z"}}));
    let update = advance(
        &group(),
        &known(),
        &pods([runs(), runs(), runs(), late]),
        at("2026-01-01T05:10:00Z"),
    );
    assert_eq!(update.retry_in, Some(Duration::from_secs(1200)));

    let mut out_of_reach = runs();
    out_of_reach["conditions"] = json!([ready("False", "2026-01-01T06:00:00Z")]);
    let update = advance(
        &group(),
        &known(),
        &pods([runs(), runs(), runs(), out_of_reach]),
        at("2026-01-01T06:01:00Z"),
    );
    assert_eq!((&update.ended, &update.create), (&None, &vec![]));
    assert!(
        matches!(&update.state, GroupState::Starting { message } if message.contains("gpu-3") && message.contains("out of reach")),
        "{update:?}"
    );
}

#[test]
fn a_termination_message_that_is_no_verdict_is_told_as_it_is() {
    let seen = pods([ended(43, "Error", "not JSON", 20), runs(), runs(), runs()]);
    let update = advance(
        &group(),
        &AttemptStatus {
            consecutive_failures: 0,
            ..known()
        },
        &seen,
        now(),
    );
    assert!(told(&update).ends_with("exit code 43: not JSON"), "{update:?}");
    assert_eq!(update.status.avoid_nodes, [] as [&str; 0]);
}

/// A device plugin that has just restarted refuses every pod for a while.
#[test]
fn pods_that_kubelets_refuse_end_no_run_have_growing_pauses_and_their_nodes_are_avoided() {
    let refused = || {
        json!({"phase": "Failed", "reason": "UnexpectedAdmissionError",
               "message": "Allocate failed due to no healthy devices present"})
    };
    let mut known = known();
    let mut pauses = Vec::new();
    for attempt in 3..13 {
        let mut seen = pods([runs(), runs(), refused(), runs()]);
        for pod in &mut seen {
            pod.attempt = attempt;
        }
        let update = advance(&group(), &known, &seen, now());
        assert_eq!(update.status.consecutive_failures, 2, "{update:?}");
        assert_eq!(update.status.avoid_nodes, ["gpu-2"]);
        assert!(told(&update).contains("no healthy devices"), "{update:?}");
        pauses.push(update.retry_in.map_or(0, |pause| pause.as_secs()));
        known = AttemptStatus {
            created: true,
            ..update.status
        };
    }
    assert_eq!(pauses[..4], [0, 5, 10, 20]);
    assert_eq!(pauses[9], 300);
}
