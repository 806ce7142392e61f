mod devices;
mod faults;
mod replicas;

use super::*;
use proptest::prelude::*;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn group(size: u32) -> PodGroups {
    PodGroups {
        groups: 1,
        size,
        update: UpdatePolicy::Recreate,
        limit: Some(4),
        fault_code: Some(42),
        ranks_report_peers: false,
        mark: Some("0/0".into()),
        start: None,
        same_devices: false,
    }
}

/// Ranks of the pods to create, all of them of the current attempt.
fn ranks(update: &GroupUpdate) -> Vec<u32> {
    let keys = update.create.iter();
    keys.inspect(|key| assert_eq!((key.group, key.attempt), (0, update.status.current)))
        .map(|key| key.rank)
        .collect()
}

fn pod(attempt: u32, rank: u32, state: PodState) -> PodFacts {
    PodFacts {
        state,
        ..PodFacts::just_made(format!("demo-trainer-{attempt}-{rank}"), attempt, rank)
    }
}

fn running() -> PodState {
    PodState::Running { ready: true }
}

fn crashed(exit_code: i32) -> PodState {
    PodState::Failed(Failure {
        exit_code: Some(exit_code),
        message: format!("exit code {exit_code}"),
        ..Failure::default()
    })
}

fn preempted() -> PodState {
    PodState::Failed(Failure {
        exit_code: Some(137),
        disrupted: true,
        message: "preempted".into(),
        ..Failure::default()
    })
}

fn pulling() -> PodState {
    PodState::Waiting {
        reason: "ImagePullBackOff".into(),
        message: "cannot get an image".into(),
    }
}

fn attempt(current: u32) -> AttemptStatus {
    AttemptStatus {
        current,
        created: true,
        ..AttemptStatus::default()
    }
}

#[test]
fn a_new_group_makes_all_pods_of_attempt_one() {
    let update = advance(&group(2), &AttemptStatus::default(), &[], now());
    assert_eq!((update.status.current, ranks(&update)), (1, vec![0, 1]));
    assert!(update.status.created);
}

#[test]
fn a_group_whose_pods_run_is_left_alone() {
    let pods = [pod(1, 0, running()), pod(1, 1, running())];
    let update = advance(&group(2), &attempt(1), &pods, now());
    assert_eq!(update, GroupUpdate::nothing(attempt(1), vec![], GroupState::Running));
}

#[test]
fn one_failed_rank_ends_the_attempt_and_the_next_begins_at_once() {
    let pods = [pod(1, 0, running()), pod(1, 1, crashed(1))];
    let update = advance(&group(2), &attempt(1), &pods, now());
    assert_eq!(update.delete, ["demo-trainer-1-0", "demo-trainer-1-1"]);
    assert_eq!(
        (
            update.status.current,
            ranks(&update),
            update.status.consecutive_failures
        ),
        (2, vec![0, 1], 1)
    );
    assert_eq!(update.ended, Some((1, "exit code 1".into())));
}

#[test]
fn the_second_failure_in_a_row_is_followed_by_a_pause_and_then_by_an_attempt() {
    let known = AttemptStatus {
        consecutive_failures: 1,
        progress_mark: Some("0/0".into()),
        ..attempt(2)
    };
    let paused = advance(&group(1), &known, &[pod(2, 0, crashed(1))], now());
    assert_eq!((paused.status.current, paused.create.len()), (3, 0));
    assert_eq!(paused.retry_in, Some(Duration::from_secs(5)));
    assert!(matches!(paused.state, GroupState::Pausing { .. }));

    let later = now().checked_add(Duration::from_secs(5)).unwrap();
    let resumed = advance(&group(1), &paused.status, &[], later);
    assert_eq!((resumed.status.current, ranks(&resumed)), (3, vec![0]));
}

#[test]
fn something_finished_in_between_resets_the_count() {
    let known = AttemptStatus {
        consecutive_failures: 3,
        progress_mark: Some("before".into()),
        ..attempt(4)
    };
    let update = advance(&group(1), &known, &[pod(4, 0, crashed(1))], now());
    assert_eq!((update.status.consecutive_failures, ranks(&update)), (1, vec![0]));
}

