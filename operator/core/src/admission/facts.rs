//! What admission knows about nodes and pods: capacity, use and requests. A few hundred bytes for each.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use grpo_crds::{GrpoRun, InferencePool};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Affinity, Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Taint, Toleration},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{Resource, ResourceExt};

use crate::{
    names::{self, role},
    quantity::thousandths,
};

/// The label with a node's host name.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// The resource that counts pods: every pod takes one.
const PODS: &str = "pods";

/// Amounts by resource, in thousandths.
pub type Amounts = BTreeMap<Arc<str>, i64>;

/// The facts about one node that admission needs.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Taints that keep pods away.
    pub taints: Vec<Taint>,
    /// New pods may be bound to the node.
    pub usable: bool,
    pub allocatable: Amounts,
}

/// The facts about one pod, of any owner, that admission needs.
#[derive(Clone, Debug, PartialEq)]
pub struct PodNeeds {
    pub namespace: String,
    pub name: String,
    pub uid: Arc<str>,
    /// The pod's resourceVersion: an older sighting never replaces a newer one.
    pub version: u64,
    /// The node it is bound to.
    pub node: Option<Arc<str>>,
    /// The node that the scheduler reserves for the pod, usually because it preempts other pods there.
    pub promised: Option<Arc<str>>,
    pub requests: Arc<Amounts>,
    /// Set only if the pod's controller is a run or an InferencePool.
    pub member: Option<Box<Member>>,
}

/// A pod that is admitted with its run.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Uid of the run.
    pub run: String,
    /// Uid of the InferencePool that controls an engine's pod; the run controls the others.
    pub pool: Option<String>,
    pub role: String,
    /// The group within the role: an engine's replica.
    pub group: u32,
    pub attempt: u32,
    pub gated: bool,
    pub deleting: bool,
    pub priority: i32,
    /// Scheduling gates of other controllers, which stay.
    pub other_gates: Vec<String>,
    pub selector: Arc<BTreeMap<String, String>>,
    /// Required node affinity: any of the terms.
    pub terms: Vec<NodeSelectorTerm>,
    /// PersistentVolumeClaims that the pod mounts.
    pub claims: Vec<String>,
    /// Names of nodes that the pod prefers to avoid.
    pub avoids: Vec<String>,
    pub tolerations: Arc<Vec<Toleration>>,
    /// The pods of a run with this flag must share one node, the node of their volume.
    pub together: bool,
    /// The pod has a constraint that admission does not evaluate: only the scheduler knows which nodes are possible.
    pub beyond_us: bool,
    /// The scheduler tried the pod and found no node for it.
    pub unschedulable: bool,
}

impl NodeFacts {
    pub fn of(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let ready = status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let cordoned = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        let repels = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        Self {
            name: node.name_any(),
            labels: node.labels().clone(),
            taints: spec
                .and_then(|spec| spec.taints.as_ref())
                .into_iter()
                .flatten()
                .filter(repels)
                .cloned()
                .collect(),
            usable: ready && !cordoned && node.metadata.deletion_timestamp.is_none(),
            allocatable: amounts(status.and_then(|status| status.allocatable.as_ref())),
        }
    }

