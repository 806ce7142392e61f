//! Simulated admission: executes decisions against a model of the scheduler; no run may end up with only half of its
//! pods.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeSelectorTerm, Pod};
use proptest::prelude::*;
use serde_json::json;

use super::{
    decide::{BIND_DEADLINE, Decision, History, PATIENCE, Snapshot, Step, decide},
    facts::{Candidate, NodeFacts, PodNeeds, VolumeTerms},
    verdict::Verdict,
};

pub fn node(name: &str, gpus: u32) -> NodeFacts {
    node_from(
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()},
                   "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": null, "lastTransitionTime": null}]}}),
    )
}

fn node_from(node: serde_json::Value) -> NodeFacts {
    NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap())
}

pub fn pod(run: &str, role: &str, rank: u32, gpus: u32) -> PodNeeds {
    pod_from(run, role, rank, gpus, json!({}))
}

pub fn pod_from(run: &str, role: &str, rank: u32, gpus: u32, more: serde_json::Value) -> PodNeeds {
    PodNeeds::of(&serde_json::from_value::<Pod>(manifest(run, role, rank, gpus, more)).unwrap())
}

fn manifest(run: &str, role: &str, rank: u32, gpus: u32, more: serde_json::Value) -> serde_json::Value {
    let (kind, uid) = match role {
        "engine" => ("InferencePool", format!("{run}-pool")),
        _ => ("GrpoRun", run.to_owned()),
    };
    // Engine replicas have one pod here.
    let place = if role == "engine" {
        "grpo.dev/group"
    } else {
        "grpo.dev/rank"
    };
    let labels = json!({"grpo.dev/role": role, "grpo.dev/attempt": "1", place: rank.to_string()});
    let mut pod = json!({
        "metadata": {
            "name": format!("{run}-{role}-1-{rank}"), "namespace": "team", "uid": format!("{run}-{role}-{rank}"), "resourceVersion": "1",
            "labels": labels,
            "annotations": {"grpo.dev/admitted-with": run},
            "ownerReferences": [{"apiVersion": "grpo.dev/v1alpha1", "kind": kind, "name": run, "uid": uid, "controller": true}],
        },
        "spec": {
            "schedulingGates": [{"name": "grpo.dev/admission"}],
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": gpus.to_string()}}}],
        },
    });
    if role != "engine" {
        pod["spec"]["volumes"] = json!([mounted(&format!("{run}-store"))]);
    }
    for (key, value) in more.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn mounted(claim: &str) -> serde_json::Value {
    json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
}

fn of_store(run: &str, terms: Vec<NodeSelectorTerm>) -> VolumeTerms {
    BTreeMap::from([(format!("{run}-store"), terms)])
}

fn candidate(name: &str, age: i64, trainers: u32, engines: u32) -> Candidate {
    let mut whole = BTreeMap::from([("driver", 1)]);
    if trainers > 0 {
        whole.insert("trainer", trainers);
    }
    if engines > 0 {
        whole.insert("engine", engines);
    }
    Candidate {
        uid: name.into(),
        namespace: "team".into(),
        name: name.into(),
        created: start() - SignedDuration::from_secs(age),
        pool: Some(format!("{name}-pool")),
        unclaimed: false,
        whole,
        volumes: VolumeTerms::new(),
    }
}

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// A cluster in memory.
#[derive(Clone)]
pub struct World {
    pub nodes: Vec<NodeFacts>,
    pub pods: Vec<PodNeeds>,
    runs: Vec<Candidate>,
    history: History,
    pub now: Timestamp,
    pub scale_up: Option<SignedDuration>,
}

impl World {
    pub fn new(nodes: Vec<NodeFacts>) -> Self {
        Self {
            nodes,
            pods: Vec::new(),
            runs: Vec::new(),
            history: History::default(),
            now: start(),
            scale_up: None,
        }
    }

    /// Adds a run with trainer ranks of `gpus` each, and engines of `engine_gpus`.
    pub fn add(&mut self, name: &str, age: i64, trainers: (u32, u32), engines: (u32, u32)) {
        self.runs.push(candidate(name, age, trainers.0, engines.0));
        self.pods.push(pod(name, "driver", 0, 0));
        self.pods
            .extend((0..trainers.0).map(|rank| pod(name, "trainer", rank, trainers.1)));
        self.pods
            .extend((0..engines.0).map(|rank| pod(name, "engine", rank, engines.1)));
    }

    pub fn decide(&mut self) -> Decision {
        let snapshot = Snapshot {
            nodes: Some(&self.nodes),
            pods: self.pods.iter().collect(),
            candidates: self.runs.iter().collect(),
            now: self.now,
            scale_up: self.scale_up,
        };
        decide(&snapshot, &mut self.history)
    }

    /// Decides and executes; the scheduler binds pods that fit, to the node that admission chose.
    pub fn step(&mut self) -> Option<Step> {
        let step = self.decide().step?;
        match &step {
            Step::Lift { pods, .. } => {
                for chosen in pods {
                    let host = chosen.host.clone();
                    let pod = self.find(&chosen.uid);
                    let member = pod.member.as_mut().unwrap();
                    member.gated = false;
                    if let Some(host) = host {
                        Arc::make_mut(&mut member.selector).insert("kubernetes.io/hostname".into(), host);
                    }
                }
                self.schedule();
            }
            Step::Requeue { pods, .. } => {
                for chosen in pods {
                    let pod = self.find(&chosen.uid);
                    pod.node = None;
                    let member = pod.member.as_mut().unwrap();
                    member.gated = true;
                    member.selector = Arc::default();
                }
            }
        }
        Some(step)
    }

    fn find(&mut self, uid: &str) -> &mut PodNeeds {
        self.pods.iter_mut().find(|pod| *pod.uid == *uid).unwrap()
    }

    fn free(&self, node: &str, resource: &str) -> i64 {
        let all = self.nodes.iter().find(|facts| facts.name == node).unwrap();
        let used: i64 = self
            .pods
            .iter()
            .filter(|pod| pod.node.as_deref() == Some(node))
            .map(|pod| pod.requests.get(resource).copied().unwrap_or(0))
            .sum();
        all.allocatable.get(resource).copied().unwrap_or(0) - used
    }

    /// Acts as kube-scheduler for ungated pods, in their order in the list.
    pub fn schedule(&mut self) {
        for n in 0..self.pods.len() {
            let pod = &self.pods[n];
            let Some(member) = pod.member.as_ref().filter(|member| pod.node.is_none() && !member.gated) else {
                continue;
            };
            let place = self.nodes.iter().find(|node| {
                node.admits(member)
                    && pod
                        .requests
                        .iter()
                        .all(|(resource, amount)| self.free(&node.name, resource) >= *amount)
            });
            let place = place.map(|node| Arc::from(node.name.as_str()));
            self.pods[n].node = place;
        }
    }

    pub fn settle(&mut self) {
        for _ in 0..50 {
            if self.step().is_none() {
                return;
            }
        }
        panic!("admission does not come to rest");
    }

    pub fn bound(&self, run: &str) -> usize {
        self.of(run).filter(|pod| pod.node.is_some()).count()
    }

    fn of<'a>(&'a self, run: &'a str) -> impl Iterator<Item = &'a PodNeeds> {
        self.pods
            .iter()
            .filter(move |pod| pod.member.as_ref().is_some_and(|member| member.run == run))
    }

    /// Removes a node and creates its pods again.
    pub fn lose_node(&mut self, name: &str) {
        self.nodes.retain(|node| node.name != name);
        let lost: Vec<String> = self
            .pods
            .iter()
            .filter(|pod| pod.node.as_deref() == Some(name))
            .map(|pod| pod.uid.to_string())
            .collect();
        lost.iter().for_each(|uid| self.gate_again(uid));
    }

    /// Gates a pod that was created again.
    pub fn gate_again(&mut self, uid: &str) {
        self.unbind(uid);
        let member = self.find(uid).member.as_mut().unwrap();
        member.gated = true;
        member.selector = Arc::default();
    }

    /// Unbinds a pod from its node.
    pub fn unbind(&mut self, uid: &str) {
        self.find(uid).node = None;
    }

    /// Another operator process takes over.
    pub fn restart(&mut self) {
        self.history = History::default();
    }

    /// Adds a replica to a run's engines.
    pub fn add_engine(&mut self, run: &str, replica: u32, gpus: u32) {
        let candidate = self.runs.iter_mut().find(|candidate| candidate.uid == run).unwrap();
        *candidate.whole.entry("engine").or_default() += 1;
        self.pods.push(pod(run, "engine", replica, gpus));
    }

    pub fn is_whole(&self, run: &str) -> bool {
        self.of(run).all(|pod| pod.node.is_some())
    }

    fn end(&mut self, run: &str) {
        self.runs.retain(|other| other.uid != run);
        self.pods
            .retain(|pod| pod.member.as_ref().is_none_or(|member| member.run != run));
    }

    pub fn message(&mut self, run: &str) -> (String, String) {
        let verdict = self.decide().verdicts.remove(run).unwrap();
        (verdict.reason.into(), verdict.message)
    }
}

/// The verdict on a run with (trainers, GPUs each) and (engines, GPUs each) while another run has most of three nodes.
pub fn waits_for_gpus(run: &str, trainers: (u32, u32), engines: (u32, u32)) -> Verdict {
    let mut world = World::new(vec![node("node-a", 8), node("node-b", 8), node("node-c", 8)]);
    world.add("other", 60, (2, 8), (1, 5));
    world.settle();
    world.add(run, 30, trainers, engines);
    world.settle();
    world.decide().verdicts.remove(run).unwrap()
}

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

/// GPUs of a node, or of one pod.
fn sizes() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1u32), Just(2), Just(3), Just(4), Just(5), Just(8)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// When admission has settled, every run is whole or holds nothing. A run that is never admitted would not fit even
    /// alone.
    #[test]
    fn there_is_neither_a_half_placed_run_nor_a_deadlock(
        nodes in prop::collection::vec(sizes(), 1..6),
        runs in prop::collection::vec(((1u32..4, sizes()), (0u32..4, sizes())), 2..5),
    ) {
        let nodes: Vec<NodeFacts> = nodes.iter().enumerate().map(|(n, gpus)| node(&format!("node-{n}"), *gpus)).collect();
        let mut world = World::new(nodes.clone());
        for (n, (trainers, engines)) in runs.iter().enumerate() {
            world.add(&format!("run-{n}"), 100 - i64::try_from(n).unwrap(), *trainers, *engines);
        }
        let mut unfinished: Vec<usize> = (0..runs.len()).collect();
        // Runs end one after the other; after each end, the rest settles again.
        loop {
            world.settle();
            for n in &unfinished {
                let run = format!("run-{n}");
                prop_assert!(world.is_whole(&run) || world.bound(&run) == 0, "{run} is half placed");
            }
            let Some(whole) = unfinished.iter().copied().find(|n| world.is_whole(&format!("run-{n}"))) else { break };
            world.end(&format!("run-{whole}"));
            unfinished.retain(|n| *n != whole);
        }
        for n in unfinished {
            let mut sizes: Vec<u32> = std::iter::repeat_n(runs[n].0.1, runs[n].0.0 as usize)
                .chain(std::iter::repeat_n(runs[n].1.1, runs[n].1.0 as usize))
                .collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            let mut free: Vec<u32> = nodes.iter().map(|node| {
                u32::try_from(node.allocatable.get("nvidia.com/gpu").copied().unwrap_or(0) / 1000).unwrap()
            }).collect();
            prop_assert!(!fits(&sizes, &mut free), "run-{n} would fit alone and was never admitted");
        }
    }
}

/// Exact packing by exhaustive search.
fn fits(sizes: &[u32], free: &mut [u32]) -> bool {
    let Some((first, rest)) = sizes.split_first() else {
        return true;
    };
    for n in 0..free.len() {
        if free[n] >= *first {
            free[n] -= first;
            let fitted = fits(rest, free);
            free[n] += first;
            if fitted {
                return true;
            }
        }
    }
    false
}