#[test]
fn too_many_failures_in_a_row_end_the_group_and_keep_the_last_pods_to_look_at() {
    let known = AttemptStatus {
        consecutive_failures: 3,
        progress_mark: Some("0/0".into()),
        ..attempt(4)
    };
    let update = advance(&group(1), &known, &[pod(4, 0, crashed(9))], now());
    assert!(matches!(&update.state, GroupState::Exhausted { message } if message.contains("exit code 9")));
    assert!(update.create.is_empty() && update.delete.is_empty());
}

#[test]
fn numbers_that_somebody_wrote_into_the_status_end_the_group_in_words_and_not_the_operator() {
    let last = attempt(u32::MAX);
    for pods in [vec![], vec![pod(u32::MAX, 0, crashed(9))]] {
        let update = advance(&group(1), &last, &pods, now());
        assert_eq!((update.status.current, update.create.len()), (u32::MAX, 0));
        assert!(
            matches!(&update.state, GroupState::Exhausted { message } if message.contains("attempt 4294967295 is the last")),
            "{update:?}"
        );
    }

    let known = AttemptStatus {
        consecutive_failures: u32::MAX,
        progress_mark: Some("0/0".into()),
        ..attempt(2)
    };
    let update = advance(&group(1), &known, &[pod(2, 0, crashed(9))], now());
    assert_eq!(update.status.consecutive_failures, u32::MAX);
    assert!(matches!(update.state, GroupState::Exhausted { .. }), "{update:?}");
}

#[test]
fn what_the_cluster_took_away_is_replaced_at_once_and_does_not_count() {
    for pods in [
        vec![pod(3, 0, preempted()), pod(3, 1, crashed(1))],
        vec![pod(3, 0, running())],
        vec![
            pod(3, 0, running()),
            PodFacts {
                deleting: true,
                ..pod(3, 1, running())
            },
        ],
    ] {
        let known = AttemptStatus {
            consecutive_failures: 3,
            progress_mark: Some("0/0".into()),
            ..attempt(3)
        };
        let update = advance(&group(2), &known, &pods, now());
        assert_eq!(
            (
                update.status.current,
                ranks(&update),
                update.status.consecutive_failures
            ),
            (4, vec![0, 1], 3)
        );
    }
}

/// A kubelet that rejects a pod (`NodeAffinity`) may do so again at once.
#[test]
fn pods_that_are_taken_away_before_they_start_have_growing_pauses_and_end_nothing() {
    let rejected = || {
        PodState::Failed(Failure {
            disrupted: true,
            message: "rejected".into(),
            ..Failure::default()
        })
    };
    let mut known = attempt(1);
    let mut pauses = Vec::new();
    for n in 1..=20 {
        let update = advance(&group(1), &known, &[pod(n, 0, rejected())], now());
        assert_eq!((update.status.consecutive_failures, update.status.disruptions), (0, n));
        pauses.push(update.retry_in.map_or(0, |pause| pause.as_secs()));
        if let GroupState::Pausing { message } = &update.state {
            assert!(
                message.contains(&format!("{n} disruptions in a row; the last: rejected")),
                "{message}"
            );
        }
        known = AttemptStatus {
            created: true,
            ..update.status
        };
    }
    assert_eq!(pauses[..4], [0, 5, 10, 20]);
    assert_eq!(pauses[19], 300);
    let ran = advance(&group(1), &known, &[pod(21, 0, preempted())], now());
    assert_eq!((ran.status.disruptions, ranks(&ran)), (0, vec![0]), "it had started");
    let further = PodGroups {
        mark: Some("0/1".into()),
        ..group(1)
    };
    let update = advance(&further, &known, &[pod(21, 0, rejected())], now());
    assert_eq!((update.status.disruptions, ranks(&update)), (1, vec![0]));
}

/// A change while the run was suspended, if the operator saw neither the suspension nor the pods' end.
#[test]
fn a_group_of_another_size_than_its_pods_begins_its_next_attempt_without_a_failure() {
    let pods = [0, 1, 2, 3].map(|rank| pod(1, rank, running()));
    for size in [2, 6] {
        let update = advance(&group(size), &attempt(1), &pods, now());
        assert_eq!((update.status.current, update.status.consecutive_failures), (2, 0));
        assert_eq!(ranks(&update), (0..size).collect::<Vec<_>>());
        assert_eq!(update.delete.len(), 4, "{:?}", update.delete);
    }
    let told = |size: u32| advance(&group(size), &attempt(1), &pods, now()).ended.unwrap().1;
    let (smaller, larger) = (told(2), told(6));
    assert!(
        smaller.contains("demo-trainer-1-2 is of a larger group, and the spec asks for 2 pods now"),
        "{smaller}"
    );
    assert!(
        larger.contains("the group has 4 of the 6 pods that the spec asks for now")
            && larger.contains("the group was made larger"),
        "{larger}"
    );
}