    /// Whether the scheduler may bind this pod here, if there is capacity.
    pub fn admits(&self, pod: &Member) -> bool {
        self.usable
            && pod
                .selector
                .iter()
                .all(|(key, value)| self.labels.get(key) == Some(value))
            && self.is_one_of(&pod.terms)
            && self
                .taints
                .iter()
                .all(|taint| pod.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
    }

    /// Whether all volumes that the pod mounts can be reached from here.
    pub fn reaches(&self, pod: &Member, volumes: &VolumeTerms) -> bool {
        let mut terms = pod.claims.iter().filter_map(|claim| volumes.get(claim));
        terms.all(|terms| self.is_one_of(terms))
    }

    /// Whether the node matches any of the terms, or there are no terms.
    pub fn is_one_of(&self, terms: &[NodeSelectorTerm]) -> bool {
        terms.is_empty() || terms.iter().any(|term| self.matches(term))
    }

    fn matches(&self, term: &NodeSelectorTerm) -> bool {
        let labels = term.match_expressions.iter().flatten();
        let fields = term.match_fields.iter().flatten();
        labels
            .into_iter()
            .all(|wanted| satisfies(wanted, self.labels.get(&wanted.key).map(String::as_str)))
            && fields
                .into_iter()
                .all(|wanted| satisfies(wanted, (wanted.key == "metadata.name").then_some(self.name.as_str())))
    }
}

/// Whether a label's value satisfies a requirement.
fn satisfies(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|one| one == value));
    let compared = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match wanted.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(|(value, bound)| value > bound),
        "Lt" => compared().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().filter(|effect| !effect.is_empty());
    let key = toleration.key.as_deref().filter(|key| !key.is_empty());
    let value = || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    effect.is_none_or(|effect| effect == taint.effect)
        && match toleration.operator.as_deref() {
            Some("Exists") => key.is_none_or(|key| key == taint.key),
            _ => key == Some(taint.key.as_str()) && value(),
        }
}

impl PodNeeds {
    pub fn of(pod: &Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let member = admitted_with(pod).map(|(run, pool)| {
            let deleting = pod.metadata.deletion_timestamp.is_some();
            Box::new(Member {
                pool,
                unschedulable: is_unschedulable(pod),
                ..Member::of(run, &spec, pod.labels(), deleting)
            })
        });
        Self {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default().into(),
            version: pod
                .resource_version()
                .and_then(|version| version.parse().ok())
                .unwrap_or(0),
            node: spec.node_name.as_deref().map(Arc::from),
            promised: pod
                .status
                .as_ref()
                .and_then(|status| status.nominated_node_name.as_deref())
                .filter(|node| !node.is_empty() && spec.node_name.is_none())
                .map(Arc::from),
            requests: requests(&spec).into(),
            member,
        }
    }
}

impl PodNeeds {
    /// A planned pod: it needs a place even without a run that admits it.
    pub fn planned(pod: &Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        Self {
            member: Some(Box::new(Member::of("", &spec, pod.labels(), false))),
            ..Self::of(pod)
        }
    }
}

/// Returns the run that a pod is admitted with, and the pool that controls the pod if the run does not. Anyone can
/// write an annotation, so the kind of the controller must agree; [`Candidate::has`] checks that the pool belongs to
/// this run.
fn admitted_with(pod: &Pod) -> Option<(&str, Option<String>)> {
    let run = pod.annotations().get(names::ADMITTED_WITH)?;
    let owners = pod.owner_references();
    let controller = owners.iter().find(|owner| owner.controller == Some(true))?;
    if controller.api_version != GrpoRun::api_version(&()) {
        return None;
    }
    let is_engine = pod.labels().get(names::ROLE).is_some_and(|name| name == role::ENGINE);
    let of_run = controller.kind == GrpoRun::kind(&()) && controller.uid == *run && !is_engine;
    let of_pool = controller.kind == InferencePool::kind(&()) && is_engine;
    (of_run || of_pool).then(|| (run.as_str(), of_pool.then(|| controller.uid.clone())))
}

impl Member {
    fn of(run: &str, spec: &PodSpec, labels: &BTreeMap<String, String>, deleting: bool) -> Self {
        let number = |label: &str| labels.get(label).and_then(|value| value.parse().ok()).unwrap_or(0);
        let gates = || spec.scheduling_gates.iter().flatten().map(|gate| &gate.name);
        let affinity = spec.affinity.clone().unwrap_or_default();
        Self {
            run: run.to_owned(),
            pool: None,
            role: labels.get(names::ROLE).cloned().unwrap_or_default(),
            group: number(names::GROUP),
            attempt: number(names::ATTEMPT),
            gated: gates().any(|gate| gate == names::GATE),
            deleting,
            priority: spec.priority.unwrap_or(0),
            other_gates: gates().filter(|gate| *gate != names::GATE).cloned().collect(),
            selector: spec.node_selector.clone().unwrap_or_default().into(),
            terms: affinity
                .node_affinity
                .as_ref()
                .and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref())
                .map(|required| required.node_selector_terms.clone())
                .unwrap_or_default(),
            claims: claims(spec),
            avoids: avoided_nodes(&affinity),
            tolerations: spec.tolerations.clone().unwrap_or_default().into(),
            together: is_with_its_store(&affinity),
            beyond_us: is_beyond_us(spec, &affinity),
            unschedulable: false,
        }
    }
}

