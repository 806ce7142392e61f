//! Kueue's objects, as far as the operator reads and writes them: the Workload that asks for a run's quota, and where
//! an admitted run's pods may be placed.
//!
//! A run with `spec.queueName` has one Workload. Its pods are created after Kueue has admitted it, and not before, so
//! they carry neither a gate nor a label of Kueue, and Kueue's integration for pods is not needed:
//!
//! ```text
//! GrpoRun ─► Workload (pod sets: driver, trainer, engine) ─► Kueue: Admitted, with a ResourceFlavor for each pod set
//!                ▲                                             │
//!                │ quota returned when no pod is left          ▼
//!            Evicted ◄──────────────── Kueue ──────────── pods, with the flavors' node selectors and tolerations
//! ```
//!
//! The other side of this protocol is Kueue's `pkg/controller/jobframework/reconciler.go`, which does the same for the
//! jobs that Kueue knows.

use std::{borrow::Cow, collections::BTreeMap};

use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
};
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub const GROUP: &str = "kueue.x-k8s.io";
/// The version that Kueue serves since 0.15.
pub const VERSION: &str = "v1beta2";
/// The label that names a WorkloadPriorityClass, on runs as on Kueue's own jobs.
pub const PRIORITY_CLASS: &str = "kueue.x-k8s.io/priority-class";

const QUOTA_RESERVED: &str = "QuotaReserved";
const ADMITTED: &str = "Admitted";
const EVICTED: &str = "Evicted";
const REQUEUED: &str = "Requeued";
const PODS_READY: &str = "PodsReady";
const DEACTIVATED: &str = "Deactivated";
/// The reason of pods that are not ready again after they were. Kueue counts another time for it than for the start.
const WAIT_FOR_RECOVERY: &str = "WaitForRecovery";
/// Reasons of evictions after which Kueue wants the Workload back in its queue at once. After all others Kueue itself
/// says when.
const REQUEUED_AT_ONCE: [&str; 2] = ["Preempted", "NodeFailures"];

