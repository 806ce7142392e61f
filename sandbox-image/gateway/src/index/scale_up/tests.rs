//! The number of pods, their purpose, and their end.

use super::*;
use crate::index::Bounds;
use crate::index::tests::{bounds, bring_up, cannot_pull, delete, leased, plan, request};
use grpo_sandbox_protocol::Priority;

#[test]
fn warm_pods_make_room_for_those_who_wait_and_no_more_of_them_than_it_takes() {
    let (mut index, mut next) = (Index::new(bounds(2, 0)), 0);
    index.want("r", vec![("warm".into(), 2)], 0);
    let made = plan(&mut index, 0, &mut next);
    assert_eq!(made.len(), 2);
    bring_up(&mut index, &made);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    let actions = plan(&mut index, 0, &mut next);
    let [Action::Delete { name }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(plan(&mut index, 0, &mut next), [], "its place is not free yet");
    index.deleting(name);
    let actions = plan(&mut index, 0, &mut next);
    assert!(
        matches!(&actions[..], [Action::Create { image, .. }] if image == "x"),
        "{actions:?}"
    );
}

#[test]
fn pods_that_nobody_wants_make_room_for_those_that_somebody_does() {
    let (mut index, mut next) = (Index::new(bounds(3, 0)), 0);
    index.want("r", vec![("old".into(), 2), ("both".into(), 1)], 0);
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    index.want("r", vec![("both".into(), 1), ("new".into(), 2)], 0);
    assert_eq!(plan(&mut index, 0, &mut next), [delete("p1"), delete("p2")]);
}

#[test]
fn what_the_pool_keeps_warm_is_there_without_any_run_and_does_not_go() {
    let (mut index, mut next) = (Index::new(bounds(4, 0)), 0);
    index.keep(vec![("kept".into(), 2)]);
    let made = plan(&mut index, 0, &mut next);
    assert_eq!(made.len(), 2);
    bring_up(&mut index, &made);
    let next_year = 365 * 24 * 3_600_000;
    assert_eq!(plan(&mut index, next_year, &mut next), []);
    assert!(index.next_deadline(next_year).is_none_or(|at| at > next_year));
    index.wait(request("a", "kept", Priority::Agent), next_year).unwrap();
    let actions = plan(&mut index, next_year, &mut next);
    assert!(
        matches!(&actions[..], [Action::Grant { .. }, Action::Create { image, .. }] if image == "kept"),
        "{actions:?}"
    );
}

#[test]
fn what_nobody_wants_goes_after_a_while_and_what_is_wanted_again_stays() {
    let (mut index, mut next) = (Index::new(bounds(4, 0)), 0);
    index.want("r", vec![("x".into(), 2)], 0);
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    index.want("r", vec![], 1_000);
    assert_eq!(plan(&mut index, 1_000, &mut next), []);
    index.want("r", vec![("x".into(), 2)], 30_000);
    assert_eq!(plan(&mut index, 60_999, &mut next), []);
    index.want("r", vec![("x".into(), 1)], 61_000);
    assert_eq!(plan(&mut index, 61_000, &mut next), []);
    assert_eq!(index.next_deadline(61_000), Some(121_000));
    assert_eq!(plan(&mut index, 121_000, &mut next), [delete("p1")]);
    index.gone("p1", SandboxCause::Deleted);
    index.want("r", vec![], 130_000);
    plan(&mut index, 130_000, &mut next);
    assert_eq!(plan(&mut index, 190_000, &mut next), [delete("p2")], "down to none");
}

#[test]
fn what_a_run_wants_is_forgotten_when_nothing_is_heard_of_it_for_long() {
    let (mut index, mut next) = leased(bounds(4, 0));
    index.want("r", vec![("x".into(), 1)], 0);
    plan(&mut index, 0, &mut next);
    index.renew("a", 100_000, 50_000);
    bring_up(
        &mut index,
        &[Action::Create {
            name: "p2".into(),
            image: "x".into(),
            slot: None,
        }],
    );
    plan(&mut index, 149_999, &mut next);
    index.gone("p1", SandboxCause::Deleted);
    plan(&mut index, 649_999, &mut next);
    assert_eq!(index.sandboxes.len(), 1);
    plan(&mut index, 650_000, &mut next);
    assert_eq!(plan(&mut index, 710_000, &mut next), [delete("p2")]);
}

#[test]
fn runs_share_what_may_be_warm() {
    let few = Bounds {
        warm_max: 4,
        ..bounds(8, 0)
    };
    let (mut index, mut next) = (Index::new(few), 0);
    index.want("a", vec![("a".into(), 100)], 0);
    index.want("b", vec![("b".into(), 1), ("c".into(), 100)], 0);
    let made = plan(&mut index, 0, &mut next);
    let images: Vec<&str> = made
        .iter()
        .map(|action| match action {
            Action::Create { image, .. } => image.as_str(),
            _ => "",
        })
        .collect();
    assert_eq!(images, ["a", "b", "a", "c"]);
}

#[test]
fn no_more_orders_are_under_way_than_may_be_and_those_who_wait_are_next() {
    let slow = Bounds {
        orders: 2,
        ..bounds(8, 0)
    };
    let (mut index, mut next) = (Index::new(slow), 0);
    index.want("r", vec![("warm".into(), 8)], 0);
    assert_eq!(plan(&mut index, 0, &mut next).len(), 2);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    assert_eq!(plan(&mut index, 0, &mut next), []);
    index.created("p1", 0);
    let made = plan(&mut index, 0, &mut next);
    assert!(
        matches!(&made[..], [Action::Create { image, .. }] if image == "x"),
        "{made:?}"
    );
}

#[test]
fn a_pod_counts_until_the_api_server_has_taken_the_order_to_delete_it() {
    let (mut index, mut next) = leased(bounds(1, 0));
    index.wait(request("b", "x", Priority::Agent), 0).unwrap();
    index.release("a", 0);
    assert_eq!(plan(&mut index, 0, &mut next), []);
    index.deleting("p1");
    assert!(matches!(&plan(&mut index, 0, &mut next)[..], [Action::Create { .. }]));
}

#[test]
fn after_a_failed_pull_one_pod_tries_again_before_there_are_more() {
    let (mut index, mut next) = (Index::new(bounds(8, 0)), 0);
    index.want("r", vec![("bad".into(), 4), ("good".into(), 1)], 0);
    plan(&mut index, 0, &mut next);
    for name in ["p1", "p2", "p3", "p4"] {
        index.created(name, 0);
        index.pull_failed(name, &cannot_pull(true), 0);
        index.gone(name, SandboxCause::Deleted);
    }
    assert_eq!(plan(&mut index, 0, &mut next), []);
    assert_eq!(index.troubles(0).len(), 1);
    let made = plan(&mut index, 5_000, &mut next);
    assert_eq!(made.len(), 1, "{made:?}");
    bring_up(&mut index, &made);
    assert_eq!(plan(&mut index, 5_000, &mut next).len(), 3, "it could be had");
}

#[test]
fn slots_are_dealt_out_evenly_so_that_each_node_can_have_one_pod_of_each() {
    let bounded = Bounds {
        per_node: Some(2),
        ..bounds(6, 0)
    };
    let (mut index, mut next) = (Index::new(bounded), 0);
    index.want("r", vec![("x".into(), 4)], 0);
    plan(&mut index, 0, &mut next);
    let slots: Vec<Option<u32>> = index.sandboxes.values().map(|sandbox| sandbox.slot).collect();
    assert_eq!(slots, [Some(0), Some(1), Some(0), Some(1)]);
    index.refused("p1");
    index.refused("p3");
    let made = plan(&mut index, 0, &mut next);
    let both_free = |action: &Action| matches!(action, Action::Create { slot: Some(0), .. });
    assert!(made.len() == 2 && made.iter().all(both_free), "{made:?}");
}

#[test]
fn nobody_waits_for_a_removal_until_too_many_hang() {
    let (max, mut next) = (2, 0);
    let mut index = Index::new(bounds(max, 0));
    let mut served = 0;
    for nth in 0..20 {
        let lease = format!("l{nth}");
        index.wait(request(&lease, "x", Priority::Agent), 0).unwrap();
        let made = plan(&mut index, 0, &mut next);
        bring_up(&mut index, &made);
        plan(&mut index, 0, &mut next);
        served += index
            .release(&lease, 0)
            .iter()
            .filter(|a| matches!(a, Action::Delete { .. }))
            .count();
        let accepted: Vec<String> = index.ending.keys().cloned().collect();
        accepted.iter().for_each(|name| index.deleting(name));
    }
    assert_eq!(served, max + index.bounds.allowance(), "no deletion was ever confirmed");
    index.wait(request("late", "x", Priority::Agent), 0).unwrap();
    assert_eq!(plan(&mut index, 0, &mut next), []);
    index.gone("p1", SandboxCause::Deleted);
    assert!(matches!(&plan(&mut index, 0, &mut next)[..], [Action::Create { .. }]));
}

#[test]
fn images_to_come_are_those_that_are_wanted_and_have_no_pod_and_did_not_fail() {
    let (mut index, mut next) = (Index::new(bounds(2, 0)), 0);
    index.want("r", vec![("a".into(), 2), ("b".into(), 2), ("bad".into(), 1)], 0);
    plan(&mut index, 0, &mut next);
    index.wait(request("w", "c", Priority::Agent), 0).unwrap();
    let names = |index: &Index| {
        index
            .images_to_come(1)
            .iter()
            .map(|i| i.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&index), ["c", "b", "bad"]);
    let failure = PullFailure {
        culprit: crate::pull::Culprit::Task,
        is_final: true,
        message: "not found".into(),
    };
    index.pull_failed_ahead("bad", &failure, 0);
    assert_eq!(names(&index), ["c", "b"]);
    assert!(index.is_wanted("a") && index.is_wanted("c") && !index.is_wanted("d"));
    assert_eq!(
        index.troubles(1).len(),
        1,
        "known before a sandbox would have found out"
    );
}
