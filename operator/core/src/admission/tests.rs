//! Simulated admission on a cluster in memory ([`world`]): no run may end up with only half of its pods.

mod volumes;
mod whole_or_nothing;
mod world;

pub use world::{World, node, pod, pod_from, waits_for_gpus};

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use world::{candidate, manifest};

use super::{
    decide::{BIND_DEADLINE, PATIENCE, Snapshot, Step, decide},
    facts::PodNeeds,
};

#[test]
fn of_two_runs_that_fit_alone_only_one_holds_devices() {
    let mut world = World::new(vec![node("a", 8), node("b", 8)]);
    world.add("old", 60, (1, 8), (1, 4));
    world.add("young", 30, (1, 8), (1, 4));
    world.settle();
    assert!(world.is_whole("old"));
    assert_eq!(world.bound("young"), 0);
    let (reason, message) = world.message("young");
    assert_eq!(reason, "WaitsForCapacity");
    for words in [
        "1 trainer pod of 8 nvidia.com/gpu",
        "12 nvidia.com/gpu asked, 4 free",
        "b 4 of 8",
    ] {
        assert!(message.contains(words), "{message}");
    }
    world.end("old");
    world.settle();
    assert!(world.is_whole("young"));
}

#[test]
fn small_pods_do_not_take_the_halves_that_a_large_one_needs() {
    // The scheduler model, like the real one, would spread; the plan packs, and pins.
    let mut world = World::new(vec![node("a", 8), node("b", 8)]);
    world.add("run", 60, (2, 4), (1, 8));
    world.settle();
    assert!(world.is_whole("run"), "{:?}", world.pods);
}

#[test]
fn what_fits_only_by_an_unusual_packing_is_found() {
    let mut world = World::new(vec![node("a", 8), node("b", 7)]);
    // 5+3 and 4+3 fill the nodes; 4 next to 3 on the first would not.
    world.runs.push(candidate("run", 60, 4, 0));
    world.pods.push(pod("run", "driver", 0, 0));
    for (rank, gpus) in [(0, 5), (1, 4), (2, 3), (3, 3)] {
        world.pods.push(pod("run", "trainer", rank, gpus));
    }
    world.settle();
    assert!(world.is_whole("run"));
}

#[test]
fn a_run_that_does_not_fit_holds_nobody_up() {
    let mut world = World::new(vec![node("a", 8)]);
    world.add("large", 60, (4, 8), (0, 0));
    world.add("small", 30, (1, 4), (0, 0));
    world.settle();
    assert!(world.is_whole("small"));
    let (reason, message) = world.message("large");
    assert_eq!(reason, "NeverFits");
    assert!(message.contains("4 trainer pods of 8 nvidia.com/gpu"), "{message}");
}

#[test]
fn a_higher_priority_goes_first() {
    let mut world = World::new(vec![node("a", 8)]);
    world.add("old", 60, (1, 8), (0, 0));
    world.add("urgent", 30, (1, 8), (0, 0));
    for pod in &mut world.pods {
        let member = pod.member.as_mut().unwrap();
        member.priority = if member.run == "urgent" { 1000 } else { 0 };
    }
    world.settle();
    assert!(world.is_whole("urgent"));
    assert_eq!(world.bound("old"), 0);
}

#[test]
fn nothing_is_admitted_before_all_pods_of_the_run_are_made() {
    let mut world = World::new(vec![node("a", 8), node("b", 8)]);
    world.add("run", 60, (2, 4), (1, 4));
    let engine = world.pods.pop().unwrap();
    world.settle();
    assert_eq!(world.bound("run"), 0);
    assert_eq!(world.message("run").0, "WaitsForPods");
    world.pods.push(engine);
    world.settle();
    assert!(world.is_whole("run"));
}

#[test]
fn a_run_whose_pods_are_not_bound_in_time_goes_back_whole() {
    let mut world = World::new(vec![node("a", 8), node("b", 8)]);
    world.add("run", 60, (2, 8), (0, 0));
    let lifted = world.decide().step.unwrap();
    let Step::Lift { pods, .. } = &lifted else {
        panic!("{lifted:?}")
    };
    for chosen in pods {
        world.find(&chosen.uid).member.as_mut().unwrap().gated = false;
    }
    // A constraint unknown to admission keeps one of them away.
    world.find("run-trainer-0").node = Some("a".into());
    assert!(world.step().is_none(), "the scheduler is given time");
    world.now += BIND_DEADLINE;
    let step = world.step().unwrap();
    let Step::Requeue { pods, .. } = &step else {
        panic!("{step:?}")
    };
    assert_eq!(pods.len(), 3);
    assert_eq!(world.bound("run"), 0);
    let (reason, message) = world.message("run");
    assert_eq!(reason, "Requeued");
    assert!(message.contains("hold nothing"), "{message}");
    world.now += SignedDuration::from_secs(16);
    assert!(
        matches!(world.decide().step, Some(Step::Lift { .. })),
        "it is tried again"
    );
}

