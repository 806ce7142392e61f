//! The guarantees of the pool, checked on the index alone.

mod chaos;

use std::collections::HashSet;

use super::*;
use crate::pull::{Culprit, PullFailure};
use grpo_sandbox_protocol::{ErrorCode, LeaseRequest, Priority};
use proptest::prelude::*;

pub(super) fn bounds(max: usize, reserved: usize) -> Bounds {
    Bounds {
        max,
        reserved,
        warm_max: max,
        orders: 64,
        waiting: 10_000,
        per_node: None,
        max_ttl_millis: 100_000,
        idle_millis: 1_000_000,
    }
}

pub(super) fn request(id: &str, image: &str, priority: Priority) -> LeaseRequest {
    LeaseRequest {
        id: id.into(),
        run: "r".into(),
        image: image.into(),
        ttl_seconds: 60,
        wait_seconds: 30,
        priority,
    }
}

/// Plans with names p0, p1, … and returns the actions.
pub(super) fn plan(index: &mut Index, now: i64, next: &mut u32) -> Vec<Action> {
    index.plan(now, || {
        *next += 1;
        format!("p{next}")
    })
}

pub(super) fn bring_up(index: &mut Index, actions: &[Action]) {
    for action in actions {
        if let Action::Create { name, .. } = action {
            index.created(name, 0);
            index.observed(name, &format!("uid-{name}"), "10.0.0.1", "node", 0);
            index.ready(name);
        }
    }
}

/// A pool with lease a in pod p1.
pub(super) fn leased(bounds: Bounds) -> (Index, u32) {
    let (mut index, mut next) = (Index::new(bounds), 0);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    plan(&mut index, 0, &mut next);
    index.grant("a", epoch_of(&index, "a"));
    (index, next)
}

fn epoch_of(index: &Index, lease: &str) -> u64 {
    index.leases.get(lease).map_or(0, |held| held.entry.epoch)
}

pub(super) fn delete(name: &str) -> Action {
    Action::Delete { name: name.into() }
}

fn forget(lease: &str, cause: Option<SandboxCause>) -> Action {
    Action::Forget {
        lease: lease.into(),
        // The epoch of a pool's first lease at time 0.
        epoch: 1,
        cause,
    }
}

pub(super) fn cannot_pull(is_final: bool) -> PullFailure {
    PullFailure {
        culprit: Culprit::Task,
        is_final,
        message: "not found".into(),
    }
}

#[test]
fn a_lease_is_served_from_a_pod_made_for_it_and_the_pod_is_deleted_after_release() {
    let (mut index, mut next) = (Index::new(bounds(4, 1)), 0);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    let made = plan(&mut index, 0, &mut next);
    assert!(matches!(&made[..], [Action::Create { image, .. }] if image == "x"));
    assert_eq!(
        plan(&mut index, 0, &mut next),
        [],
        "ordered once, however often one looks"
    );
    bring_up(&mut index, &made);
    assert_eq!(plan(&mut index, 1, &mut next), [Action::Grant { lease: "a".into() }]);
    index.grant("a", epoch_of(&index, "a"));
    assert_eq!(index.release("a", 2), [forget("a", None), delete("p1")]);
    assert_eq!(index.release("a", 2), [], "releasing twice is once");
}

#[test]
fn agents_never_take_the_graders_share() {
    let (mut index, mut next) = (Index::new(bounds(2, 1)), 0);
    for id in ["a", "b"] {
        index.wait(request(id, "x", Priority::Agent), 0).unwrap();
    }
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    assert_eq!(plan(&mut index, 0, &mut next), [Action::Grant { lease: "a".into() }]);
    index.wait(request("g", "x", Priority::Grader), 0).unwrap();
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    assert_eq!(plan(&mut index, 0, &mut next), [Action::Grant { lease: "g".into() }]);
}

#[test]
fn runs_take_turns_when_there_is_not_room_for_all() {
    let (mut index, mut next) = (Index::new(bounds(2, 0)), 0);
    for id in ["a1", "a2", "a3"] {
        index.wait(request(id, "x", Priority::Agent), 0).unwrap();
    }
    let other = LeaseRequest {
        run: "s".into(),
        ..request("b1", "y", Priority::Agent)
    };
    index.wait(other, 0).unwrap();
    assert_eq!(index.place("b1"), (2, 4));
    assert_eq!(index.place("a3"), (4, 4));
    let made = plan(&mut index, 0, &mut next);
    let images: Vec<String> = index.sandboxes.values().map(|s| s.image.clone()).collect();
    assert_eq!(images, ["x", "y"], "{made:?}");
    bring_up(&mut index, &made);
    assert_eq!(plan(&mut index, 0, &mut next).len(), 2);
    assert!(index.leases.contains_key("a1") && index.leases.contains_key("b1"));
}

