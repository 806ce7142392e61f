//! The Workload that asks Kueue for a run's quota: one pod set for each role, with what its pods ask for.
//!
//! The pods are those that the run will get. Kueue sees their requests and what binds them to nodes, and nothing else:
//! images, commands and volumes may change without a new Workload.

use grpo_crds::{AttemptStatus, GrpoRun, InferencePool};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::{
    colocation::SharedGpus,
    decision::WorkloadStep,
    objects::described_engines,
    observation::{QueueState, RunObservation},
    process_pods, queue,
};
use crate::{
    admission::whole,
    desired_object::{DesiredObject, Owner},
    digest::number,
    inference_pool::first_pod,
    kueue::{PRIORITY_CLASS, Workload},
    names::{self, labels, role},
    settings::Settings,
};

/// Annotations with numbers of what the run asks for, to notice that it asks for something else now. A waiting Workload
/// follows all of it. A run that works gives its quota back only for another queue, other numbers of pods or other
/// devices: an operator of another version may ask for a little more memory, and must end no run for that. The number
/// of engines may differ.
const SHAPE: &str = "grpo.dev/shape";
const FIXED_SHAPE: &str = "grpo.dev/fixed-shape";
/// The fields of a pod that decide on which nodes it may be, or that add to its requests.
const PLACED_BY: [&str; 6] = [
    "nodeSelector",
    "affinity",
    "tolerations",
    "priorityClassName",
    "runtimeClassName",
    "overhead",
];

/// How much of a run is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// All of it works.
    All,
    /// Driver and trainer run, which is enough for a run that has worked: its engines may sleep while the trainer has
    /// their GPUs, or be replaced one by one.
    DriverAndTrainer,
    /// A pod of driver or trainer is missing, or does not run yet.
    None,
}

/// The step for a run that has not ended and is not evicted. `may_ask`: it lacks nothing but quota and the claim on a
/// shared pool.
pub fn step(seen: &RunObservation, settings: &Settings, may_ask: bool, readiness: Readiness) -> WorkloadStep {
    let known = match &seen.queue {
        QueueState::Asked(asked) => Some(&asked.workload),
        QueueState::Unasked => None,
        _ => return WorkloadStep::Leave,
    };
    if seen.run.spec.queue_name.is_none() {
        // The run left the queue while it was suspended.
        return known.map_or(WorkloadStep::Leave, |_| WorkloadStep::Delete);
    }
    let Some(known) = known else {
        return match may_ask {
            true => WorkloadStep::Create(Box::new(workload(seen, settings))),
            false => WorkloadStep::Leave,
        };
    };
    // A person, or Kueue after too many evictions, stopped the run by its Workload. Another one would be active.
    if known.spec.active == Some(false) {
        return WorkloadStep::Leave;
    }
    if !may_ask && let WorkloadStep::Delete = queue::released(seen) {
        return WorkloadStep::Delete;
    }
    let ready = match readiness {
        Readiness::All => true,
        Readiness::DriverAndTrainer => known.has_started(),
        Readiness::None => false,
    };
    if known.is_admitted()
        && let Some(patch) = known.with_pods_ready(ready, seen.now)
    {
        return WorkloadStep::Status(patch);
    }
    match !may_ask || known.holds_quota() || is_same(known, &workload(seen, settings), SHAPE) {
        true => WorkloadStep::Leave,
        // Created anew when it is gone.
        false => WorkloadStep::Delete,
    }
}

/// Whether the run has quota, and its pods would need another one: see [`FIXED_SHAPE`]. No more engines are created
/// than the quota has room for.
pub fn asks_for_other_quota(seen: &RunObservation, settings: &Settings) -> bool {
    match &seen.queue {
        QueueState::Asked(asked) if seen.run.spec.queue_name.is_some() => {
            asked.workload.holds_quota() && !is_same(&asked.workload, &workload(seen, settings), FIXED_SHAPE)
        }
        _ => false,
    }
}

fn is_same(known: &Workload, wanted: &DesiredObject, shape: &str) -> bool {
    let wanted = wanted.object["metadata"]["annotations"][shape].as_str();
    known.annotations().get(shape).map(String::as_str) == wanted
}

/// Name of a run's Workload.
pub fn name(run: &str) -> String {
    format!("grporun-{run}")
}