#[test]
fn while_one_run_is_being_bound_no_other_is_admitted() {
    let mut world = World::new(vec![node("a", 8), node("b", 8)]);
    world.add("first", 60, (1, 8), (0, 0));
    world.add("second", 30, (1, 8), (0, 0));
    let Some(Step::Lift { run, pods }) = world.decide().step else {
        panic!()
    };
    assert_eq!(run, "first");
    for chosen in pods {
        world.find(&chosen.uid).member.as_mut().unwrap().gated = false;
    }
    assert!(world.step().is_none());
    assert_eq!(world.message("second").0, "BehindAnotherRun");
    world.schedule();
    world.settle();
    assert!(world.is_whole("second"));
}

#[test]
fn a_run_that_lost_its_ranks_gets_them_back_before_others_begin() {
    let mut world = World::new(vec![node("a", 8), node("b", 8)]);
    world.add("running", 60, (1, 8), (1, 4));
    world.settle();
    world.add("new", 600, (1, 8), (0, 0));
    // A rank of a new attempt; its node is not back yet.
    let its_node = world.find("running-trainer-0").node.clone().unwrap();
    let lost = world.nodes.iter().position(|node| node.name == *its_node).unwrap();
    world.pods.retain(|pod| &*pod.uid != "running-trainer-0");
    let mut again = pod("running", "trainer", 0, 8);
    again.member.as_mut().unwrap().attempt = 2;
    world.pods.push(again);
    world.nodes[lost].usable = false;
    world.settle();
    assert_eq!(world.bound("new"), 0, "it would take what the other waits for");
    world.nodes[lost].usable = true;
    world.settle();
    assert!(world.is_whole("running"));
    assert_eq!(world.bound("new"), 0);
}

