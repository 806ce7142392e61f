//! A cluster in memory: admission's decisions are executed against a model of the scheduler.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

use crate::admission::{
    decide::{Decision, History, Snapshot, Step, decide},
    facts::{Candidate, NodeFacts, PodNeeds, VolumeTerms},
    verdict::Verdict,
};

/// A cluster in memory.
#[derive(Clone)]
pub struct World {
    pub nodes: Vec<NodeFacts>,
    pub pods: Vec<PodNeeds>,
    pub runs: Vec<Candidate>,
    pub history: History,
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

    pub fn find(&mut self, uid: &str) -> &mut PodNeeds {
        self.pods.iter_mut().find(|pod| *pod.uid == *uid).unwrap()
    }

    pub fn free(&self, node: &str, resource: &str) -> i64 {
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

    pub fn of<'a>(&'a self, run: &'a str) -> impl Iterator<Item = &'a PodNeeds> {
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

    pub fn end(&mut self, run: &str) {
        self.runs.retain(|other| other.uid != run);
        self.pods
            .retain(|pod| pod.member.as_ref().is_none_or(|member| member.run != run));
    }

    pub fn message(&mut self, run: &str) -> (String, String) {
        let verdict = self.decide().verdicts.remove(run).unwrap();
        (verdict.reason.into(), verdict.message)
    }
}

pub fn node(name: &str, gpus: u32) -> NodeFacts {
    node_from(
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()},
                   "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": null, "lastTransitionTime": null}]}}),
    )
}

pub fn node_from(node: serde_json::Value) -> NodeFacts {
    NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap())
}

pub fn pod(run: &str, role: &str, rank: u32, gpus: u32) -> PodNeeds {
    pod_from(run, role, rank, gpus, json!({}))
}

pub fn pod_from(run: &str, role: &str, rank: u32, gpus: u32, more: serde_json::Value) -> PodNeeds {
    PodNeeds::of(&serde_json::from_value::<Pod>(manifest(run, role, rank, gpus, more)).unwrap())
}

pub fn manifest(run: &str, role: &str, rank: u32, gpus: u32, more: serde_json::Value) -> serde_json::Value {
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

pub fn mounted(claim: &str) -> serde_json::Value {
    json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
}

pub fn candidate(name: &str, age: i64, trainers: u32, engines: u32) -> Candidate {
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
        volumes: VolumeTerms::from([(format!("{name}-store"), Vec::new())]),
        provisioning: BTreeSet::new(),
    }
}

pub fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
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
