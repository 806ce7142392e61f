//! Keeps pods from being scheduled before their run is admitted: by our scheduling gate, or by Kueue's labels.
//!
//! Kueue's webhook adds its own gate to pods with its queue label, and lifts it when the quota allows all pods of the
//! group.

use grpo_crds::{GrpoRun, InferencePool};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::{desired_object::DesiredObject, names};

const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";
const KUEUE_GROUP: &str = "kueue.x-k8s.io/pod-group-name";
const KUEUE_SIZE: &str = "kueue.x-k8s.io/pod-group-total-count";

/// Which system admits the pods of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// This operator.
    Ours {
        /// The run's uid.
        run: String,
    },
    /// Kueue, which admits all pods of the group at once.
    Kueue { queue: String, group: String, size: u32 },
}

impl Gate {
    pub fn of_run(run: &GrpoRun) -> Self {
        match &run.spec.queue_name {
            Some(queue) => Self::Kueue {
                queue: queue.clone(),
                group: run.name_any(),
                size: whole(run).iter().map(|(_, pods)| pods).sum(),
            },
            None => Self::Ours {
                run: run.uid().unwrap_or_default(),
            },
        }
    }

    /// The gate of a pool's engines: the gate of the run that the pool was made for. `None` for a pool without a run.
    pub fn of_pool(pool: &InferencePool) -> Option<Self> {
        let run = pool
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true) && owner.kind == GrpoRun::kind(&()))?;
        let of_queue = || {
            Some(Self::Kueue {
                queue: pool.annotations().get(names::QUEUE)?.clone(),
                group: run.name.clone(),
                size: pool.annotations().get(names::GROUP_SIZE)?.parse().ok()?,
            })
        };
        Some(of_queue().unwrap_or_else(|| Self::Ours { run: run.uid.clone() }))
    }

    /// Marks a pool so that [`Gate::of_pool`] finds this gate again.
    pub fn mark_pool(&self, pool: DesiredObject) -> DesiredObject {
        match self {
            Self::Ours { .. } => pool,
            Self::Kueue { queue, size, .. } => pool
                .annotated(names::QUEUE, queue)
                .annotated(names::GROUP_SIZE, &size.to_string()),
        }
    }

    /// Gates a pod before its creation.
    pub fn put_on(&self, pod: &mut Value) {
        match self {
            Self::Ours { run } => {
                pod["spec"]["schedulingGates"] = json!([{"name": names::GATE}]);
                pod["metadata"]["annotations"][names::ADMITTED_WITH] = json!(run);
            }
            Self::Kueue { queue, group, size } => {
                pod["metadata"]["labels"][KUEUE_QUEUE] = json!(queue);
                pod["metadata"]["labels"][KUEUE_GROUP] = json!(group);
                pod["metadata"]["annotations"][KUEUE_SIZE] = json!(size.to_string());
            }
        }
    }
}

/// Number of gated pods of each role in a complete run.
pub fn whole(run: &GrpoRun) -> Vec<(&'static str, u32)> {
    use names::role;

    let spec = &run.spec;
    let trainer = spec.trainer.as_ref().filter(|_| spec.mode.needs_trainer());
    let engines = spec.inference.pool.as_ref().filter(|_| spec.mode.needs_engines());
    let mut whole = vec![(role::DRIVER, 1)];
    whole.extend(trainer.map(|trainer| (role::TRAINER, trainer.nodes)));
    whole.extend(engines.map(|pool| (role::ENGINE, pool.replicas * pool.engine.nodes())));
    whole
}

#[cfg(test)]
mod tests;
