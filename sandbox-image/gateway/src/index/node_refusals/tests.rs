use super::*;
use grpo_sandbox_protocol::SandboxCause;

use crate::index::tests::{bounds, bring_up, delete, plan};
use crate::index::{Action, Index, Stage};

const WHY: &str = "OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu";

#[test]
fn the_pause_after_a_refusal_doubles_up_to_a_bound_and_begins_anew_after_a_start() {
    let (mut refusals, mut now, mut pauses) = (NodeRefusals::default(), 0, Vec::new());
    for _ in 0..9 {
        let until = refusals.refused("n", "p", WHY, now);
        pauses.push(until - now);
        now = until;
    }
    assert_eq!(
        pauses,
        [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]
    );
    assert_eq!(refusals.refused("other", "p", WHY, now), now + 500);
    refusals.succeeded("n");
    assert_eq!(refusals.refused("n", "p", WHY, now), now + 500);
}

#[test]
fn pods_that_are_refused_together_count_once_and_old_refusals_do_not_count() {
    let mut refusals = NodeRefusals::default();
    for _ in 0..100 {
        assert_eq!(refusals.refused("n", "p", WHY, 0), 500);
    }
    assert_eq!(refusals.refused("n", "p", WHY, 500), 1_500);
    let later = 1_500 + FORGOTTEN_AFTER;
    assert_eq!(refusals.refused("n", "p", WHY, later), later + 500);
}

#[test]
fn a_node_that_refuses_again_and_again_is_reported_with_its_last_message_until_it_stops() {
    let (mut refusals, mut now) = (NodeRefusals::default(), 0);
    for number in 1..=REPORTED_AFTER {
        assert_eq!(refusals.lasting(now), []);
        now = refusals.refused("n", &format!("p{number}"), WHY, now);
    }
    let lasting = refusals.lasting(now);
    let [reported] = &lasting[..] else {
        panic!("{lasting:?}")
    };
    let named = (reported.node.as_str(), reported.pod.as_str(), reported.since);
    assert_eq!(named, ("n", "p4", 0));
    assert!(reported.message.contains(WHY), "{}", reported.message);
    assert_eq!(refusals.lasting(now + REPORTED_FOR), []);
    refusals.succeeded("n");
    assert_eq!(refusals.lasting(now), []);
}

#[test]
fn a_sandbox_that_the_pool_restarts_does_not_end_the_back_off_of_its_node() {
    let mut index = Index::new(bounds(2, 0));
    for name in ["p1", "p2"] {
        index.adopt(name, "x", None, 0, 0);
        index.observed(name, "u", "10.0.0.1", "n", 0);
    }
    index.adopt("p3", "x", None, 0, 0);
    assert!(index.refused_by_node("p3", "n", WHY, 0));
    let refusing = |index: &Index| index.node_refusals.0.len();
    index.sandboxes.get_mut("p1").unwrap().restarts = 1;
    index.ready("p1");
    assert_eq!(refusing(&index), 1);
    index.ready("p2");
    assert_eq!(refusing(&index), 0, "the node has started a pod");
}

/// A node refuses every pod, as fast as the pool makes them.
#[test]
fn a_pool_makes_few_pods_for_a_node_that_refuses_all_of_them() {
    let (mut index, mut next) = (Index::new(bounds(1, 0)), 0);
    index.want("r", vec![("x".into(), 1)], 0);
    let (mut now, mut made) = (0, 0);
    while now < 600_000 {
        for action in plan(&mut index, now, &mut next) {
            match action {
                Action::Create { name, .. } => {
                    made += 1;
                    index.created(&name, now);
                    assert!(index.refused_by_node(&name, "n", WHY, now));
                    assert!(index.refused_by_node(&name, "n", WHY, now), "shown once more");
                }
                Action::Delete { name } => {
                    index.deleting(&name);
                    index.gone(&name, SandboxCause::Deleted);
                }
                other => panic!("{other:?}"),
            }
        }
        index.want("r", vec![("x".into(), 1)], now);
        now += 100;
    }
    assert!((20..40).contains(&made), "{made}");
    assert_eq!(index.refusing_nodes(now).len(), 1);
}

#[test]
fn a_refused_pod_keeps_its_place_until_the_pause_ends_and_one_in_use_does_not() {
    let (mut index, mut next) = (Index::new(bounds(1, 0)), 0);
    index.want("r", vec![("x".into(), 1)], 0);
    plan(&mut index, 0, &mut next);
    index.created("p1", 0);
    assert!(index.refused_by_node("p1", "n", WHY, 0));
    index.ready("p1");
    assert_eq!(index.sandboxes["p1"].stage, Stage::Starting, "a late answer is ignored");
    assert_eq!(index.next_deadline(0), Some(500));
    assert_eq!(plan(&mut index, 499, &mut next), []);
    assert_eq!(plan(&mut index, 500, &mut next), [delete("p1")]);
    index.gone("p1", SandboxCause::Deleted);
    let made = plan(&mut index, 500, &mut next);
    assert_eq!(made.len(), 1);
    bring_up(&mut index, &made);
    assert!(!index.refused_by_node("p2", "n", WHY, 500), "it answers already");
    assert!(!index.refused_by_node("never", "n", WHY, 500));
}