#[test]
fn ranks_are_not_put_where_the_scheduler_keeps_room_for_a_pod_that_preempted_them() {
    let mut world = World::new(vec![node("a", 8), node("b", 8)]);
    world.add("run", 60, (2, 8), (0, 0));
    let urgent = json!({
        "metadata": {"name": "urgent", "namespace": "team", "uid": "urgent", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": {"nominatedNodeName": "b"},
    });
    let urgent = PodNeeds::of(&serde_json::from_value::<Pod>(urgent).unwrap());
    world.pods.push(urgent);
    world.settle();
    assert_eq!(world.bound("run"), 0);
    world.nodes.push(node("c", 8));
    world.settle();
    assert!(world.is_whole("run"));
}

#[test]
fn a_run_that_cannot_be_made_whole_again_does_not_hold_others_up_for_ever() {
    let mut world = World::new(vec![node("a", 8), node("b", 8)]);
    world.add("torn", 60, (1, 8), (1, 8));
    world.settle();
    world.nodes[1].usable = false;
    let torn: Vec<String> = world
        .of("torn")
        .filter(|pod| pod.node.as_deref() == Some("b"))
        .map(|pod| pod.uid.to_string())
        .collect();
    for uid in &torn {
        let pod = world.find(uid);
        pod.node = None;
        let member = pod.member.as_mut().unwrap();
        member.gated = true;
        member.selector = Arc::default();
    }
    world.add("waiting", 30, (1, 8), (0, 0));
    world.settle();
    assert_eq!(world.bound("waiting"), 0);
    world.now += PATIENCE;
    world.settle();
    assert!(world.is_whole("waiting"));
    assert_eq!(world.bound("torn"), 0);
}

#[test]
fn a_run_that_works_keeps_its_pods_and_keeps_nobody_waiting_while_replicas_wait() {
    let mut world = World::new(vec![node("a", 8), node("b", 4)]);
    world.add("scaled", 60, (1, 4), (1, 4));
    world.settle();
    // Its pool gets a replica that no node has room for.
    world.pods.push(pod("scaled", "engine", 1, 8));
    world.add("small", 30, (1, 4), (0, 0));
    world.add("large", 20, (1, 8), (0, 0));
    world.settle();
    assert!(world.is_whole("small"), "it does not wait for a replica of another run");
    for _ in 0..3 {
        world.now += PATIENCE;
        world.settle();
        assert_eq!(world.bound("scaled"), 3, "driver, trainer and an engine stay");
    }
    let told = world.decide().verdicts.remove("scaled").unwrap();
    assert!(told.admitted, "{told:?}");
    assert_eq!(told.reason, "ReplicasWait");
    assert!(told.message.contains("1 engine pod of 8 nvidia.com/gpu"), "{told:?}");
    assert_eq!(world.message("large").0, "WaitsForCapacity");
}

#[test]
fn a_run_works_when_driver_trainer_and_one_whole_engine_are_on_nodes() {
    /// Role, rank, and whether the pod is on a node.
    type PodThere = (&'static str, u32, bool);
    // Pods, and whether the run works without the pods that are not on nodes.
    let cases: [(&[PodThere], bool); 6] = [
        (
            &[
                ("driver", 0, true),
                ("trainer", 0, true),
                ("engine", 0, true),
                ("engine", 1, false),
            ],
            true,
        ),
        (
            &[("driver", 0, true), ("trainer", 0, true), ("engine", 0, false)],
            false,
        ),
        (
            &[
                ("driver", 0, true),
                ("trainer", 0, true),
                ("engine", 0, true),
                ("engine", 0, false),
            ],
            false,
        ),
        (
            &[("driver", 0, true), ("trainer", 0, false), ("engine", 0, true)],
            false,
        ),
        (
            &[("driver", 0, false), ("trainer", 0, true), ("engine", 0, true)],
            false,
        ),
        (&[("driver", 0, true), ("engine", 0, true), ("engine", 1, false)], false),
    ];
    for (pods, works) in cases {
        let mut world = World::new(Vec::new());
        world.runs.push(candidate("run", 60, 1, 1));
        for (n, (role, rank, placed)) in pods.iter().enumerate() {
            let mut pod = pod("run", role, *rank, 1);
            pod.uid = format!("{n}").into();
            if *placed {
                pod.node = Some("gone".into());
                pod.member.as_mut().unwrap().gated = false;
            }
            world.pods.push(pod);
        }
        let told = world.decide().verdicts.remove("run").unwrap();
        assert_eq!(told.admitted, works, "{pods:?}: {told:?}");
    }
}

#[test]
fn a_run_that_refers_to_a_pool_claims_it_before_its_gates_are_lifted() {
    let mut world = World::new(vec![node("a", 8)]);
    world.add("run", 60, (1, 8), (0, 0));
    world.runs[0].unclaimed = true;
    assert!(world.step().is_none());
    assert_eq!(world.message("run").0, "ClaimsPool");
    world.runs[0].unclaimed = false;
    world.settle();
    assert!(world.is_whole("run"));
    world.add("large", 60, (2, 8), (0, 0));
    world.runs[1].unclaimed = true;
    assert_eq!(world.message("large").0, "NeverFits", "it asks for no claim");
}

#[test]
fn a_torn_run_stays_while_nobody_would_fit_in_its_place() {
    let mut world = World::new(vec![node("a", 8), node("b", 8)]);
    world.add("torn", 60, (1, 8), (1, 8));
    world.settle();
    world.nodes[1].usable = false;
    let lost = world.pods.iter_mut().filter(|pod| pod.node.as_deref() == Some("b"));
    for pod in lost {
        pod.node = None;
        let member = pod.member.as_mut().unwrap();
        member.gated = true;
        member.selector = Arc::default();
    }
    world.settle();
    let held = world.bound("torn");
    assert!(held > 0 && !world.is_whole("torn"));
    world.add("larger", 30, (2, 8), (0, 0));
    for _ in 0..3 {
        world.now += PATIENCE;
        world.settle();
        assert_eq!(world.bound("torn"), held);
    }
    world.add("fits", 10, (1, 8), (0, 0));
    world.now += PATIENCE;
    world.settle();
    assert!(world.is_whole("fits"));
    assert_eq!(world.bound("torn"), 0);
}

#[test]
fn a_foreign_pod_that_claims_to_be_admitted_with_a_run_holds_nobody_up() {
    let owner = |kind: &str, uid: &str, controller: bool| json!([{"apiVersion": "grpo.dev/v1alpha1", "kind": kind, "name": "run", "uid": uid, "controller": controller}]);
    let changes = [
        ("no controller", "trainer", json!({"ownerReferences": null})),
        (
            "an owner that does not control it",
            "trainer",
            json!({"ownerReferences": owner("GrpoRun", "run", false)}),
        ),
        (
            "another run",
            "trainer",
            json!({"ownerReferences": owner("GrpoRun", "other", true)}),
        ),
        (
            "another kind",
            "trainer",
            json!({"ownerReferences": owner("SandboxPool", "run", true)}),
        ),
        (
            "another pool",
            "engine",
            json!({"ownerReferences": owner("InferencePool", "shared-pool", true)}),
        ),
        (
            "a trainer of a pool",
            "trainer",
            json!({"ownerReferences": owner("InferencePool", "run-pool", true)}),
        ),
        (
            "an engine of the run",
            "engine",
            json!({"ownerReferences": owner("GrpoRun", "run", true)}),
        ),
        ("another namespace", "trainer", json!({"namespace": "elsewhere"})),
        (
            "a run of another group",
            "trainer",
            json!({"ownerReferences": [{"apiVersion": "example.com/v1", "kind": "GrpoRun", "name": "run", "uid": "run", "controller": true}]}),
        ),
    ];
    for (what, role, metadata) in changes {
        let mut world = World::new(vec![node("a", 8)]);
        world.runs.push(candidate("run", 60, 0, 0));
        let mut foreign = manifest("run", role, 7, 1, json!({"schedulingGates": []}));
        for (key, value) in metadata.as_object().unwrap() {
            foreign["metadata"][key] = value.clone();
        }
        world
            .pods
            .push(PodNeeds::of(&serde_json::from_value::<Pod>(foreign).unwrap()));
        world.add("good", 30, (1, 8), (0, 0));
        let step = world.decide().step;
        assert!(
            matches!(&step, Some(Step::Lift { run, .. }) if run == "good"),
            "{what}: {step:?}"
        );
    }
}

#[test]
fn taints_selectors_cordons_and_affinities_are_respected() {
    let mut nodes = [
        node("plain", 8),
        node("tainted", 8),
        node("cordoned", 8),
        node("labelled", 8),
    ];
    nodes[1].taints = serde_json::from_value(json!([{"key": "gpu", "value": "h100", "effect": "NoSchedule"}])).unwrap();
    nodes[2].usable = false;
    nodes[3].labels.insert("card".into(), "h100".into());
    let may = |more: serde_json::Value| -> Vec<String> {
        let pod = pod_from("run", "trainer", 0, 1, more);
        let member = pod.member.unwrap();
        let may = nodes.iter().filter(|node| node.admits(&member));
        may.map(|node| node.name.clone()).collect()
    };
    assert_eq!(may(json!({})), ["plain", "labelled"]);
    assert_eq!(may(json!({"nodeSelector": {"card": "h100"}})), ["labelled"]);
    let tolerates =
        json!({"tolerations": [{"key": "gpu", "operator": "Equal", "value": "h100", "effect": "NoSchedule"}]});
    assert_eq!(may(tolerates), ["plain", "tainted", "labelled"]);
    assert_eq!(
        may(json!({"tolerations": [{"operator": "Exists"}]})),
        ["plain", "tainted", "labelled"]
    );
    let avoids = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["plain"]}]}]}}}});
    assert_eq!(may(avoids), ["labelled"]);
}

