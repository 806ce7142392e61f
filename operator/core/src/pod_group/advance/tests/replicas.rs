//! Groups with a rolling update that serve: the replicas of an engine.

use jiff::SignedDuration;
use proptest::prelude::*;

use super::{super::*, now};
use crate::{
    fixtures::{ended, running},
    names::PodKey,
    pod_group::unit::LOST_AFTER,
};

fn wanted(groups: u32, size: u32, max_surge: u32, max_unavailable: u32) -> PodGroups {
    PodGroups {
        groups,
        size,
        update: UpdatePolicy::Rolling {
            template: "new".into(),
            max_surge,
            max_unavailable,
        },
        limit: None,
        fault_code: None,
        ranks_report_peers: false,
        mark: None,
        start: None,
        same_devices: false,
    }
}

fn key(group: u32, attempt: u32, rank: u32) -> PodKey {
    PodKey { group, attempt, rank }
}

fn member(key: PodKey, template: &str, state: PodState) -> PodFacts {
    let name = format!("p-engine-{}-{}-{}", key.group, key.attempt, key.rank);
    PodFacts {
        group: key.group,
        template: Some(template.into()),
        state,
        ..PodFacts::just_made(name, key.attempt, key.rank)
    }
}

fn one(group: u32, template: &str, state: PodState) -> PodFacts {
    member(key(group, 1, 0), template, state)
}

fn loading() -> PodState {
    PodState::Running { ready: false }
}

fn disrupted() -> PodState {
    PodState::Failed(Failure {
        disrupted: true,
        message: "preempted".into(),
        ..Failure::default()
    })
}

/// The first attempt of all groups was created.
fn made() -> AttemptStatus {
    AttemptStatus {
        current: 1,
        created: true,
        ..AttemptStatus::default()
    }
}

fn planned(wanted: &PodGroups, pods: &[PodFacts]) -> GroupUpdate {
    advance(wanted, &made(), pods, now())
}

#[test]
fn new_replicas_are_made_with_all_of_their_pods() {
    let update = advance(&wanted(2, 2, 0, 1), &AttemptStatus::default(), &[], now());
    assert_eq!(update.create, [key(0, 1, 0), key(0, 1, 1), key(1, 1, 0), key(1, 1, 1)]);
    assert_eq!(update.status, made());
}

#[test]
fn without_surge_an_old_replica_goes_before_its_successor_comes() {
    let old: Vec<_> = (0..3).map(|number| one(number, "old", running())).collect();
    let update = planned(&wanted(3, 1, 0, 1), &old);
    assert_eq!(
        (update.delete, update.create, update.outdated),
        (vec!["p-engine-0-1-0".to_owned()], vec![], 3)
    );
    let gone = planned(&wanted(3, 1, 0, 1), &old[1..]);
    assert_eq!((gone.delete, gone.create), (vec![], vec![key(0, 1, 0)]));
}

#[test]
fn without_surge_the_number_of_a_replica_is_free_when_its_pods_are_gone() {
    let ending = PodFacts {
        deleting: true,
        ..one(0, "new", running())
    };
    // Of three replicas the second is gone and the first still ends.
    let pods = [ending, one(2, "new", running())];
    assert_eq!(planned(&wanted(3, 1, 0, 1), &pods).create, [key(1, 1, 0)]);
    let gone = planned(&wanted(3, 1, 0, 1), &pods[1..]);
    assert_eq!(gone.create, [key(0, 1, 0), key(1, 1, 0)]);
}

#[test]
fn with_surge_the_successor_serves_before_the_old_replica_goes() {
    let mut pods: Vec<_> = (0..2).map(|number| one(number, "old", running())).collect();
    let wanted = wanted(2, 1, 1, 0);
    let update = planned(&wanted, &pods);
    assert_eq!((update.delete, update.create), (vec![], vec![key(2, 1, 0)]));
    pods.push(one(2, "new", loading()));
    let update = planned(&wanted, &pods);
    assert_eq!((update.delete, update.create), (vec![], vec![]));
    pods[2] = one(2, "new", running());
    let update = planned(&wanted, &pods);
    assert_eq!(
        (update.delete, update.create),
        (vec!["p-engine-0-1-0".to_owned()], vec![])
    );
}

