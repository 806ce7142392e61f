//! The first pod of a pool that does not exist yet: what a run will ask quota for.

use grpo_crds::InferencePool;
use jiff::Timestamp;

use super::{observation::InferencePoolObservation, replica_pods::pod};
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