/// Whether the scheduler's last word on a pod is that no node can take it. While the scheduler waits for a volume that
/// is made for the pod, it says nothing.
fn is_unschedulable(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| {
        let unschedulable = condition.reason.as_deref() == Some("Unschedulable");
        condition.type_ == "PodScheduled" && condition.status == "False" && unschedulable
    })
}

fn claims(spec: &PodSpec) -> Vec<String> {
    let volumes = spec.volumes.iter().flatten();
    let claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.map(|claim| claim.claim_name.clone()).collect()
}

/// Nodes that a preferred node affinity excludes by name.
fn avoided_nodes(affinity: &Affinity) -> Vec<String> {
    let nodes = affinity.node_affinity.as_ref();
    let preferred = nodes.and_then(|nodes| nodes.preferred_during_scheduling_ignored_during_execution.as_ref());
    let fields = preferred
        .into_iter()
        .flatten()
        .flat_map(|term| term.preference.match_fields.iter().flatten());
    fields
        .filter(|field| field.key == "metadata.name" && field.operator == "NotIn")
        .flat_map(|field| field.values.iter().flatten().cloned())
        .collect()
}

/// Whether the affinity has our own term, which puts pods with one ReadWriteOnce volume on one node.
fn is_with_its_store(affinity: &Affinity) -> bool {
    pod_terms(affinity).any(|selects_store| selects_store)
}

/// For each required pod affinity term, whether it is ours.
fn pod_terms(affinity: &Affinity) -> impl Iterator<Item = bool> + '_ {
    let terms = affinity
        .pod_affinity
        .as_ref()
        .and_then(|pods| pods.required_during_scheduling_ignored_during_execution.as_ref());
    terms.into_iter().flatten().map(|term| {
        let labels = term
            .label_selector
            .as_ref()
            .and_then(|selector| selector.match_labels.as_ref());
        labels.is_some_and(|labels| labels.contains_key(names::STORE))
    })
}

fn is_beyond_us(spec: &PodSpec, affinity: &Affinity) -> bool {
    let foreign = pod_terms(affinity).any(|ours| !ours);
    let apart = affinity.pod_anti_affinity.as_ref().is_some_and(|apart| {
        apart
            .required_during_scheduling_ignored_during_execution
            .as_ref()
            .is_some_and(|terms| !terms.is_empty())
    });
    let spread = spec
        .topology_spread_constraints
        .iter()
        .flatten()
        .any(|spread| spread.when_unsatisfiable == "DoNotSchedule");
    let claims = spec.resource_claims.iter().flatten().next().is_some();
    foreign
        || apart
        || spread
        || claims
        || spec
            .scheduler_name
            .as_deref()
            .is_some_and(|name| name != "default-scheduler")
}

/// Requests as the scheduler counts them: containers and sidecars together, or the largest init container; in their
/// place what the pod requests as a whole; plus the overhead.
fn requests(spec: &PodSpec) -> Amounts {
    let mut running = Amounts::new();
    let mut largest_init = Amounts::new();
    let of = |resources: &Option<k8s_openapi::api::core::v1::ResourceRequirements>| {
        let limits = amounts(resources.as_ref().and_then(|resources| resources.limits.as_ref()));
        let mut requests = limits;
        requests.extend(amounts(
            resources.as_ref().and_then(|resources| resources.requests.as_ref()),
        ));
        requests
    };
    for container in spec.init_containers.iter().flatten() {
        let needs = of(&container.resources);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut running, &needs);
        } else {
            for (resource, amount) in needs {
                let beside = running.get(&resource).copied().unwrap_or(0);
                let largest = largest_init.entry(resource).or_insert(0);
                *largest = (*largest).max(amount.saturating_add(beside));
            }
        }
    }
    for container in &spec.containers {
        add(&mut running, &of(&container.resources));
    }
    for (resource, amount) in largest_init {
        let total = running.entry(resource).or_insert(0);
        *total = (*total).max(amount);
    }
    let whole = spec.resources.as_ref();
    // The API server takes a limit of the pod as its request where neither the pod nor a container requests any.
    for (resource, amount) in amounts(whole.and_then(|whole| whole.limits.as_ref())) {
        running.entry(resource).or_insert(amount);
    }
    running.extend(amounts(whole.and_then(|whole| whole.requests.as_ref())));
    add(&mut running, &amounts(spec.overhead.as_ref()));
    running.insert(Arc::from(PODS), 1000);
    running
}

