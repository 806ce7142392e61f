use jiff::SignedDuration;

use crate::admission::{
    decide::{BIND_DEADLINE, Step},
    tests::{World, node},
};

const WAIT: SignedDuration = SignedDuration::from_secs(900);

/// A cluster of these nodes that can add more.
fn autoscaled(nodes: &[(&str, u32)]) -> World {
    let mut world = World::new(nodes.iter().map(|(name, gpus)| node(name, *gpus)).collect());
    world.scale_up = Some(WAIT);
    world
}

#[test]
fn a_run_that_no_present_node_holds_is_let_go_unplanned_and_placed_when_nodes_come() {
    let mut world = autoscaled(&[("small", 0)]);
    world.add("run", 60, (2, 8), (0, 0));
    let Some(Step::Lift { pods, .. }) = world.step() else {
        panic!("not let go")
    };
    assert_eq!(pods.len(), 3);
    assert!(pods.iter().all(|pod| pod.host.is_none()), "{pods:?}");
    assert_eq!(world.bound("run"), 1, "the driver needs no new node");
    let (reason, message) = world.message("run");
    assert_eq!(reason, "WaitsForNodes");
    assert!(
        message.contains("2 trainer pods of 8") && message.contains("15 min"),
        "{message}"
    );
    world.nodes.extend([node("new-a", 8), node("new-b", 8)]);
    world.schedule();
    assert!(world.is_whole("run"));
    assert_eq!(world.step(), None);
    assert_eq!(world.message("run").0, "Admitted");
}

#[test]
fn without_the_setting_it_waits_behind_its_gates() {
    let mut world = autoscaled(&[("small", 0)]);
    world.scale_up = None;
    world.add("run", 60, (2, 8), (0, 0));
    assert_eq!(world.step(), None);
    assert_eq!(world.message("run").0, "NeverFits");
}

#[test]
fn what_has_no_node_in_time_goes_back_whole_and_pauses() {
    let mut world = autoscaled(&[("small", 0)]);
    world.add("run", 60, (1, 8), (0, 0));
    world.step();
    world.now += BIND_DEADLINE + SignedDuration::from_secs(1);
    assert_eq!(world.step(), None, "nodes need longer than a binding does");
    world.now += WAIT;
    assert!(matches!(world.step(), Some(Step::Requeue { pods, .. }) if pods.len() == 2));
    assert_eq!(world.bound("run"), 0);
    assert_eq!(world.message("run").0, "Requeued");
    assert_eq!(world.step(), None);
    world.now += SignedDuration::from_secs(16);
    assert!(matches!(world.step(), Some(Step::Lift { .. })), "the next try");
}

#[test]
fn runs_that_fit_go_first_and_are_not_delayed_while_nodes_are_added_for_another() {
    let mut world = autoscaled(&[("a", 8)]);
    world.add("large", 90, (4, 8), (0, 0));
    world.add("fits", 30, (1, 4), (0, 0));
    // The younger run fits: no nodes are requested before it has its place.
    assert!(matches!(world.step(), Some(Step::Lift { run, .. }) if run == "fits"));
    assert!(world.is_whole("fits"));
    assert!(matches!(world.step(), Some(Step::Lift { run, .. }) if run == "large"));
    world.add("late", 10, (1, 4), (0, 0));
    assert!(matches!(world.step(), Some(Step::Lift { run, .. }) if run == "late"));
    assert!(world.is_whole("late"));
    assert_eq!(world.message("large").0, "WaitsForNodes");
}

#[test]
fn nodes_are_added_for_one_run_at_a_time() {
    let mut world = autoscaled(&[("small", 0)]);
    world.add("old", 60, (1, 8), (0, 0));
    world.add("young", 30, (1, 8), (0, 0));
    assert!(matches!(world.step(), Some(Step::Lift { run, .. }) if run == "old"));
    assert_eq!(world.step(), None);
    assert_eq!(world.message("young").0, "NeverFits");
    world.nodes.push(node("new", 8));
    world.schedule();
    assert!(matches!(world.step(), Some(Step::Lift { run, .. }) if run == "young"));
}

