//! Replicas of several pods in a pool that no run owns. Admission does not place these pods together, so a replica may
//! have devices on some nodes and wait for the rest. Replicas are created in turn, so that at most one waits like that;
//! the pool's message names it, and what to do.

use std::collections::BTreeMap;

use super::observation::InferencePoolObservation;
use crate::{admission::Gate, pod_group::GroupUpdate, pods::PodFacts};

/// Whether admission places the pods of a replica one by one.
fn are_placed_singly(seen: &InferencePoolObservation) -> bool {
    seen.pool.spec.engine.nodes() > 1 && Gate::of_pool(&seen.pool).is_none()
}

fn counts(pod: &PodFacts) -> bool {
    !pod.deleting && !pod.is_finished()
}

/// Whether the pool names a scheduler, which may place groups of pods. Such a group may be the whole pool, and waits
/// until all its pods exist.
fn has_a_scheduler(seen: &InferencePoolObservation) -> bool {
    let overlay = seen.pool.spec.pod_template.as_ref();
    overlay
        .and_then(|overlay| overlay.spec.as_ref()?.scheduler_name.as_deref())
        .is_some_and(|name| name != "default-scheduler")
}

/// Creates one replica at a time, and the next one when all pods of the others are on nodes: the halves of two replicas
/// would hold devices that neither can use. The rest of a replica that exists is always created.
pub fn in_turn(mut update: GroupUpdate, seen: &InferencePoolObservation) -> GroupUpdate {
    if !are_placed_singly(seen) || has_a_scheduler(seen) {
        return update;
    }
    let begun = |group: u32, attempt: u32| {
        let mut pods = seen.pods.iter().filter(|pod| counts(pod));
        pods.any(|pod| pod.group == group && pod.attempt == attempt)
    };
    let waits = |pod: &PodFacts| counts(pod) && pod.node_name.is_none();
    let is_half_made = update.create.iter().any(|key| begun(key.group, key.attempt));
    let next = match is_half_made || seen.pods.iter().any(waits) {
        true => None,
        false => update.create.iter().map(|key| key.group).min(),
    };
    update
        .create
        .retain(|key| Some(key.group) == next || begun(key.group, key.attempt));
    update
}

/// Which replica has only some of its pods on nodes, and what to do about it.
pub fn half_placed(seen: &InferencePoolObservation) -> Option<String> {
    if !are_placed_singly(seen) {
        return None;
    }
    let mut replicas: BTreeMap<(u32, u32), (usize, usize)> = BTreeMap::new();
    for pod in seen.pods.iter().filter(|pod| counts(pod)) {
        let (placed, waiting) = replicas.entry((pod.group, pod.attempt)).or_default();
        match pod.node_name {
            Some(_) => *placed += 1,
            None => *waiting += 1,
        }
    }
    let half = replicas
        .iter()
        .find(|(_, (placed, waiting))| *placed > 0 && *waiting > 0);
    half.map(|((replica, _), (placed, waiting))| {
        format!(
            "replica {replica} has {placed} of its {} pods on nodes; they hold their devices until the others are placed too. Free devices for the \
             others, or set spec.replicas to the number of replicas that fit. The pods of a pool described in a run (spec.inference.pool) are \
             placed together",
            placed + waiting
        )
    })
}

#[cfg(test)]
mod tests;
