//! Keeps pods from being scheduled before their run is admitted: by our scheduling gate. Pods of a run that Kueue
//! admits ([`crate::kueue`]) are created afterwards, and get the placement that Kueue chose.

use grpo_crds::{GrpoRun, InferencePool};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{desired_object::DesiredObject, kueue::Placement, names};

/// Which system admits the pods of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// This operator.
    Ours {
        /// The run's uid.
        run: String,
    },
    /// Kueue, which has admitted the run before the pod is created.
    Kueue(Placement),
}

/// What a pool made for a run may use of the quota that Kueue gave the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineQuota {
    pub pods: u32,
    #[serde(default)]
    pub placement: Placement,
}

impl EngineQuota {
    /// `None` for a pool without a run, and for a pool of a run without a queue.
    pub fn of_pool(pool: &InferencePool) -> Option<Self> {
        serde_json::from_str(pool.annotations().get(names::QUOTA)?).ok()
    }

    /// Marks a pool so that [`EngineQuota::of_pool`] finds it again.
    pub fn mark(&self, pool: DesiredObject) -> DesiredObject {
        pool.annotated(names::QUOTA, &json!(self).to_string())
    }

    /// The number of replicas of so many pods that the quota is enough for.
    pub fn replicas(&self, nodes: u32) -> u32 {
        self.pods / nodes.max(1)
    }
}

impl Gate {
    /// `placement`: that of the pod's role, if the run has a queue.
    pub fn of_run(run: &GrpoRun, placement: impl FnOnce() -> Placement) -> Self {
        match run.spec.queue_name {
            Some(_) => Self::Kueue(placement()),
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
        Some(match EngineQuota::of_pool(pool) {
            Some(quota) => Self::Kueue(quota.placement),
            None => Self::Ours { run: run.uid.clone() },
        })
    }

    /// Gates or places a pod before its creation.
    pub fn put_on(&self, pod: &mut Value) {
        match self {
            Self::Ours { run } => {
                pod["spec"]["schedulingGates"] = json!([{"name": names::GATE}]);
                pod["metadata"]["annotations"][names::ADMITTED_WITH] = json!(run);
            }
            Self::Kueue(placement) => placement.lay_onto(pod),
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