#[test]
fn a_full_queue_says_so_and_a_run_with_less_of_it_gets_in() {
    let short = Bounds {
        waiting: 3,
        ..bounds(1, 0)
    };
    let mut index = Index::new(short);
    for id in ["a", "b", "c"] {
        index.wait(request(id, "x", Priority::Agent), 0).unwrap();
    }
    let error = index.wait(request("d", "x", Priority::Agent), 5).unwrap_err();
    assert_eq!(error.code, ErrorCode::QueueDeadline);
    assert_eq!(
        (error.position, error.waiting, error.deadline),
        (Some(4), Some(3), Some(5))
    );
    let other = |id: &str| LeaseRequest {
        run: "s".into(),
        ..request(id, "x", Priority::Agent)
    };
    let displaced = index.wait(other("e"), 5).unwrap();
    assert!(
        matches!(&displaced[..], [Action::Refuse { lease, .. }] if lease == "c"),
        "{displaced:?}"
    );
    assert!(
        index.wait(other("f"), 5).is_err(),
        "2 and 1 are shares as even as they can be"
    );
    assert_eq!(index.queue.len(), 3);
}

#[test]
fn a_sandbox_that_is_lost_before_its_lease_was_granted_is_replaced_without_a_word() {
    let (mut index, mut next) = (Index::new(bounds(4, 0)), 0);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    plan(&mut index, 0, &mut next);
    let first = epoch_of(&index, "a");
    let actions = index.discard("p1", SandboxCause::Unknown, 1);
    assert_eq!(actions, [delete("p1"), forget("a", None)]);
    assert_eq!(index.queue[0].deadline, 30_000, "no longer than before");
    let made = plan(&mut index, 1, &mut next);
    bring_up(&mut index, &made);
    assert_eq!(plan(&mut index, 1, &mut next), [Action::Grant { lease: "a".into() }]);
    assert_eq!(
        index.grant("a", first),
        None,
        "the ledger's answer about the first one comes late"
    );
    assert!(index.grant("a", epoch_of(&index, "a")).is_some());
    assert_eq!(index.state().voided, 0);
}

#[test]
fn giving_back_what_is_still_waited_for_tells_those_who_wait() {
    let (mut index, mut next) = (Index::new(bounds(1, 0)), 0);
    for id in ["a", "b"] {
        index.wait(request(id, "x", Priority::Agent), 0).unwrap();
    }
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    plan(&mut index, 0, &mut next);
    for id in ["a", "b"] {
        let told = index.release(id, 0);
        assert!(
            matches!(told.last(), Some(Action::Refuse { lease, .. }) if lease == id),
            "{told:?}"
        );
    }
}

#[test]
fn a_longer_time_than_the_ledger_knows_is_said_and_the_pool_caps_it() {
    let (mut index, _) = leased(bounds(2, 0));
    let renewed = |index: &mut Index, ttl: i64| {
        let (held, is_longer) = index.renew("a", ttl, 1_000).unwrap();
        (held.entry.expires_at, held.entry.ttl_millis, is_longer)
    };
    assert_eq!(renewed(&mut index, 60_000), (61_000, 60_000, false));
    assert_eq!(renewed(&mut index, 30_000), (31_000, 60_000, false));
    assert_eq!(renewed(&mut index, 1_000_000), (101_000, 100_000, true));
}

#[test]
fn a_lost_sandbox_is_remembered_with_its_cause() {
    let (mut index, _) = leased(bounds(2, 0));
    let cause = SandboxCause::Preempted;
    assert_eq!(index.gone("p1", cause), [forget("a", Some(cause))]);
    assert_eq!(index.cause_of("a"), Some(cause));
    assert_eq!(index.state().voided, 1);
}

#[test]
fn a_lease_nobody_renews_expires_and_its_pod_is_deleted() {
    let (mut index, mut next) = leased(bounds(2, 0));
    let (held, _) = index.renew("a", 50_000, 30_000).unwrap();
    assert_eq!(held.entry.expires_at, 80_000);
    assert_eq!(plan(&mut index, 70_000, &mut next), []);
    let cause = SandboxCause::Expired;
    assert_eq!(
        plan(&mut index, 80_000, &mut next),
        [forget("a", Some(cause)), delete("p1")]
    );
    assert_eq!(index.cause_of("a"), Some(cause));
}

