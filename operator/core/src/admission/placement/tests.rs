use serde_json::json;

use super::*;
use crate::admission::tests::{node, pod, pod_from};

#[test]
fn pods_get_the_nodes_that_admission_would_choose() {
    let nodes = [node("a", 8), node("b", 8), node("c", 0)];
    let (driver, trainer) = (pod("run", "driver", 0, 0), pod("run", "trainer", 0, 8));
    let places = placement(&nodes, &[], &[&driver, &trainer]).unwrap();
    assert!(places[1].as_ref() != "c", "{places:?}");
}

#[test]
fn pods_that_are_on_nodes_already_take_what_they_ask_for() {
    let nodes = [node("a", 8)];
    let mut other = pod("other", "trainer", 0, 8);
    other.node = Some(Arc::from("a"));
    let wanted = pod("run", "trainer", 0, 8);
    let (reason, message) = placement(&nodes, &[&other], &[&wanted]).unwrap_err();
    assert_eq!(reason, "WaitsForCapacity");
    assert!(
        message.contains("8 nvidia.com/gpu asked, 0 free: a 0 of 8"),
        "{message}"
    );
}

#[test]
fn pods_that_no_node_could_hold_are_told_so() {
    let (reason, message) = placement(&[node("a", 4)], &[], &[&pod("run", "trainer", 0, 8)]).unwrap_err();
    assert_eq!(reason, "NeverFits");
    assert!(message.contains("even if nothing else ran"), "{message}");
}

#[test]
fn copies_are_counted_by_what_is_scarce_and_by_what_a_node_may_have() {
    let nodes = [node("a", 8), node("b", 8)];
    let pair = pod("run", "engine", 0, 2);
    assert_eq!(copies(&nodes, &[], &pair, None), 8);
    assert_eq!(copies(&nodes, &[], &pair, Some(3)), 6);
    let elsewhere = pod_from(
        "run",
        "engine",
        0,
        2,
        json!({"nodeSelector": {"kubernetes.io/hostname": "b"}}),
    );
    assert_eq!(copies(&nodes, &[], &elsewhere, None), 4);
}
