//! Pods of a pool that does not exist yet: what a run will ask quota for, and what a plan shows.

use grpo_crds::InferencePool;
use jiff::Timestamp;

use super::{
    observation::InferencePoolObservation,
    replica_pods::{member, pod},
    shared_gpus,
    template::template,
};
use crate::{
    desired_object::{DesiredObject, Owner},
    names::PodKey,
    settings::Settings,
};

/// Pod 0 of replica 0.
pub fn first_pod(pool: InferencePool, owner: Owner, settings: &Settings, now: Timestamp) -> DesiredObject {
    let seen = InferencePoolObservation::just_made(pool, owner, now);
    let key = PodKey {
        group: 0,
        attempt: 1,
        rank: 0,
    };
    pod(&seen, settings, key)
}

/// The pods of all replicas, in this attempt. Replicas of several pods may be created in turn, so a pool's first
/// decision need not have them all.
pub fn all_pods(seen: &InferencePoolObservation, settings: &Settings, attempt: u32) -> Vec<DesiredObject> {
    let template = template(seen, settings);
    let size = seen.pool.spec.engine.nodes();
    (0..shared_gpus::replicas(&seen.pool))
        .flat_map(|group| (0..size).map(move |rank| PodKey { group, attempt, rank }))
        .map(|key| member(seen, settings, key, &template))
        .collect()
}