#[test]
fn a_lease_that_is_renewed_but_not_used_is_taken_back_and_one_in_which_something_runs_is_not() {
    let idle = Bounds {
        idle_millis: 10_000,
        ..bounds(2, 0)
    };
    let (mut index, mut next) = leased(idle);
    let epoch = index.leases["a"].entry.epoch;
    index.command_begins("a", 5_000);
    index.command_begins("a", 6_000);
    index.command_ends("a", epoch, 7_000);
    index.renew("a", 100_000, 60_000);
    assert_eq!(plan(&mut index, 60_000, &mut next), [], "one command still runs");
    index.command_ends("a", epoch + 1, 60_000);
    assert_eq!(plan(&mut index, 60_000, &mut next), [], "another lease's command ended");
    index.command_ends("a", epoch, 61_000);
    index.renew("a", 100_000, 70_999);
    assert_eq!(index.next_deadline(70_999), Some(71_000));
    assert_eq!(plan(&mut index, 70_999, &mut next), []);
    let ask = Action::Ask {
        lease: "a".into(),
        epoch,
    };
    assert_eq!(plan(&mut index, 71_000, &mut next), std::slice::from_ref(&ask));
    assert_eq!(plan(&mut index, 72_000, &mut next), [], "asked once");
    assert_eq!(
        index.told_whether_idle("a", epoch, true, 73_000),
        [],
        "a command in the background"
    );
    assert_eq!(plan(&mut index, 82_999, &mut next), []);
    assert_eq!(plan(&mut index, 83_000, &mut next), std::slice::from_ref(&ask));
    index.used("a", 83_500);
    assert_eq!(index.told_whether_idle("a", epoch, false, 84_000), [], "used meanwhile");
    assert_eq!(plan(&mut index, 93_500, &mut next), [ask]);
    assert_eq!(index.told_whether_idle("a", epoch + 1, false, 94_000), []);
    assert!(
        index
            .told_whether_idle("a", epoch, false, 94_000)
            .contains(&delete("p1"))
    );
    assert_eq!(index.cause_of("a"), Some(SandboxCause::Expired));
}

#[test]
fn an_image_that_cannot_be_pulled_refuses_its_waiters_and_is_left_alone() {
    let (mut index, mut next) = (Index::new(bounds(2, 0)), 0);
    index.wait(request("a", "bad", Priority::Agent), 0).unwrap();
    let made = plan(&mut index, 0, &mut next);
    index.created("p1", 0);
    let actions = index.pull_failed("p1", &cannot_pull(true), 0);
    assert!(
        matches!(&actions[..], [Action::Delete { .. }, Action::Refuse { error, .. }] if error.code == ErrorCode::ImageUnavailable),
        "{made:?} {actions:?}"
    );
    index.gone("p1", SandboxCause::Unknown);
    let refused = index.wait(request("b", "bad", Priority::Agent), 1).unwrap_err();
    assert_eq!(refused.code, ErrorCode::ImageUnavailable);
    assert_eq!(plan(&mut index, 1, &mut next), []);
    assert_eq!(index.next_deadline(1), Some(5_000));
    assert!(index.wait(request("b", "bad", Priority::Agent), 5_000).is_ok());
}

#[test]
fn the_kubelet_may_pull_twice_before_anybody_is_refused() {
    let (mut index, mut next) = (Index::new(bounds(2, 0)), 0);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    plan(&mut index, 0, &mut next);
    index.created("p1", 0);
    assert_eq!(index.pull_failed("p1", &cannot_pull(false), 1_000), []);
    assert_eq!(index.pull_failed("p1", &cannot_pull(false), 1_500), [], "told again");
    let actions = index.pull_failed("p1", &cannot_pull(false), 15_000);
    assert!(
        matches!(&actions[..], [Action::Delete { .. }, Action::Refuse { .. }]),
        "{actions:?}"
    );
}

#[test]
fn whoever_can_be_served_from_a_ready_pod_is_not_refused_for_a_pull_that_failed_elsewhere() {
    let (mut index, mut next) = (Index::new(bounds(4, 0)), 0);
    index.want("r", vec![("x".into(), 2)], 0);
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made[..1]);
    index.created("p2", 0);
    assert_eq!(index.pull_failed("p2", &cannot_pull(true), 0), [delete("p2")]);
    index.wait(request("a", "x", Priority::Agent), 1).unwrap();
    assert_eq!(plan(&mut index, 1, &mut next), [Action::Grant { lease: "a".into() }]);
}

