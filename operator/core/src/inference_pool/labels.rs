//! Labels of a pool's objects, and the selector of its service.

use super::observation::InferencePoolObservation;
use crate::names::{self, Labels, labels, role};

/// Labels of the pod with the agent in every replica: the selector of the service and of the scale subresource.
pub fn selector(seen: &InferencePoolObservation) -> Labels {
    let mut selector = members(seen);
    selector.insert(names::RANK.to_owned(), "0".to_owned());
    selector
}

/// Labels of all pods of the pool.
pub fn members(seen: &InferencePoolObservation) -> Labels {
    [
        (names::INFERENCE_POOL, seen.owner.name.as_str()),
        (names::ROLE, role::ENGINE),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// Labels of all objects of a pool.
pub fn pool_labels(seen: &InferencePoolObservation) -> Labels {
    let mut labels = labels([
        (names::ROLE, role::ENGINE),
        (names::INFERENCE_POOL, seen.owner.name.as_str()),
    ]);
    if let Some(run) = &seen.run {
        labels.insert(names::RUN.to_owned(), run.clone());
    }
    labels
}
