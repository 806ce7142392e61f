//! Pods go to nodes that all of their volumes can be reached from.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::NodeSelectorTerm;
use serde_json::json;

use super::world::{World, candidate, manifest, mounted, node, pod_from};
use crate::admission::{
    decide::{BIND_DEADLINE, Step, VOLUME_DEADLINE},
    facts::{PodNeeds, VolumeTerms},
};

/// Node terms of a PersistentVolume that exists only on nodes with this label.
fn terms(label: &str, value: Option<&str>) -> Vec<NodeSelectorTerm> {
    let term = |value: &str| json!({"matchExpressions": [{"key": label, "operator": "In", "values": [value]}]});
    let terms = value.map(|value| serde_json::from_value(term(value)).unwrap());
    terms.into_iter().collect()
}

/// A volume of one zone, writable from several nodes: driver and trainer go to that zone, engines anywhere.
#[test]
fn pods_that_mount_the_store_go_to_the_zone_of_its_volume_and_a_run_waits_for_room_there() {
    let world = |zone: &str| {
        let mut nodes = vec![node("a", 8), node("b", 8)];
        for (node, zone) in nodes.iter_mut().zip(["east", "west"]) {
            node.labels.insert("topology.kubernetes.io/zone".into(), zone.into());
        }
        let mut world = World::new(nodes);
        world.add("run", 60, (1, 8), (1, 8));
        world.runs[0].volumes = of_store("run", terms("topology.kubernetes.io/zone", Some(zone)));
        world.settle();
        world
    };
    for (zone, store_node, other) in [("east", "a", "b"), ("west", "b", "a")] {
        let world = world(zone);
        for pod in world.of("run") {
            let engine = pod.member.as_ref().unwrap().role == "engine";
            let wanted = if engine { other } else { store_node };
            assert_eq!(pod.node.as_deref(), Some(wanted), "{} in {zone}", pod.name);
        }
    }
    let (reason, message) = world("north").message("run");
    assert_eq!(reason, "NeverFits");
    assert!(
        message.contains("the volumes that it mounts") && message.contains("PersistentVolumeClaim run-store"),
        "{message}"
    );
}

#[test]
fn pods_that_share_a_volume_go_to_one_node_and_to_that_of_the_volume() {
    let shares = json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"grpo.dev/store": "run-store"}}, "topologyKey": "kubernetes.io/hostname"}]}}});
    let world = |host: Option<&str>| {
        let mut world = World::new(vec![node("a", 8), node("b", 8), node("c", 0)]);
        let mut run = candidate("run", 60, 1, 0);
        run.volumes = of_store("run", terms("kubernetes.io/hostname", host));
        world.runs.push(run);
        world.pods.push(pod_from("run", "driver", 0, 0, shares.clone()));
        world.pods.push(pod_from("run", "trainer", 0, 8, shares.clone()));
        world.settle();
        world
    };
    let free = world(None);
    let nodes: Vec<_> = free.of("run").map(|pod| pod.node.clone()).collect();
    assert!(nodes[0].is_some() && nodes[0] == nodes[1], "{nodes:?}");
    let settled = world(Some("b"));
    assert!(settled.of("run").all(|pod| pod.node.as_deref() == Some("b")));
    let mut elsewhere = world(Some("c"));
    let (reason, message) = elsewhere.message("run");
    assert_eq!(reason, "NeverFits");
    assert!(message.contains("ReadWriteOnce"), "{message}");
}

/// The store's volume is made on the node of its first pod, so a driver elsewhere could never mount it beside its rows.
#[test]
fn pods_go_to_the_node_of_every_volume_that_they_mount_before_the_stores_is_made() {
    let together = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"grpo.dev/store": "run-store"}}, "topologyKey": "kubernetes.io/hostname"}]}});
    let world = |volumes: &[(&str, &str)]| {
        let mut world = World::new(vec![node("a", 8), node("b", 8)]);
        let mut run = candidate("run", 60, 1, 0);
        let terms = |(claim, host): &(&str, &str)| ((*claim).to_owned(), terms("kubernetes.io/hostname", Some(host)));
        run.volumes = volumes.iter().map(terms).collect();
        world.runs.push(run);
        let driver = json!({"affinity": together, "volumes": [mounted("run-store"), mounted("rows")]});
        world.pods.push(pod_from("run", "driver", 0, 0, driver));
        let trainer = json!({"affinity": together, "volumes": [mounted("run-store")]});
        world.pods.push(pod_from("run", "trainer", 0, 8, trainer));
        world.settle();
        world
    };
    for host in ["a", "b"] {
        let world = world(&[("rows", host)]);
        assert!(world.of("run").all(|pod| pod.node.as_deref() == Some(host)), "{host}");
    }
    let (reason, message) = world(&[("rows", "a"), ("run-store", "b")]).message("run");
    assert_eq!(reason, "NeverFits");
    assert!(message.contains("PersistentVolumeClaims rows, run-store"), "{message}");
}

fn of_store(run: &str, terms: Vec<NodeSelectorTerm>) -> VolumeTerms {
    BTreeMap::from([(format!("{run}-store"), terms)])
}