#[test]
fn a_deletion_is_ordered_again_with_growing_pauses_until_the_pod_is_gone() {
    let (mut index, mut next) = leased(bounds(2, 0));
    index.release("a", 0);
    let mut orders = Vec::new();
    for now in (0..100_000).step_by(500) {
        if plan(&mut index, now, &mut next).contains(&delete("p1")) {
            orders.push(now);
        }
    }
    assert_eq!(orders, [1_000, 3_000, 7_000, 15_000, 31_000, 61_000, 91_000]);
    index.gone("p1", SandboxCause::Deleted);
    assert_eq!(plan(&mut index, 200_000, &mut next), []);
}

#[test]
fn a_pod_that_is_not_there_is_gone_only_if_it_was_made() {
    let (mut index, mut next) = (Index::new(bounds(1, 0)), 0);
    index.want("r", vec![("warm".into(), 1)], 0);
    plan(&mut index, 0, &mut next);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    assert_eq!(
        plan(&mut index, 0, &mut next),
        [],
        "it might come to be after its deletion"
    );
    index.absent("p1");
    index.gone("p1", SandboxCause::Deleted);
    assert!(index.ending.contains_key("p1"), "its creation is under way");
    assert_eq!(index.created("p1", 0), [delete("p1")]);
    index.absent("p1");
    assert!(index.ending.is_empty());
}

#[test]
fn a_pod_nobody_ordered_goes() {
    let mut index = Index::new(bounds(1, 0));
    assert_eq!(index.orphan("old", 0), [delete("old")]);
    assert_eq!(index.orphan("old", 0), [], "once");
    index.list_begins();
    index.list_ends(&HashSet::new());
    assert!(index.ending.is_empty());
}

#[test]
fn a_pod_that_was_deleted_before_the_watch_showed_it_is_replaced() {
    let (mut index, mut next) = (Index::new(bounds(2, 0)), 0);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    plan(&mut index, 0, &mut next);
    index.created("p1", 1_000);
    index.queue[0].deadline = i64::MAX;
    assert_eq!(index.next_deadline(1_000), Some(121_000));
    assert_eq!(plan(&mut index, 120_999, &mut next), []);
    let actions = plan(&mut index, 121_000, &mut next);
    assert!(
        matches!(&actions[..], [Action::Delete { name }, Action::Create { .. }] if name == "p1"),
        "{actions:?}"
    );
}

#[test]
fn a_pod_that_is_shown_may_start_slowly() {
    let (mut index, mut next) = (Index::new(bounds(2, 0)), 0);
    index.want("r", vec![("huge".into(), 1)], 0);
    plan(&mut index, 0, &mut next);
    index.created("p1", 0);
    assert!(!index.observed("p1", "uid", "", "", 0));
    assert_eq!(plan(&mut index, 10_000_000, &mut next), []);
}

#[test]
fn a_list_that_lacks_a_pod_made_before_it_began_says_that_the_pod_is_gone() {
    let (mut index, mut next) = (Index::new(bounds(4, 0)), 0);
    index.want("r", vec![("x".into(), 3)], 0);
    plan(&mut index, 0, &mut next);
    index.created("p1", 0);
    index.list_begins();
    index.created("p2", 0);
    index.list_ends(&HashSet::new());
    let left: Vec<&String> = index.sandboxes.keys().collect();
    assert_eq!(left, ["p2", "p3"], "made while it was read, and not made yet");
    index.list_begins();
    index.list_ends(&HashSet::from(["p2".to_owned()]));
    assert_eq!(index.sandboxes.len(), 2);
}

#[test]
fn the_same_id_waits_once_and_as_long_as_its_most_patient_caller() {
    let (mut index, mut next) = (Index::new(bounds(1, 0)), 0);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    index.wait(request("a", "x", Priority::Agent), 20_000).unwrap();
    assert_eq!(index.queue.len(), 1);
    plan(&mut index, 40_000, &mut next);
    assert_eq!(index.queue.len(), 1);
    plan(&mut index, 50_000, &mut next);
    assert!(index.queue.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u8, u8, bool),
    Release(u8),
    Lose(u8),
    Discard(u8),
    Created(u8),
    Removed(u8),
    Deleting(u8),
    Absent(u8),
    List(u8),
    CannotPull(u8, bool),
    Ready(u8),
    Want(u8, u8),
    Grant(u8),
    Time(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<u8>(), 0..3u8, any::<bool>()).prop_map(|(id, image, grader)| Step::Wait(id % 24, image, grader)),
        any::<u8>().prop_map(|id| Step::Release(id % 24)),
        any::<u8>().prop_map(Step::Lose),
        any::<u8>().prop_map(Step::Discard),
        any::<u8>().prop_map(Step::Created),
        any::<u8>().prop_map(Step::Removed),
        any::<u8>().prop_map(Step::Deleting),
        any::<u8>().prop_map(Step::Absent),
        any::<u8>().prop_map(Step::List),
        (any::<u8>(), any::<bool>()).prop_map(|(nth, is_final)| Step::CannotPull(nth, is_final)),
        any::<u8>().prop_map(Step::Ready),
        (0..3u8, 0..6u8).prop_map(|(image, count)| Step::Want(image, count)),
        any::<u8>().prop_map(|id| Step::Grant(id % 24)),
        (0..20_000u16).prop_map(Step::Time),
    ]
}