#[test]
fn scaling_down_takes_what_does_not_serve_first_and_then_what_came_last() {
    let pods = [
        one(0, "new", loading()),
        one(1, "new", running()),
        one(2, "new", running()),
    ];
    assert_eq!(
        planned(&wanted(1, 1, 0, 1), &pods).delete,
        ["p-engine-0-1-0", "p-engine-2-1-0"]
    );
    assert_eq!(planned(&wanted(0, 1, 0, 1), &pods).delete.len(), 3);
}

#[test]
fn a_replica_of_several_pods_goes_whole_and_comes_whole() {
    let pods = |state| {
        [
            member(key(0, 1, 0), "new", running()),
            member(key(0, 1, 1), "new", state),
            member(key(1, 1, 0), "new", running()),
            member(key(1, 1, 1), "new", running()),
        ]
    };
    let crashed = pods(ended(1, ""));
    let update = planned(&wanted(2, 2, 0, 1), &crashed);
    assert_eq!(update.delete, ["p-engine-0-1-0", "p-engine-0-1-1"]);
    assert!(update.create.is_empty(), "its devices are not free yet");
    assert_eq!((update.status.current, update.status.consecutive_failures), (2, 1));
    let again = advance(&wanted(2, 2, 0, 1), &update.status, &crashed[2..], now());
    assert_eq!(again.create, [key(0, 2, 0), key(0, 2, 1)], "the other stays as it is");

    for (state, disruptions) in [(disrupted(), 1), (PodState::Succeeded, 0)] {
        let update = planned(&wanted(2, 2, 0, 1), &pods(state));
        assert_eq!(update.delete, ["p-engine-0-1-0", "p-engine-0-1-1"]);
        let status = &update.status;
        assert_eq!((status.consecutive_failures, status.disruptions), (0, disruptions));
    }
    let halved = [member(key(0, 1, 0), "new", running())];
    assert_eq!(planned(&wanted(1, 2, 0, 1), &halved).delete, ["p-engine-0-1-0"]);
}

#[test]
fn the_first_pod_of_a_replica_finishes_its_requests_before_the_others_are_deleted() {
    let wanted = wanted(0, 2, 0, 1);
    let replica = |first: PodFacts, other: PodFacts| [first, other];
    let (first, other) = (
        member(key(0, 1, 0), "new", running()),
        member(key(0, 1, 1), "new", running()),
    );
    let surplus = planned(&wanted, &replica(first.clone(), other.clone()));
    assert_eq!(surplus.delete, ["p-engine-0-1-0"]);

    let draining = PodFacts {
        deleting: true,
        gone_by: Some(now()),
        ..first.clone()
    };
    let drains = planned(&wanted, &replica(draining.clone(), other.clone()));
    assert_eq!(drains.delete, [""; 0]);
    assert_eq!(drains.retry_in, Duration::try_from(LOST_AFTER).ok());
    let lost = advance(
        &wanted,
        &made(),
        &replica(draining.clone(), other.clone()),
        now() + LOST_AFTER,
    );
    assert_eq!(lost.delete, ["p-engine-0-1-1"]);
    // Its readiness probe fails while it drains.
    let unready = PodFacts {
        has_been_ready: true,
        state: PodState::Running { ready: false },
        ..draining.clone()
    };
    let drains = planned(&wanted, &replica(unready.clone(), other.clone()));
    assert_eq!(drains.delete, [""; 0]);
    let out_of_reach = PodFacts {
        node_silent: true,
        ..unready
    };
    let frees = planned(&wanted, &replica(out_of_reach, other.clone()));
    assert_eq!(frees.delete, ["p-engine-0-1-1"]);
    let gone = planned(&wanted, std::slice::from_ref(&other));
    assert_eq!((gone.delete, gone.status), (vec!["p-engine-0-1-1".to_owned()], made()));

    // Without one of them, the first pod can finish nothing.
    let crashed = member(key(0, 1, 1), "new", ended(1, ""));
    assert_eq!(planned(&wanted, &replica(draining, crashed)).delete, ["p-engine-0-1-1"]);
    let taken = PodFacts {
        deleting: true,
        ..other
    };
    assert_eq!(planned(&wanted, &replica(first, taken)).delete, ["p-engine-0-1-0"]);
}

