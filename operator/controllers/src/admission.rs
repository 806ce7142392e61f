//! Admits runs whole: the pods of a run carry our scheduling gate, and the leading operator lifts the gates of one run
//! at a time, only when the whole run fits. So two runs never hold half a cluster each and wait for the other half.
//!
//! ```text
//! nodes, all pods (watches) ─► Admission (facts in memory) ─► decide (pure) ─► gates lifted, pods requeued
//! GrpoRun controller: which pods make a run whole ──┘               └─► verdicts ─► the run's condition Admitted
//! ```
//!
//! Driver, trainer and the engines of pools described in a run have gates. Pods of a run with `queueName` have none:
//! they are made when Kueue has admitted the run ([`crate::kueue`]). A lifted gate stays lifted: pods not bound by a
//! deadline are deleted, and their controllers create them again, gated.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use grpo_operator_core::{
    admission::{
        decide::{Chosen, Decision, History, Snapshot, Step, decide},
        facts::{Alike, Candidate, HOSTNAME, NodeFacts, PodNeeds},
        messages,
        verdict::Verdict,
    },
    names,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::{
        WatchStreamExt,
        watcher::{Event, watcher},
    },
};
use serde_json::json;
use tokio::sync::Notify;

use crate::{
    applied::Key,
    metrics::Census,
    parent::{Controlled, Parent},
    watches::{
        config::{Pauses, every_object},
        triggers::Triggers,
    },
};

/// Changes within this time lead to one decision.
const GATHER: Duration = Duration::from_millis(20);
/// Minimum time between updates for a run that still waits for the same reason: every pod changes the numbers in its
/// message, and each update is a write.
const RETELL: SignedDuration = SignedDuration::from_secs(30);
/// A step that the API server refused is retried after this time.
const RETRY: Duration = Duration::from_secs(1);
/// After a start, admission waits this long for runs with pods that are not reconciled yet: they may have precedence.
const REGISTRATION: Duration = Duration::from_secs(10);

/// The state of admission, and its verdicts on the runs.
pub struct Admission {
    state: Mutex<State>,
    changed: Notify,
    scale_up: Option<SignedDuration>,
}

#[derive(Default)]
struct State {
    /// `None` if the operator may not read nodes.
    nodes: Option<BTreeMap<String, NodeFacts>>,
    pods: HashMap<Arc<str>, PodNeeds>,
    alike: Alike,
    nodes_known: bool,
    pods_known: bool,
    candidates: HashMap<String, Candidate>,
    verdicts: HashMap<String, Told>,
    history: History,
}

/// The last verdict sent to a run, and when.
struct Told {
    verdict: Verdict,
    at: Timestamp,
}

impl Admission {
    /// `sees_nodes`: the operator watches all namespaces and may list nodes. `scale_up`: how long to wait for new
    /// nodes, if the cluster adds nodes.
    pub fn new(sees_nodes: bool, scale_up: Option<SignedDuration>) -> Self {
        Self {
            scale_up,
            state: Mutex::new(State {
                nodes: sees_nodes.then(BTreeMap::new),
                nodes_known: !sees_nodes,
                ..State::default()
            }),
            changed: Notify::new(),
        }
    }