/// The name at position `nth` modulo the count, if there is any.
fn nth<'a>(mut names: impl Iterator<Item = &'a String> + Clone, nth: u8) -> Option<String> {
    let count = names.clone().count().max(1);
    names.nth(nth as usize % count).cloned()
}

fn take(step: Step, index: &mut Index, now: i64) {
    let live = |index: &Index, at| nth(index.sandboxes.keys(), at).unwrap_or_default();
    let ending = |index: &Index, at| nth(index.ending.keys(), at).unwrap_or_default();
    match step {
        Step::Wait(id, image, grader) => {
            let priority = if grader { Priority::Grader } else { Priority::Agent };
            // An image that cannot be pulled is refused.
            let _ = index.wait(request(&format!("l{id}"), &format!("i{image}"), priority), now);
        }
        Step::Release(id) => drop(index.release(&format!("l{id}"), now)),
        Step::Lose(at) => drop(index.gone(&live(index, at), SandboxCause::Deleted)),
        Step::Discard(at) => drop(index.discard(&live(index, at), SandboxCause::Unknown, now)),
        Step::Created(at) => drop(index.created(&live(index, at), now)),
        Step::Removed(at) => drop(index.gone(&ending(index, at), SandboxCause::Deleted)),
        Step::Absent(at) => index.absent(&ending(index, at)),
        Step::List(at) => {
            index.list_begins();
            index.list_ends(&HashSet::from([live(index, at), ending(index, at)]));
        }
        Step::CannotPull(at, is_final) => drop(index.pull_failed(&live(index, at), &cannot_pull(is_final), now)),
        Step::Ready(at) => {
            let name = live(index, at);
            index.observed(&name, &name, "10.0.0.1", "node", now);
            index.ready(&name);
        }
        Step::Want(image, count) => index.want("r", vec![(format!("i{image}"), count as usize)], now),
        Step::Grant(id) => {
            let lease = format!("l{id}");
            drop(index.grant(&lease, epoch_of(index, &lease)));
        }
        Step::Deleting(at) => index.deleting(&ending(index, at)),
        Step::Time(_) => {}
    }
}

proptest! {
    #[test]
    fn no_sandbox_has_two_leases_and_the_pool_never_outgrows_its_max(steps in prop::collection::vec(step(), 1..120)) {
        let (max, reserved) = (6, 2);
        let bounds = Bounds { orders: 4, waiting: 20, ..bounds(max, reserved) };
        let (mut index, mut next, mut now) = (Index::new(bounds), 0u32, 0i64);
        for step in steps {
            if let Step::Time(millis) = step {
                now += i64::from(millis);
            }
            take(step, &mut index, now);
            plan(&mut index, now, &mut next);
            prop_assert!(index.counted() <= max);
            prop_assert!(index.under_way() <= index.bounds.orders);
            prop_assert!(index.sandboxes.len() + index.ending.len() <= max + index.bounds.allowance());
            prop_assert!(index.ending.keys().all(|name| !index.sandboxes.contains_key(name)));
            let mut answered = index.ending.values().filter(|ending| !ending.unanswered);
            prop_assert!(answered.all(|ending| ending.again_at > now), "each is tried again");
            let agents = index.leases.values().filter(|h| h.entry.priority == Priority::Agent).count();
            prop_assert!(agents <= max - reserved);
            let mut leased: Vec<&String> = index.leases.values().map(|h| &h.entry.sandbox).collect();
            leased.sort();
            leased.dedup();
            prop_assert_eq!(leased.len(), index.leases.len());
            for (lease, held) in &index.leases {
                prop_assert_eq!(index.sandboxes.get(&held.entry.sandbox).and_then(|s| s.lease.as_ref()), Some(lease));
            }
            prop_assert_eq!(plan(&mut index, now, &mut next), vec![], "planning twice changes nothing");
            prop_assert!(index.next_deadline(now).is_none_or(|at| at > now));
        }
    }
}