fn workload(seen: &RunObservation, settings: &Settings) -> DesiredObject {
    let spec = &seen.run.spec;
    let sets: Vec<Value> = whole(&seen.run)
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .filter_map(|(role, count)| {
            let pod = pod_of(seen, settings, role)?;
            Some(json!({"name": role, "count": count, "template": {"spec": asked_for(&pod["spec"])}}))
        })
        .collect();
    let mut body = json!({"queueName": spec.queue_name, "podSets": sets});
    let shape = number(&body).to_string();
    let fixed: Vec<Value> = sets.iter().map(fixed).collect();
    let fixed_shape = number(&json!([spec.queue_name, fixed])).to_string();
    if let (Some(class), Some(value)) = (priority_class(&seen.run), seen.priority) {
        body["priorityClassRef"] = class;
        body["priority"] = json!(value);
    }
    let owner = &seen.owner;
    owner
        .object::<Workload>(
            name(&owner.name),
            &labels([(names::RUN, owner.name.as_str())]),
            json!({"spec": body}),
        )
        .annotated(SHAPE, &shape)
        .annotated(FIXED_SHAPE, &fixed_shape)
        .created_once()
}

/// What a run that works cannot change in one of its pod sets: the number of pods, except engines, and their devices.
fn fixed(set: &Value) -> Value {
    let count = match set["name"] == role::ENGINE {
        true => Value::Null,
        false => set["count"].clone(),
    };
    let containers = set["template"]["spec"]["containers"].as_array().into_iter().flatten();
    let limits = containers.filter_map(|container| container["resources"]["limits"].as_object());
    // As `nvidia.com/gpu`. Kubernetes' own resources have no such prefix.
    let devices: Vec<(&String, &Value)> = limits.flatten().filter(|(name, _)| name.contains('/')).collect();
    json!([set["name"], count, devices])
}

/// The class that decides the run's place in the queue: one of Kueue's by a label of the run, else that of its pods.
pub fn priority_class(run: &GrpoRun) -> Option<Value> {
    if let Some(name) = run.labels().get(PRIORITY_CLASS) {
        return Some(json!({"group": crate::kueue::GROUP, "kind": "WorkloadPriorityClass", "name": name}));
    }
    let name = run.spec.priority_class_name.as_ref()?;
    Some(json!({"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": name}))
}

/// The first pod of a role.
fn pod_of(seen: &RunObservation, settings: &Settings, role: &str) -> Option<Value> {
    // A later attempt avoids nodes, which is no other quota.
    let first = AttemptStatus::default();
    match role {
        role::DRIVER => Some(process_pods::driver(seen, settings, &first).object),
        role::TRAINER => {
            let trainer = seen.run.spec.trainer.as_ref()?;
            let mut pod = process_pods::trainer(seen, trainer, settings, &first, 0).object;
            // Kueue counts no claims on devices by default. The GPUs of a claim are counted as those of its trainer
            // pod.
            if SharedGpus::of(&seen.run.spec).is_some() {
                pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] =
                    json!(trainer.gpus_per_node.to_string());
            }
            Some(pod)
        }
        role::ENGINE => {
            let pool = described_engines(&seen.run, &seen.owner)?;
            let mut object = pool.object;
            // As the API server would give it one.
            object["metadata"]["uid"] = json!(seen.owner.uid);
            let pool: InferencePool = serde_json::from_value(object).ok()?;
            Some(first_pod(pool.clone(), Owner::of(&pool)?, settings, seen.now).object)
        }
        _ => None,
    }
}

/// What Kueue needs of a pod.
fn asked_for(spec: &Value) -> Value {
    let containers = |name: &str| -> Vec<Value> {
        let all = spec[name].as_array().into_iter().flatten();
        all.map(|container| {
            let mut kept = Map::new();
            for field in ["name", "restartPolicy"] {
                if !container[field].is_null() {
                    kept.insert(field.to_owned(), container[field].clone());
                }
            }
            let mut resources = container["resources"].clone();
            if let Some(resources) = resources.as_object_mut() {
                resources.remove("claims");
            }
            kept.insert("resources".to_owned(), resources);
            Value::Object(kept)
        })
        .collect()
    };
    let mut asked = json!({"containers": containers("containers"), "restartPolicy": spec["restartPolicy"]});
    let first = containers("initContainers");
    if !first.is_empty() {
        asked["initContainers"] = json!(first);
    }
    for field in PLACED_BY {
        if !spec[field].is_null() {
            asked[field] = spec[field].clone();
        }
    }
    asked
}
