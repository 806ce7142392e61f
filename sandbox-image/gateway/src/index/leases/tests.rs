//! Reset sandboxes: another container in the same pod.

use super::*;
use crate::index::tests::{bounds, bring_up, delete, leased, plan, request};
use grpo_sandbox_protocol::Priority;

/// Lease a is held in pod p1 of a pool that resets.
fn resetting(max: usize) -> (Index, u32) {
    let (mut index, next) = leased(bounds(max, 0));
    index.resets = true;
    (index, next)
}

fn reset() -> Action {
    let (name, ip, lease) = ("p1".into(), "10.0.0.1".into(), "a".into());
    Action::Reset {
        name,
        ip,
        lease,
        epoch: 1,
    }
}

/// Releases lease a, and checks the resulting actions.
fn given_back(index: &mut Index) {
    let actions = index.release("a", 10);
    assert!(
        matches!(&actions[..], [Action::Forget { cause: None, .. }, last] if *last == reset()),
        "{actions:?}"
    );
}

#[test]
fn a_pod_that_is_given_back_is_leased_again_once_sandboxd_has_ended_and_answers_anew() {
    let (mut index, mut next) = resetting(1);
    given_back(&mut index);
    assert_eq!(index.release("a", 10), [], "releasing twice is once");
    index.wait(request("b", "x", Priority::Agent), 10).unwrap();
    // The old sandboxd may still answer.
    index.ready("p1");
    assert_eq!(plan(&mut index, 10, &mut next), []);
    assert_eq!(index.restarting("p1", 7), None, "that was another lease's order");
    assert_eq!(index.restarting("p1", 1).as_deref(), Some("10.0.0.1"));
    assert_eq!(plan(&mut index, 11, &mut next), []);
    index.ready("p1");
    assert_eq!(plan(&mut index, 12, &mut next), [Action::Grant { lease: "b".into() }]);
    let held = &index.leases["b"].entry;
    assert_eq!((held.sandbox.as_str(), held.restarts), ("p1", 1));
    assert_eq!(
        index.restarted("p1", 1, SandboxCause::Unknown, 13),
        [],
        "it was told to"
    );
}

#[test]
fn a_pod_of_the_egress_probe_is_not_kept_for_the_next_probe() {
    let (mut index, _) = resetting(1);
    index.leases.get_mut("a").unwrap().entry.run = PROBE_RUN.to_owned();
    let actions = index.release("a", 10);
    assert!(!actions.contains(&reset()), "{actions:?}");
    assert!(index.sandboxes.is_empty(), "{actions:?}");
}

#[test]
fn a_container_that_does_not_come_back_in_time_is_replaced_by_another_pod() {
    for sandboxd_heard in [false, true] {
        let (mut index, mut next) = resetting(1);
        given_back(&mut index);
        if sandboxd_heard {
            index.restarting("p1", 1);
        }
        index.wait(request("b", "x", Priority::Agent), 10).unwrap();
        let until = 10 + RESTART_WITHIN;
        assert_eq!(index.next_deadline(10), Some(until));
        assert_eq!(plan(&mut index, until - 1, &mut next), []);
        assert_eq!(plan(&mut index, until, &mut next)[0], delete("p1"));
        index.deleting("p1");
        let made = plan(&mut index, until, &mut next);
        assert!(matches!(&made[..], [Action::Create { .. }]), "{made:?}");
    }
}

#[test]
fn whoever_holds_a_sandbox_whose_container_began_anew_without_being_told_has_lost_it() {
    let (mut index, _) = resetting(2);
    let lost = index.restarted("p1", 1, SandboxCause::Unknown, 10);
    assert_eq!(lost[0], delete("p1"));
    assert_eq!(index.cause_of("a"), Some(SandboxCause::Unknown));
    assert!(index.leases.is_empty());
}

#[test]
fn the_watch_may_tell_of_the_new_container_before_sandboxd_says_that_it_ends() {
    let (mut index, _) = resetting(2);
    given_back(&mut index);
    assert_eq!(index.restarted("p1", 1, SandboxCause::Unknown, 11), []);
    assert!(index.restarting("p1", 1).is_some());
    assert_eq!(index.restarted("p1", 1, SandboxCause::Unknown, 12), []);
    assert_eq!(index.restarted("p1", 2, SandboxCause::Unknown, 13), [delete("p1")]);
}

#[test]
fn what_is_given_back_by_itself_or_before_it_was_granted_goes_as_ever() {
    let (mut index, mut next) = resetting(2);
    let expired = plan(&mut index, 200_000, &mut next);
    assert!(expired.contains(&delete("p1")), "{expired:?}");
    index.wait(request("b", "x", Priority::Agent), 200_000).unwrap();
    let made = plan(&mut index, 200_000, &mut next);
    bring_up(&mut index, &made);
    plan(&mut index, 200_000, &mut next);
    let given_back = index.release("b", 200_001);
    assert!(given_back.contains(&delete("p2")), "{given_back:?}");
}

#[test]
fn a_reset_pod_that_nobody_wants_makes_room_for_another_image() {
    let (mut index, mut next) = resetting(1);
    given_back(&mut index);
    index.restarting("p1", 1);
    index.wait(request("b", "y", Priority::Agent), 10).unwrap();
    assert_eq!(plan(&mut index, 10, &mut next), [delete("p1")]);
}