#[test]
fn nodes_that_pods_avoid_are_taken_only_where_nothing_else_fits() {
    let not = |name: &str| {
        let field = json!({"key": "metadata.name", "operator": "NotIn", "values": [name]});
        json!({"weight": 100, "preference": {"matchFields": [field]}})
    };
    let avoids = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [not("a"), not("b")]}}});
    let nodes_of = |names: &[&str]| -> Vec<String> {
        let mut world = World::new(names.iter().map(|name| node(name, 8)).collect());
        world.runs.push(candidate("run", 60, 2, 0));
        world.pods.push(pod("run", "driver", 0, 0));
        for rank in 0..2 {
            world.pods.push(pod_from("run", "trainer", rank, 8, avoids.clone()));
        }
        world.settle();
        let trainers = world
            .of("run")
            .filter(|pod| pod.member.as_ref().unwrap().role == "trainer");
        let mut nodes: Vec<_> = trainers
            .filter_map(|pod| pod.node.as_deref().map(str::to_owned))
            .collect();
        nodes.sort();
        nodes
    };
    assert_eq!(nodes_of(&["a", "b", "c", "d"]), ["c", "d"]);
    assert_eq!(nodes_of(&["a", "b", "c"]).last().map(String::as_str), Some("c"));
    assert_eq!(nodes_of(&["a", "b"]), ["a", "b"], "a cluster of exactly the run's size");
}

#[test]
fn an_operator_that_may_not_look_at_nodes_lets_one_run_in_after_the_other() {
    let mut world = World::new(Vec::new());
    world.add("run", 60, (2, 8), (0, 0));
    let snapshot = Snapshot {
        nodes: None,
        pods: world.pods.iter().collect(),
        candidates: world.runs.iter().collect(),
        now: world.now,
        scale_up: None,
    };
    let decision = decide(&snapshot, &mut world.history);
    assert!(matches!(decision.step, Some(Step::Lift { ref pods, .. }) if pods.len() == 3));
}