/// A world with a run whose pods are lifted, while the store's volume does not exist. The scheduler waits for it with
/// the driver, and finds no node for the trainer.
fn waiting_for_its_store() -> World {
    let mut world = World::new(vec![node("a", 8), node("b", 8)]);
    world.add("run", 60, (1, 8), (0, 0));
    world.runs[0].volumes = VolumeTerms::new();
    world.step();
    for uid in ["run-driver-0", "run-trainer-0"] {
        world.unbind(uid);
    }
    world.find("run-trainer-0").member.as_mut().unwrap().unschedulable = true;
    assert!(world.step().is_none());
    world
}

#[test]
fn pods_whose_volume_is_being_made_have_minutes_and_delay_other_runs_only_at_first() {
    let mut world = waiting_for_its_store();
    world.add("next", 30, (1, 8), (0, 0));
    assert!(world.step().is_none());
    assert_eq!(world.message("next").0, "BehindAnotherRun");

    world.now += BIND_DEADLINE;
    let decision = world.decide();
    let Some(Step::Lift { run, pods }) = &decision.step else {
        panic!("{decision:?}")
    };
    assert_eq!(run, "next");
    let reserved = world.find("run-trainer-0").member.as_ref().unwrap().selector["kubernetes.io/hostname"].clone();
    let taken = pods.iter().find(|pod| pod.uid == "next-trainer-0").unwrap();
    assert!(taken.host.is_some() && taken.host != Some(reserved), "{pods:?}");
    assert!(decision.again_at.unwrap() > world.now, "{decision:?}");
    let (reason, message) = world.message("run");
    assert_eq!(reason, "BeingScheduled");
    for words in [
        "2 of them",
        "the volume of PersistentVolumeClaim run-store",
        "kubectl describe pvc run-store",
    ] {
        assert!(message.contains(words), "{message}");
    }
    world.now += VOLUME_DEADLINE - BIND_DEADLINE;
    let step = world.step();
    assert!(
        matches!(&step, Some(Step::Requeue { pods, .. }) if pods.len() == 2),
        "{step:?}"
    );
}

/// The scheduler leaves `Unschedulable` on a pod that fits later, until the pod is bound.
#[test]
fn pods_that_were_refused_once_have_minutes_when_the_scheduler_has_chosen_the_node_of_their_claim() {
    let mut world = waiting_for_its_store();
    world.find("run-driver-0").member.as_mut().unwrap().unschedulable = true;
    world.runs[0].provisioning = ["run-store".to_owned()].into();
    world.now += BIND_DEADLINE;
    assert!(world.step().is_none());
    let (_, message) = world.message("run");
    assert!(message.contains("kubectl describe pvc run-store"), "{message}");
    world.now += VOLUME_DEADLINE - BIND_DEADLINE;
    let step = world.step();
    assert!(matches!(step, Some(Step::Requeue { .. })), "{step:?}");
}

#[test]
fn pods_that_are_lifted_after_the_volume_was_made_have_the_usual_time() {
    for is_known in [true, false] {
        let mut world = waiting_for_its_store();
        for (uid, node) in [("run-driver-0", "a"), ("run-trainer-0", "b")] {
            world.find(uid).node = Some(node.into());
        }
        assert!(world.step().is_none());
        if is_known {
            world.runs[0].volumes = of_store("run", Vec::new());
        }
        world.gate_again("run-trainer-0");
        world.find("run-trainer-0").member.as_mut().unwrap().unschedulable = false;
        assert!(matches!(world.step(), Some(Step::Lift { .. })));
        world.unbind("run-trainer-0");
        assert!(world.step().is_none());
        world.now += BIND_DEADLINE;
        let requeues = matches!(world.step(), Some(Step::Requeue { .. }));
        assert_eq!(requeues, is_known);
    }
}

#[test]
fn when_the_volume_exists_the_other_pods_have_the_usual_time() {
    let mut world = waiting_for_its_store();
    world.now += SignedDuration::from_secs(240);
    assert!(world.step().is_none());
    world.find("run-driver-0").node = Some("a".into());
    assert!(world.step().is_none(), "the trainer is bound a moment later");
    world.now += BIND_DEADLINE;
    let step = world.step();
    assert!(matches!(step, Some(Step::Requeue { .. })), "{step:?}");
}

#[test]
fn pods_that_fit_nowhere_are_taken_back_in_time_although_their_claim_has_no_volume() {
    let mut world = waiting_for_its_store();
    let mut status = manifest("run", "driver", 0, 0, json!({}));
    status["spec"]["schedulingGates"] = json!([]);
    status["status"] = json!({"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}]});
    let driver = PodNeeds::of(&serde_json::from_value(status).unwrap());
    assert!(driver.member.as_ref().unwrap().unschedulable);
    *world.find("run-driver-0") = driver;
    world.now += BIND_DEADLINE;
    // What waits for no volume any longer has the usual time from now on.
    assert!(world.step().is_none());
    world.now += BIND_DEADLINE;
    let step = world.step();
    assert!(matches!(step, Some(Step::Requeue { .. })), "{step:?}");
}