#[test]
fn the_successor_of_a_replica_of_several_pods_waits_for_all_of_them() {
    let wanted = wanted(1, 2, 0, 1);
    let (first, other) = (
        member(key(0, 1, 0), "old", running()),
        member(key(0, 1, 1), "old", running()),
    );
    let outdated = planned(&wanted, &[first, other.clone()]);
    assert_eq!(
        (outdated.delete, outdated.create),
        (vec!["p-engine-0-1-0".to_owned()], vec![])
    );
    let rest = planned(&wanted, &[other]);
    assert_eq!((rest.delete, rest.create), (vec!["p-engine-0-1-1".to_owned()], vec![]));
    assert_eq!(planned(&wanted, &[]).create, [key(0, 1, 0), key(0, 1, 1)]);
}

#[test]
fn a_replica_that_was_interrupted_while_it_was_made_gets_the_rest_of_its_pods() {
    let known = AttemptStatus {
        created: false,
        ..made()
    };
    let half = [member(key(0, 1, 0), "new", running())];
    let update = advance(&wanted(1, 2, 0, 1), &known, &half, now());
    assert_eq!((update.create, update.delete), (vec![key(0, 1, 1)], vec![]));
}

#[test]
fn failures_in_a_row_are_waited_out_longer_each_time_and_forgotten_when_all_serve() {
    let wanted = wanted(1, 1, 0, 1);
    let mut known = made();
    let mut at = now();
    for (n, pause) in [(1, None), (2, Some(5)), (3, Some(10)), (4, Some(20))] {
        let failed = [member(key(0, n, 0), "new", ended(1, ""))];
        let update = advance(&wanted, &known, &failed, at);
        assert_eq!(update.status.consecutive_failures, n);
        let gone = advance(&wanted, &update.status, &[], at);
        assert_eq!(gone.retry_in, pause.map(Duration::from_secs));
        at += SignedDuration::from_secs(pause.unwrap_or(0) as i64);
        let next = advance(&wanted, &gone.status, &[], at);
        assert_eq!(next.create, [key(0, n + 1, 0)]);
        known = next.status;
    }
    let serves = [member(key(0, 5, 0), "new", running())];
    let update = advance(&wanted, &known, &serves, at);
    assert_eq!(
        (update.status.consecutive_failures, update.status.last_failure),
        (0, None)
    );
}

#[test]
fn a_pod_on_a_lost_node_is_waited_for_only_so_long() {
    let ending = PodFacts {
        deleting: true,
        gone_by: Some(now()),
        ..one(0, "new", running())
    };
    let wanted = wanted(1, 1, 0, 1);
    let early = advance(&wanted, &made(), std::slice::from_ref(&ending), now());
    assert_eq!(
        (early.create.len(), early.retry_in),
        (0, Duration::try_from(LOST_AFTER).ok())
    );
    let late = advance(&wanted, &made(), &[ending], now() + LOST_AFTER);
    assert_eq!(late.create, [key(0, 2, 0)], "the name of attempt 1 is not free");
}

proptest! {
    /// From every initial state, repeated updates end with the wanted replicas. They never delete below the floor of
    /// ready replicas and never create more than the ceiling.
    #[test]
    fn every_update_ends_and_stays_between_floor_and_ceiling(
        groups in 0u32..6,
        surge in 0u32..3,
        unavailable in 0u32..3,
        old in prop::collection::vec(any::<bool>(), 0..6),
    ) {
        let unavailable = if surge + unavailable == 0 { 1 } else { unavailable };
        let wanted = wanted(groups, 1, surge, unavailable);
        let mut pods: Vec<PodFacts> = (0..).zip(&old)
            .map(|(number, ready)| one(number, "old", PodState::Running { ready: *ready }))
            .collect();
        let ready = |pods: &[PodFacts]| pods.iter().filter(|pod| pod.is_ready()).count();
        let mut known = made();
        for _ in 0..64 {
            let update = advance(&wanted, &known, &pods, now());
            let before = ready(&pods);
            pods.retain(|pod| !update.delete.contains(&pod.name));
            let floor = groups.saturating_sub(unavailable) as usize;
            prop_assert!(ready(&pods) >= floor.min(before), "{} of {before} ready, floor {floor}", ready(&pods));
            pods.extend(update.create.iter().map(|key| member(*key, "new", loading())));
            prop_assert!(update.create.is_empty() || pods.len() <= (groups + surge) as usize);
            for pod in pods.iter_mut().filter(|pod| pod.template.as_deref() == Some("new")) {
                pod.state = running();
            }
            known = update.status;
        }
        prop_assert_eq!(pods.len(), groups as usize);
        prop_assert!(pods.iter().all(|pod| pod.template.as_deref() == Some("new")));
    }
}