pub fn add(total: &mut Amounts, more: &Amounts) {
    for (resource, amount) in more {
        let sum = total.entry(resource.clone()).or_insert(0);
        *sum = sum.saturating_add(*amount);
    }
}

fn amounts(quantities: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    quantities
        .into_iter()
        .flatten()
        .filter_map(|(resource, quantity)| Some((interned(resource), thousandths(quantity)?)))
        .filter(|(_, amount)| *amount > 0)
        .collect()
}

/// Common resource names are stored once.
fn interned(resource: &str) -> Arc<str> {
    use std::sync::OnceLock;
    static COMMON: OnceLock<[Arc<str>; 4]> = OnceLock::new();
    let common = COMMON.get_or_init(|| ["cpu", "memory", "nvidia.com/gpu", PODS].map(Arc::from));
    common
        .iter()
        .find(|name| &***name == resource)
        .cloned()
        .unwrap_or_else(|| Arc::from(resource))
}

/// Stores equal parts of pods once: ten thousand pods have only a few different amounts, selectors and tolerations.
#[derive(Default)]
pub struct Alike {
    requests: Kept<Amounts>,
    selectors: Kept<BTreeMap<String, String>>,
    tolerations: Kept<Vec<Toleration>>,
}

impl Alike {
    pub fn share(&mut self, pod: &mut PodNeeds) {
        self.requests.share(&mut pod.requests);
        if let Some(member) = &mut pod.member {
            self.selectors.share(&mut member.selector);
            self.tolerations.share(&mut member.tolerations);
        }
    }
}

/// Values found by linear search, so the list stays short.
struct Kept<T>(Vec<Weak<T>>);

/// The maximum length: if all pods differ, a search compares this many values in vain.
const KEPT: usize = 64;

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: PartialEq> Kept<T> {
    fn share(&mut self, value: &mut Arc<T>) {
        self.0.retain(|kept| kept.strong_count() > 0);
        match self.0.iter().filter_map(Weak::upgrade).find(|kept| kept == value) {
            Some(kept) => *value = kept,
            None if self.0.len() < KEPT => self.0.push(Arc::downgrade(value)),
            None => {}
        }
    }
}

/// A run whose pods wait together, as its controller describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub created: Timestamp,
    /// Uid of the run's own InferencePool, once it exists.
    pub pool: Option<String>,
    /// The run refers to a pool and does not have the claim on it.
    pub unclaimed: bool,
    /// Number of pods of each role in the complete run.
    pub whole: BTreeMap<&'static str, u32>,
    /// Node requirements of the volumes that its pods mount.
    pub volumes: VolumeTerms,
    /// Claims without a volume whose node the scheduler has chosen: a volume is being made there.
    pub provisioning: BTreeSet<String>,
}

/// Node requirements of volumes, by the claim that is bound to each: any of the terms; none if every node reaches the
/// volume. A claim without an entry has no volume yet.
pub type VolumeTerms = BTreeMap<String, Vec<NodeSelectorTerm>>;

impl Candidate {
    /// Whether a pod that names the run belongs to it: in the run's namespace, controlled by the run or by the run's
    /// own pool.
    pub fn has(&self, pod: &PodNeeds, member: &Member) -> bool {
        member.run == self.uid
            && pod.namespace == self.namespace
            && match member.role.as_str() {
                role::ENGINE => member.pool.is_some() && member.pool == self.pool,
                role::DRIVER | role::TRAINER => member.pool.is_none(),
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests;
