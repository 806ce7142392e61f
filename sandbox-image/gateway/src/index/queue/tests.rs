use super::*;
use crate::index::tests::{bounds, bring_up, plan, request};

#[test]
fn a_waiter_whose_callers_went_away_is_passed_over_and_keeps_its_place_for_those_that_ask_again() {
    let (mut index, mut next) = (Index::new(bounds(1, 0)), 0);
    for id in ["gone", "there"] {
        index.wait(request(id, "x", Priority::Agent), 0).unwrap();
    }
    index.abandon("gone", 0);
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    let granted = plan(&mut index, 0, &mut next);
    assert_eq!(granted, [Action::Grant { lease: "there".into() }]);
    index.wait(request("later", "x", Priority::Agent), 1).unwrap();
    index.wait(request("gone", "x", Priority::Agent), 1).unwrap();
    index.release("there", 1);
    index.deleting("p1");
    let made = plan(&mut index, 1, &mut next);
    bring_up(&mut index, &made);
    let granted = plan(&mut index, 1, &mut next);
    assert_eq!(granted, [Action::Grant { lease: "gone".into() }]);
}

#[test]
fn no_pod_is_made_for_a_waiter_whose_callers_went_away_and_its_place_is_free_soon() {
    let (mut index, mut next) = (Index::new(bounds(1, 0)), 0);
    index.wait(request("gone", "x", Priority::Agent), 0).unwrap();
    index.abandon("gone", 0);
    assert_eq!(plan(&mut index, 0, &mut next), []);
    assert_eq!(index.next_deadline(0), Some(ASKED_AGAIN_WITHIN));
    plan(&mut index, ASKED_AGAIN_WITHIN - 1, &mut next);
    assert_eq!(index.queue.len(), 1);
    plan(&mut index, ASKED_AGAIN_WITHIN, &mut next);
    assert!(index.queue.is_empty());
}
