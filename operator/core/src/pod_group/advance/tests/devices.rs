//! Attempts whose pods name the same devices, and so could use them at the same time.

use super::{super::*, attempt, crashed, group, now, pod, ranks, running};
use crate::pod_group::unit::LOST_AFTER;

fn same_devices(size: u32) -> PodGroups {
    PodGroups {
        same_devices: true,
        ..group(size)
    }
}

/// A pod of attempt 1 on a node, which is being deleted.
fn ending(rank: u32, state: PodState) -> PodFacts {
    PodFacts {
        deleting: true,
        gone_by: Some(now() + Duration::from_secs(30)),
        node_name: Some("gpu-1".into()),
        ..pod(1, rank, state)
    }
}

/// The record after the end of attempt 1.
fn second() -> AttemptStatus {
    AttemptStatus {
        created: false,
        ..attempt(2)
    }
}

#[test]
fn the_next_attempt_waits_while_a_pod_of_the_last_one_may_use_the_devices() {
    let lost = PodFacts {
        gone_by: now().checked_sub(LOST_AFTER).ok(),
        ..ending(0, running())
    };
    let on_no_node = PodFacts {
        node_name: None,
        ..ending(0, PodState::Running { ready: false })
    };
    let undeleted = PodFacts {
        deleting: false,
        gone_by: None,
        ..ending(0, running())
    };
    for (last, waits) in [
        (ending(0, running()), true),
        (ending(0, PodState::Running { ready: false }), true),
        (undeleted, true),
        (ending(0, crashed(1)), false),
        (ending(0, PodState::Succeeded), false),
        (lost, false),
        (on_no_node, false),
    ] {
        let update = advance(&same_devices(2), &second(), std::slice::from_ref(&last), now());
        let made: &[u32] = if waits { &[] } else { &[0, 1] };
        assert_eq!(ranks(&update), made, "{last:?}");
        assert_eq!(update.status.created, !waits, "what is not made cannot be lost");
        assert_eq!(update.status.current, 2);
        let update = advance(&group(2), &second(), std::slice::from_ref(&last), now());
        assert_eq!(ranks(&update), [0, 1], "with devices of its own: {last:?}");
    }
}

#[test]
fn the_pod_that_is_waited_for_is_named_with_its_node_and_waited_for_until_its_node_counts_as_lost() {
    let update = advance(&same_devices(1), &second(), &[ending(0, running())], now());
    let GroupState::Pausing { message } = &update.state else {
        panic!("{:?}", update.state);
    };
    for words in [
        "attempt 2 waits",
        "demo-trainer-1-0 on node gpu-1",
        "kubectl describe pod demo-trainer-1-0",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let until = Duration::from_secs(30) + Duration::try_from(LOST_AFTER).unwrap();
    assert_eq!(update.retry_in, Some(until));
}

#[test]
fn the_end_of_an_attempt_is_counted_once_however_long_its_pods_end() {
    let pods = [pod(1, 0, running()), pod(1, 1, crashed(1))];
    let first = advance(&same_devices(2), &attempt(1), &pods, now());
    assert_eq!(first.delete, ["demo-trainer-1-0", "demo-trainer-1-1"]);
    assert_eq!((first.status.current, ranks(&first)), (2, vec![]));
    assert_eq!(first.ended, Some((1, "exit code 1".into())));
    let left = [ending(0, running()), ending(1, crashed(1))];
    let later = advance(&same_devices(2), &first.status, &left, now());
    assert_eq!((later.ended, later.status.consecutive_failures), (None, 1));
    let gone = advance(&same_devices(2), &later.status, &left[1..], now());
    assert_eq!((gone.status.current, ranks(&gone)), (2, vec![0, 1]));
}

#[test]
fn an_attempt_that_runs_is_not_disturbed_by_what_is_left_of_an_earlier_one() {
    let pods = [ending(0, running()), pod(2, 0, running())];
    let update = advance(&same_devices(1), &attempt(2), &pods, now());
    assert_eq!(update.state, GroupState::Running);
    assert!(update.create.is_empty() && update.delete.is_empty());
}
