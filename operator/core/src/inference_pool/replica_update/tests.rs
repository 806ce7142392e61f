use super::*;
use crate::fixtures::{ended, pod, running};
use proptest::prelude::*;

const NOW: &str = "2026-01-01T00:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn policy(max_surge: u32, max_unavailable: u32) -> UpdatePolicy {
    UpdatePolicy {
        max_surge,
        max_unavailable,
        drain_timeout: None,
    }
}

fn member(number: u32, node: u32, template: &str, state: PodState) -> PodFacts {
    PodFacts {
        node,
        template: Some(template.into()),
        ..pod(&format!("p-engine-{number}-{node}"), 1, number, state)
    }
}

fn one(number: u32, template: &str, state: PodState) -> PodFacts {
    member(number, 0, template, state)
}

fn loading() -> PodState {
    PodState::Running { ready: false }
}

fn planned(replicas: u32, nodes: u32, update: &UpdatePolicy, pods: &[PodFacts]) -> ReplicaUpdate {
    let wanted = Wanted {
        replicas,
        nodes,
        template: "new",
        update,
    };
    update_replicas(&wanted, pods, None, now())
}

#[test]
fn without_surge_an_old_replica_goes_before_its_successor_comes() {
    let old: Vec<_> = (0..3).map(|number| one(number, "old", running())).collect();
    let update = planned(3, 1, &policy(0, 1), &old);
    assert_eq!(
        (update.delete, update.create),
        (vec!["p-engine-0-0".to_owned()], vec![])
    );
    let gone = planned(3, 1, &policy(0, 1), &old[1..]);
    assert_eq!((gone.delete, gone.create), (vec![], vec![0]));
}

#[test]
fn with_surge_the_successor_serves_before_the_old_replica_goes() {
    let mut pods: Vec<_> = (0..2).map(|number| one(number, "old", running())).collect();
    let update = planned(2, 1, &policy(1, 0), &pods);
    assert_eq!((update.delete, update.create), (vec![], vec![2]));
    pods.push(one(2, "new", loading()));
    let update = planned(2, 1, &policy(1, 0), &pods);
    assert_eq!((update.delete, update.create), (vec![], vec![]));
    pods[2] = one(2, "new", running());
    let update = planned(2, 1, &policy(1, 0), &pods);
    assert_eq!(
        (update.delete, update.create),
        (vec!["p-engine-0-0".to_owned()], vec![])
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
        planned(1, 1, &policy(0, 1), &pods).delete,
        ["p-engine-0-0", "p-engine-2-0"]
    );
    assert_eq!(planned(0, 1, &policy(0, 1), &pods).delete.len(), 3);
}

#[test]
fn a_replica_of_several_pods_goes_whole_and_comes_whole() {
    let crashed = [
        member(0, 0, "new", running()),
        member(0, 1, "new", ended(1, "")),
        member(1, 0, "new", running()),
        member(1, 1, "new", running()),
    ];
    let update = planned(2, 2, &policy(0, 1), &crashed);
    assert_eq!(update.delete, ["p-engine-0-0", "p-engine-0-1"]);
    assert!(update.create.is_empty());
    assert_eq!(update.failures.map(|failures| failures.consecutive), Some(1));
    let halved = [member(0, 0, "new", running())];
    assert_eq!(planned(1, 2, &policy(0, 1), &halved).delete, ["p-engine-0-0"]);
}

#[test]
fn failures_in_a_row_are_waited_out_longer_each_time_and_forgotten_when_all_serve() {
    let wanted = Wanted {
        replicas: 1,
        nodes: 1,
        template: "new",
        update: &policy(0, 1),
    };
    let failures = Failures {
        consecutive: 3,
        last: Time(now()),
    };
    let held = update_replicas(&wanted, &[], Some(&failures), now());
    assert!(held.create.is_empty());
    assert_eq!(held.again_at, Some(now() + SignedDuration::from_secs(20)));
    let later = update_replicas(&wanted, &[], Some(&failures), now() + SignedDuration::from_secs(20));
    assert_eq!(later.create, [0]);
    let serves = update_replicas(&wanted, &[one(0, "new", running())], Some(&failures), now());
    assert_eq!(serves.failures, None);
}

#[test]
fn a_pod_on_a_lost_node_is_waited_for_only_so_long() {
    let ending = PodFacts {
        deleting: true,
        gone_by: Some(now()),
        ..one(0, "new", running())
    };
    let update = policy(0, 1);
    let wanted = Wanted {
        replicas: 1,
        nodes: 1,
        template: "new",
        update: &update,
    };
    let early = update_replicas(&wanted, std::slice::from_ref(&ending), None, now());
    assert_eq!((early.create.len(), early.again_at), (0, Some(now() + LOST_AFTER)));
    let late = update_replicas(&wanted, &[ending], None, now() + LOST_AFTER);
    assert_eq!(late.create, [1], "its name is not free");
}

proptest! {
    /// Whatever there is, doing what is planned again and again ends with the wanted replicas, never deletes below the
    /// floor of ready ones and never makes more than the ceiling.
    #[test]
    fn every_update_ends_and_stays_between_floor_and_ceiling(
        wanted in 0u32..6,
        surge in 0u32..3,
        unavailable in 0u32..3,
        old in prop::collection::vec(any::<bool>(), 0..6),
    ) {
        let unavailable = if surge + unavailable == 0 { 1 } else { unavailable };
        let update = policy(surge, unavailable);
        let mut pods: Vec<PodFacts> = (0..).zip(&old)
            .map(|(number, ready)| one(number, "old", PodState::Running { ready: *ready }))
            .collect();
        let ready = |pods: &[PodFacts]| pods.iter().filter(|pod| pod.is_ready()).count();
        for _ in 0..64 {
            let update = planned(wanted, 1, &update, &pods);
            let before = ready(&pods);
            pods.retain(|pod| !update.delete.contains(&pod.name));
            let floor = wanted.saturating_sub(unavailable) as usize;
            prop_assert!(ready(&pods) >= floor.min(before), "{} of {before} ready, floor {floor}", ready(&pods));
            pods.extend(update.create.iter().map(|number| one(*number, "new", loading())));
            prop_assert!(update.create.is_empty() || pods.len() <= (wanted + surge) as usize);
            for pod in pods.iter_mut().filter(|pod| pod.template.as_deref() == Some("new")) {
                pod.state = running();
            }
        }
        prop_assert_eq!(pods.len(), wanted as usize);
        prop_assert!(pods.iter().all(|pod| pod.template.as_deref() == Some("new")));
    }
}