/// A Workload of Kueue. Fields that the operator does not use are not read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: WorkloadSpec,
    #[serde(default)]
    pub status: WorkloadStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WorkloadSpec {
    /// A person may set it to false, and Kueue does so after too many evictions: then Kueue evicts the run, and does
    /// not admit it again.
    pub active: Option<bool>,
    pub pod_sets: Vec<PodSet>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSet {
    pub name: String,
    pub count: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WorkloadStatus {
    pub conditions: Vec<Condition>,
    pub admission: Option<Admission>,
    pub admission_checks: Vec<AdmissionCheck>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Admission {
    pub cluster_queue: String,
    pub pod_set_assignments: Vec<Assignment>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Assignment {
    pub name: String,
    /// The ResourceFlavor of each resource.
    pub flavors: BTreeMap<String, String>,
}

/// What a controller beside Kueue found, for example that nodes were provisioned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AdmissionCheck {
    pub name: String,
    pub state: String,
    pub message: String,
    pub pod_set_updates: Vec<PodSetUpdate>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSetUpdate {
    pub name: String,
    #[serde(flatten)]
    pub placement: Placement,
}

/// A ResourceFlavor: the nodes that a part of a quota stands for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Flavor {
    pub node_labels: BTreeMap<String, String>,
    pub tolerations: Vec<Value>,
}

/// What Kueue adds to each pod of a pod set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Placement {
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Value>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// The placement of each pod set of an admitted Workload, by name.
pub type Placements = BTreeMap<String, Placement>;

impl Resource for Workload {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Workload".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "workloads".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Workload {
    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }

    fn is(&self, type_: &str) -> bool {
        self.condition(type_)
            .is_some_and(|condition| condition.status == "True")
    }

    /// Whether quota is set aside for the run. It counts against the queue until it is returned.
    pub fn holds_quota(&self) -> bool {
        self.is(QUOTA_RESERVED) || self.status.admission.is_some()
    }

    /// Whether the run may have pods.
    pub fn is_admitted(&self) -> bool {
        self.is(ADMITTED) && !self.is(EVICTED) && self.metadata.deletion_timestamp.is_none()
    }

    /// Why Kueue takes the quota back, while it is not returned yet.
    pub fn eviction(&self) -> Option<&Condition> {
        self.condition(EVICTED)
            .filter(|evicted| evicted.status == "True" && self.holds_quota())
    }

    /// Whether Kueue knows that all pods are ready.
    pub fn has_pods_ready(&self) -> bool {
        self.is(PODS_READY)
    }

    /// Whether the pods have been ready since the run was admitted.
    pub fn has_started(&self) -> bool {
        self.has_pods_ready() || self.recovers()
    }

    fn recovers(&self) -> bool {
        self.condition(PODS_READY)
            .is_some_and(|condition| condition.reason == WAIT_FOR_RECOVERY)
    }

    /// Number of pods that a pod set was admitted with.
    pub fn pods(&self, pod_set: &str) -> u32 {
        let mut sets = self.spec.pod_sets.iter();
        sets.find(|set| set.name == pod_set).map_or(0, |set| set.count)
    }

    /// Why the Workload is not admitted, in Kueue's words.
    pub fn wait(&self) -> String {
        if self.spec.active == Some(false) {
            // Kueue itself sets it to false after too many evictions, and says so here.
            let evicted = self.condition(EVICTED).filter(|evicted| evicted.status == "True");
            let cause = evicted.map_or_else(String::new, |evicted| format!(" ({})", evicted.message));
            return format!("its spec.active is false{cause}; set it to true");
        }
        let pending = self.status.admission_checks.iter().find(|check| check.state != "Ready");
        if let Some(check) = pending.filter(|_| self.is(QUOTA_RESERVED)) {
            return format!("admission check {} is {}: {}", check.name, check.state, check.message);
        }
        match self.condition(QUOTA_RESERVED).or_else(|| self.condition(ADMITTED)) {
            Some(condition) => condition.message.clone(),
            None => "Kueue has not looked at it yet; if this stays, look at Kueue's pods".to_owned(),
        }
    }

    /// The status without the reservation, as a merge patch. The quota is free for other Workloads then, so it is
    /// returned when no pod of the run is left.
    pub fn without_quota(&self, now: Timestamp) -> Value {
        let evicted = self.condition(EVICTED).filter(|evicted| evicted.status == "True");
        let reason = evicted.map_or("Pending", |condition| condition.reason.as_str());
        let message = evicted.map_or("the run has no pods", |condition| condition.message.as_str());
        // Without an eviction Kueue would not put it back into its queue.
        let at_once = evicted.is_none() || REQUEUED_AT_ONCE.contains(&reason);
        // Kueue adds a cause to this reason (DeactivatedDueToRequeuingLimitExceeded). When a person activates the
        // Workload again, it looks for the reason without a cause, and otherwise leaves the Workload out of its queue.
        let requeued = if reason.starts_with(DEACTIVATED) {
            DEACTIVATED
        } else {
            reason
        };
        let conditions = self.conditions_with(
            &[
                (QUOTA_RESERVED, false, "Pending", message),
                (ADMITTED, false, "NoReservation", "The workload has no reservation"),
                (PODS_READY, false, "WaitForStart", "Not all pods are ready or succeeded"),
                (REQUEUED, at_once, requeued, message),
            ],
            now,
        );
        json!({"status": {"admission": null, "conditions": conditions}})
    }

    /// The status that tells Kueue whether the pods are ready, as a merge patch. `None`: it says so already. A missing
    /// condition means to Kueue that the pods have not been ready yet. With `waitForPodsReady` it evicts a run whose
    /// pods are not ready for too long.
    pub fn with_pods_ready(&self, ready: bool, now: Timestamp) -> Option<Value> {
        if self.has_pods_ready() == ready {
            return None;
        }
        let all = "All pods reached readiness and the workload is running";
        let (reason, message) = match (ready, self.recovers()) {
            (true, false) => ("Started", all),
            (true, true) => ("Recovered", all),
            (false, _) => (WAIT_FOR_RECOVERY, "At least one pod has failed, waiting for recovery"),
        };
        let conditions = self.conditions_with(&[(PODS_READY, ready, reason, message)], now);
        Some(json!({"status": {"conditions": conditions}}))
    }

    /// All conditions after these changes: type, whether it holds, reason and message.
    fn conditions_with(&self, changes: &[(&str, bool, &str, &str)], now: Timestamp) -> Vec<Condition> {
        let mut conditions = self.status.conditions.clone();
        for (type_, holds, reason, message) in changes {
            set(
                &mut conditions,
                Condition {
                    type_: (*type_).to_owned(),
                    status: if *holds { "True" } else { "False" }.to_owned(),
                    reason: (*reason).to_owned(),
                    message: (*message).to_owned(),
                    last_transition_time: Time(now),
                    observed_generation: self.metadata.generation,
                },
            );
        }
        conditions
    }

    /// Names of the ResourceFlavors of its admission.
    pub fn flavors(&self) -> impl Iterator<Item = &String> {
        let admission = self.status.admission.iter();
        admission
            .flat_map(|admission| &admission.pod_set_assignments)
            .flat_map(|assignment| assignment.flavors.values())
    }

    /// Where the pods of each pod set are placed, with these flavors.
    pub fn placements(&self, flavors: &BTreeMap<String, Flavor>) -> Placements {
        let mut placements = Placements::new();
        let admission = self.status.admission.iter();
        for assignment in admission.flat_map(|admission| &admission.pod_set_assignments) {
            let placement = placements.entry(assignment.name.clone()).or_default();
            for flavor in assignment.flavors.values().filter_map(|name| flavors.get(name)) {
                placement.node_selector.extend(flavor.node_labels.clone());
                placement.tolerate(&flavor.tolerations);
            }
        }
        let checks = self.status.admission_checks.iter();
        for update in checks.flat_map(|check| &check.pod_set_updates) {
            let placement = placements.entry(update.name.clone()).or_default();
            let more = update.placement.clone();
            placement.node_selector.extend(more.node_selector);
            placement.labels.extend(more.labels);
            placement.annotations.extend(more.annotations);
            placement.tolerate(&more.tolerations);
        }
        placements
    }
}

/// Replaces the condition of this type. The time of the last change stays if the status does.
fn set(conditions: &mut Vec<Condition>, mut condition: Condition) {
    let known = conditions.iter_mut().find(|known| known.type_ == condition.type_);
    match known {
        Some(known) => {
            if known.status == condition.status {
                condition.last_transition_time = known.last_transition_time.clone();
            }
            *known = condition;
        }
        None => conditions.push(condition),
    }
}

impl Placement {
    /// Several resources of a pod may have the same flavor.
    fn tolerate(&mut self, more: &[Value]) {
        for toleration in more {
            if !self.tolerations.contains(toleration) {
                self.tolerations.push(toleration.clone());
            }
        }
    }

    /// Adds all of it to a pod.
    pub fn lay_onto(&self, pod: &mut Value) {
        for (key, value) in &self.node_selector {
            pod["spec"]["nodeSelector"][key] = json!(value);
        }
        for (key, value) in &self.labels {
            pod["metadata"]["labels"][key] = json!(value);
        }
        for (key, value) in &self.annotations {
            pod["metadata"]["annotations"][key] = json!(value);
        }
        if self.tolerations.is_empty() {
            return;
        }
        match pod["spec"]["tolerations"].as_array_mut() {
            Some(known) => known.extend(self.tolerations.clone()),
            None => pod["spec"]["tolerations"] = json!(self.tolerations),
        }
    }
}

#[cfg(test)]
mod tests;