    /// Registers a run whose pods wait behind our gate, now or later.
    pub fn expect(&self, candidate: Candidate) {
        let mut state = self.locked();
        if state.candidates.get(&candidate.uid) != Some(&candidate) {
            state.candidates.insert(candidate.uid.clone(), candidate);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Removes a run without waiting pods.
    pub fn forget(&self, run: &str) {
        let mut state = self.locked();
        state.verdicts.remove(run);
        if state.candidates.remove(run).is_some() {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// The verdict on a run; `None` before the first decision on it.
    pub fn verdict(&self, run: &str) -> Option<Verdict> {
        self.locked().verdicts.get(run).map(|told| told.verdict.clone())
    }

    /// Counts the runs that may not start, by the reason of their verdict.
    pub fn count(&self, census: &Census) {
        let state = self.locked();
        let waiting = state.verdicts.values().filter(|told| !told.verdict.admitted);
        waiting.for_each(|told| census.waiting_run(told.verdict.reason.text()));
    }

    /// Whether the operator may read nodes and other cluster-scoped objects.
    pub fn sees_nodes(&self) -> bool {
        self.locked().nodes.is_some()
    }

    /// Memory of the largest GPU of any node, in MiB, by the label of NVIDIA's feature discovery.
    pub fn gpu_memory(&self) -> Option<u64> {
        let state = self.locked();
        let mebibytes = state.nodes.iter().flatten().filter_map(|(_, node)| {
            let text = node.labels.get("nvidia.com/gpu.memory")?;
            text.parse::<u64>().ok()
        });
        mebibytes.max()
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn saw_pod(&self, pod: &Pod) {
        let mut needs = PodNeeds::of(pod);
        let mut state = self.locked();
        state.alike.share(&mut needs);
        let known = state.pods.get(&needs.uid);
        if known.is_some_and(|known| known.version > needs.version) {
            return;
        }
        let same = known.is_some_and(|known| {
            *known
                == PodNeeds {
                    version: known.version,
                    ..needs.clone()
                }
        });
        state.pods.insert(needs.uid.clone(), needs);
        if !same {
            drop(state);
            self.changed.notify_one();
        }
    }

    fn lost_pod(&self, pod: &Pod) {
        self.locked().pods.remove(pod.uid().unwrap_or_default().as_str());
        self.changed.notify_one();
    }

    fn saw_node(&self, node: &Node) {
        let facts = NodeFacts::of(node);
        let mut state = self.locked();
        let Some(nodes) = &mut state.nodes else { return };
        if nodes.get(&facts.name) != Some(&facts) {
            nodes.insert(facts.name.clone(), facts);
            drop(state);
            self.changed.notify_one();
        }
    }

    fn lost_node(&self, node: &Node) {
        if let Some(nodes) = &mut self.locked().nodes {
            nodes.remove(&node.name_any());
        }
        self.changed.notify_one();
    }

    /// Decides on the current state. Also returns the runs with a new verdict.
    fn decide(&self, settled: bool) -> (Option<Step>, Option<Timestamp>, Vec<Parent>) {
        let mut state = self.locked();
        let unsettled = |told: &Told| told.verdict.reason != messages::ADMITTED;
        let waits = state.pods.values().any(is_gated) || state.verdicts.values().any(unsettled);
        let late = state
            .pods
            .values()
            .filter_map(|pod| pod.member.as_ref())
            .any(|member| !state.candidates.contains_key(&member.run));
        let unknown = !state.nodes_known || !state.pods_known || (late && !settled);
        if unknown || (!waits && state.candidates.keys().all(|run| state.verdicts.contains_key(run))) {
            return (None, None, Vec::new());
        }
        let State {
            nodes,
            pods,
            candidates,
            history,
            ..
        } = &mut *state;
        let nodes: Option<Vec<NodeFacts>> = nodes.as_ref().map(|nodes| nodes.values().cloned().collect());
        let now = Timestamp::now();
        let snapshot = Snapshot {
            nodes: nodes.as_deref(),
            pods: pods.values().collect(),
            candidates: candidates.values().collect(),
            now,
            scale_up: self.scale_up,
        };
        let Decision {
            step,
            verdicts,
            mut again_at,
        } = decide(&snapshot, history);
        let mut told = Vec::new();
        for (run, verdict) in verdicts {
            if let Some(known) = state.verdicts.get(&run) {
                if known.verdict == verdict {
                    continue;
                }
                let due = known.at + RETELL;
                if known.verdict.reason == verdict.reason && now < due {
                    again_at = Some(again_at.map_or(due, |at| at.min(due)));
                    continue;
                }
            }
            told.extend(state.candidates.get(&run).map(|run| Parent {
                kind: Controlled::Run,
                namespace: run.namespace.clone(),
                name: run.name.clone(),
            }));
            state.verdicts.insert(run, Told { verdict, at: now });
        }
        (step, again_at, told)
    }
}

fn is_gated(pod: &PodNeeds) -> bool {
    pod.member
        .as_ref()
        .is_some_and(|member| !member.deleting && (member.gated || pod.node.is_none()))
}

/// Admits runs while the process leads.
pub async fn admit_runs(admission: Arc<Admission>, client: Client, triggers: Triggers) {
    let begun = tokio::time::Instant::now();
    let mut due: Option<tokio::time::Instant> = Some(begun + REGISTRATION);
    loop {
        let timer = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = admission.changed.notified() => tokio::time::sleep(GATHER).await,
            () = timer => {}
        }
        let settled = begun.elapsed() >= REGISTRATION;
        let (step, again_at, told) = admission.decide(settled);
        due = again_at.map(|at| {
            let wait = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
            tokio::time::Instant::now() + wait + GATHER
        });
        if !settled {
            let registered = begun + REGISTRATION;
            due = Some(due.map_or(registered, |due| due.min(registered)));
        }
        for parent in told {
            triggers.pull(parent).await;
        }
        if let Some(step) = step {
            if !take(&step, &admission, &client).await {
                let retry = tokio::time::Instant::now() + RETRY;
                due = Some(due.map_or(retry, |due| due.min(retry)));
            }
            admission.changed.notify_one();
        }
    }
}

/// Executes a step; returns false if a part of it must be retried.
async fn take(step: &Step, admission: &Admission, client: &Client) -> bool {
    let (run, pods, lifts) = match step {
        Step::Lift { run, pods } => (run, pods, true),
        Step::Requeue { run, pods } => (run, pods, false),
    };
    tracing::info!(run, pods = pods.len(), lifts, "admission");
    let done = futures::stream::iter(pods.clone())
        .map(|pod| async move {
            if lifts {
                lift(&pod, admission, client).await
            } else {
                requeue(&pod, admission, client).await
            }
        })
        .buffer_unordered(16);
    // Not `all`: it ends at the first failure, and drops the requests under way.
    done.fold(true, |all, one| std::future::ready(all && one)).await
}

async fn lift(pod: &Chosen, admission: &Admission, client: &Client) -> bool {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let gates: Vec<_> = pod.other_gates.iter().map(|gate| json!({"name": gate})).collect();
    let mut patch = json!({"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": gates}});
    if let Some(host) = &pod.host {
        patch["spec"]["nodeSelector"] = json!({HOSTNAME: host});
    }
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    match pods.patch(&pod.name, &params, &Patch::Merge(&patch)).await {
        Ok(lifted) => {
            // Recorded now: no other run may be admitted before the watch shows the change.
            admission.saw_pod(&lifted);
            true
        }
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => true,
        Err(error) => {
            tracing::warn!(pod = pod.name, namespace = pod.namespace, %error, "could not lift the scheduling gate; it is tried again");
            false
        }
    }
}

async fn requeue(pod: &Chosen, admission: &Admission, client: &Client) -> bool {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match pods.delete(&pod.name, &params).await {
        Ok(either) => {
            if let Some(going) = either.left() {
                admission.saw_pod(&going);
            }
            true
        }
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => true,
        Err(error) => {
            tracing::warn!(pod = pod.name, namespace = pod.namespace, %error, "could not requeue the pod behind its gate; it is tried again");
            false
        }
    }
}

/// Keeps the node facts current. Ends only with the process.
pub async fn follow_nodes(api: Api<Node>, admission: Arc<Admission>) {
    let mut events = watcher(api, every_object()).backoff(Pauses::default()).boxed();
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(node)) => {
                listed.insert(node.name_any());
                admission.saw_node(&node);
            }
            Ok(Event::InitDone) => {
                let mut state = admission.locked();
                if let Some(nodes) = &mut state.nodes {
                    nodes.retain(|name, _| listed.contains(name));
                }
                state.nodes_known = true;
                drop(state);
                admission.changed.notify_one();
            }
            Ok(Event::Apply(node)) => admission.saw_node(&node),
            Ok(Event::Delete(node)) => admission.lost_node(&node),
            Err(error) => tracing::warn!(%error, "the watch of nodes was interrupted; it begins anew"),
        }
    }
}

/// Keeps the needs of all pods in the cluster, except those that have ended. Ends only with the process.
pub async fn follow_all_pods(api: Api<Pod>, admission: Arc<Admission>) {
    let config = every_object().fields("status.phase!=Succeeded,status.phase!=Failed");
    let mut events = watcher(api, config).backoff(Pauses::default()).boxed();
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.insert(Key::of("Pod", "", &pod.uid().unwrap_or_default()));
                admission.saw_pod(&pod);
            }
            Ok(Event::InitDone) => {
                let mut state = admission.locked();
                state.pods.retain(|uid, _| listed.contains(&Key::of("Pod", "", uid)));
                state.pods_known = true;
                drop(state);
                listed = HashSet::new();
                admission.changed.notify_one();
            }
            Ok(Event::Apply(pod)) => admission.saw_pod(&pod),
            Ok(Event::Delete(pod)) => admission.lost_pod(&pod),
            Err(error) => tracing::warn!(%error, "the watch of all pods was interrupted; it begins anew"),
        }
    }
}