#[test]
fn exit_code_42_is_a_fault_and_never_tried_again() {
    let update = advance(&group(1), &attempt(1), &[pod(1, 0, crashed(42))], now());
    assert!(matches!(update.state, GroupState::Fault(_)));
    assert!(update.create.is_empty());
}

#[test]
fn images_are_waited_for_and_the_message_says_so() {
    let pods = [
        PodFacts::just_made("demo-trainer-1-0".into(), 1, 0),
        pod(1, 1, pulling()),
    ];
    let update = advance(&group(2), &attempt(1), &pods, now());
    assert_eq!(
        update.state,
        GroupState::Starting {
            message: "cannot get an image".into()
        }
    );
    assert!(update.create.is_empty() && update.delete.is_empty());
}

#[test]
fn pods_that_never_finish_terminating_do_not_hold_up_the_next_attempt() {
    let stuck = PodFacts {
        deleting: true,
        ..pod(1, 0, running())
    };
    let update = advance(
        &group(1),
        &AttemptStatus {
            created: false,
            ..attempt(2)
        },
        &[stuck],
        now(),
    );
    assert_eq!((ranks(&update), update.delete.len()), (vec![0], 0));
}

#[test]
fn pods_of_a_later_attempt_than_the_one_written_down_are_adopted() {
    let update = advance(&group(2), &attempt(1), &[pod(2, 0, running())], now());
    assert_eq!((update.status.current, ranks(&update)), (2, vec![1]));
    assert_eq!(update.ended, None);
}

#[test]
fn a_group_has_succeeded_when_every_rank_has() {
    let pods = [pod(1, 0, PodState::Succeeded), pod(1, 1, running())];
    assert_eq!(advance(&group(2), &attempt(1), &pods, now()).state, GroupState::Running);
    let pods = [pod(1, 0, PodState::Succeeded), pod(1, 1, PodState::Succeeded)];
    assert_eq!(
        advance(&group(2), &attempt(1), &pods, now()).state,
        GroupState::Succeeded
    );
}

fn any_state() -> impl Strategy<Value = PodState> {
    prop_oneof![
        Just(running()),
        Just(pulling()),
        Just(PodState::Succeeded),
        Just(preempted()),
        (1..=2i32).prop_map(crashed),
    ]
}

proptest! {
    /// For every history of pod states: no pod exists twice, no rank is created twice in an attempt, attempts only
    /// grow, and the group ends or keeps pods of one attempt only.
    #[test]
    fn attempts_only_grow_and_never_mix(
        size in 1u32..4,
        history in prop::collection::vec(prop::collection::vec((any_state(), any::<bool>()), 4), 1..30),
    ) {
        let group = group(size);
        let mut status = AttemptStatus::default();
        let mut pods: Vec<PodFacts> = Vec::new();
        let mut at = now();
        for change in history {
            let update = advance(&group, &status, &pods, at);
            prop_assert!(update.status.current >= status.current);
            prop_assert!(Some(update.status.consecutive_failures) <= group.limit);
            status = update.status.clone();
            pods.retain(|pod| !update.delete.contains(&pod.name));
            for rank in ranks(&update) {
                prop_assert!(!pods.iter().any(|pod| pod.attempt == status.current && pod.rank == rank));
                pods.push(PodFacts::just_made(format!("p-{}-{rank}", status.current), status.current, rank));
            }
            prop_assert!(pods.iter().filter(|pod| !pod.deleting).all(|pod| pod.attempt == status.current));
            if matches!(update.state, GroupState::Exhausted { .. } | GroupState::Fault(_) | GroupState::Succeeded) {
                return Ok(());
            }
            for (pod, (state, deleting)) in pods.iter_mut().zip(change) {
                if !pod.is_finished() {
                    pod.state = state;
                    pod.deleting |= deleting;
                }
            }
            at = at.checked_add(update.retry_in.unwrap_or(Duration::from_secs(1))).unwrap();
        }
    }
}