#[test]
fn a_rank_that_lost_its_node_gets_a_new_one() {
    let mut world = torn();
    assert!(matches!(world.step(), Some(Step::Lift { run, .. }) if run == "run"));
    assert_eq!(world.message("run").0, "WaitsForNodes");
    world.nodes.push(node("new", 8));
    world.schedule();
    assert!(world.is_whole("run"));
}

/// One of two nodes is gone, and its pod was created again.
fn torn() -> World {
    let mut world = autoscaled(&[("a", 8), ("b", 8)]);
    world.add("run", 60, (2, 8), (0, 0));
    world.settle();
    world.lose_node("b");
    world
}

#[test]
fn a_run_that_lost_a_part_keeps_others_waiting_and_its_own_deadline_while_its_node_comes() {
    let mut world = torn();
    world.add("young", 30, (1, 4), (0, 0));
    assert!(matches!(world.step(), Some(Step::Lift { run, .. }) if run == "run"));
    // A node comes on which the other run would fit as well, and the scheduler has not acted yet.
    world.nodes.push(node("new", 8));
    assert_eq!(world.decide().step, None);
    assert_eq!(world.message("young").0, "BehindAnotherRun");
    world.nodes.pop();
    world.now += crate::admission::decide::PATIENCE + SignedDuration::from_secs(1);
    world.add("small", 20, (1, 4), (0, 0));
    assert_eq!(world.step(), None, "it was promised 15 minutes");
    world.now += WAIT;
    assert!(
        matches!(world.step(), Some(Step::Requeue { pods, .. }) if pods.len() == 1),
        "what was placed stays"
    );
}

#[test]
fn what_pending_pods_could_get_is_not_given_to_another_run() {
    let mut world = autoscaled(&[("small", 0)]);
    world.add("large", 60, (2, 8), (0, 0));
    world.step();
    world.add("young", 30, (1, 8), (0, 0));
    world.nodes.push(node("new-a", 8));
    assert_eq!(world.decide().step, None, "the node was added for the other one");
    world.nodes.extend([node("new-b", 8), node("new-c", 8)]);
    assert!(
        matches!(world.decide().step, Some(Step::Lift { run, .. }) if run == "young"),
        "this one is left"
    );
}

#[test]
fn a_pod_that_is_made_again_meanwhile_is_let_go_too() {
    let mut world = autoscaled(&[("small", 0)]);
    world.add("run", 60, (2, 8), (0, 0));
    world.step();
    world.gate_again("run-trainer-1");
    assert!(matches!(world.step(), Some(Step::Lift { pods, .. }) if pods.len() == 1));
    assert_eq!(world.step(), None);
}

#[test]
fn another_process_of_the_operator_tells_planned_pods_from_those_that_nodes_are_added_for() {
    let mut unplanned = autoscaled(&[("small", 0)]);
    unplanned.add("run", 60, (2, 8), (0, 0));
    unplanned.step();
    unplanned.restart();
    assert_eq!(unplanned.message("run").0, "WaitsForNodes");
    let mut planned = autoscaled(&[("a", 8)]);
    planned.add("run", 60, (1, 8), (0, 0));
    planned.step();
    planned.unbind("run-trainer-0");
    planned.restart();
    assert_eq!(planned.message("run").0, "BeingScheduled");
}

#[test]
fn a_further_replica_of_a_run_that_works_gets_a_node_after_those_that_have_none() {
    let mut world = autoscaled(&[("a", 8)]);
    world.add("works", 60, (1, 4), (1, 4));
    world.settle();
    world.add_engine("works", 1, 8);
    world.add("waits", 30, (1, 8), (0, 0));
    assert!(matches!(world.step(), Some(Step::Lift { run, .. }) if run == "waits"));
    world.nodes.push(node("b", 8));
    world.schedule();
    assert!(matches!(world.step(), Some(Step::Lift { run, .. }) if run == "works"));
    let (reason, _) = world.message("works");
    assert_eq!(reason, "WaitsForNodes");
}
