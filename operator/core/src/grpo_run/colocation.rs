//! Trainer and engines that take turns on the same devices (`trainer.colocate`): how the GPUs of the trainer's pods are
//! divided among the replicas.
//!
//! ```text
//! trainer pod k ─── claim <run>-gpus-k ─┬─ request engine-0 ─── replica k x replicasPerClaim
//!                                       └─ request engine-1 ─── replica k x replicasPerClaim + 1
//! ```

use grpo_crds::{
    grpo_run::{GrpoRunSpec, Mode, Trainer},
    inference_pool::{Colocated, Engine},
};

use crate::names;

/// GPUs that the pods of a trainer share with engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedGpus {
    /// ResourceClaims: one for each pod of the trainer.
    pub claims: u32,
    /// Replicas that share a claim, each with a request of its own.
    pub replicas_per_claim: u32,
    pub gpus_per_replica: u32,
}

impl SharedGpus {
    /// `None` for a run that is not colocated, or computes on CPUs.
    pub fn of(spec: &GrpoRunSpec) -> Option<Self> {
        let (trainer, engine) = taking_turns(spec)?;
        let gpus_per_replica = engine.gpus_per_node().max(1);
        (trainer.gpus_per_node > 0).then(|| Self {
            claims: trainer.nodes,
            replicas_per_claim: (trainer.gpus_per_node / gpus_per_replica).max(1),
            gpus_per_replica,
        })
    }
}

/// Returns what the run's own pool is told about the devices; `None` if its engines have devices of their own.
pub fn colocated(spec: &GrpoRunSpec, run: &str) -> Option<Colocated> {
    taking_turns(spec)?;
    Some(match SharedGpus::of(spec) {
        Some(shared) => Colocated {
            claims: (0..shared.claims).map(|node| names::gpu_claim(run, node)).collect(),
            replicas_per_claim: shared.replicas_per_claim,
        },
        None => Colocated {
            claims: Vec::new(),
            replicas_per_claim: 1,
        },
    })
}

/// The trainer and the engines that take turns. Only mode Train has both.
fn taking_turns(spec: &GrpoRunSpec) -> Option<(&Trainer, &Engine)> {
    let trainer = spec.trainer.as_ref().filter(|trainer| trainer.colocate)?;
    let pool = spec.inference.pool.as_ref().filter(|_| spec.mode == Mode::Train)?;
    Some((trainer, &pool.engine))
}
