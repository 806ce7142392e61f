//! What replicas are made from now, as two digests: of the pool's spec, and of the pods that this operator makes of it.
//!
//! A replica of another template is replaced. Where a run claims the pool only another spec counts: an operator of
//! another version, or with other settings, starts no engine again that holds a run's weights.

use grpo_crds::inference_pool::{InferencePoolSpec, UpdatePolicy};
use serde_json::{Value, json};

use super::{observation::InferencePoolObservation, replica_pods::pod};
use crate::{digest::digest, names::PodKey, pods::PodFacts, settings::Settings};

/// Two replicas of the same template differ in nothing but number and attempt.
pub fn template(seen: &InferencePoolObservation, settings: &Settings) -> String {
    let key = |rank| PodKey {
        group: 0,
        attempt: 1,
        rank,
    };
    let pods = (0..seen.pool.spec.engine.nodes()).map(|rank| pod(seen, settings, key(rank)).object);
    let build = digest(&Value::Array(pods.collect()));
    format!("{}-{build}", of_spec(&seen.pool.spec))
}

/// How many replicas there are, and how they are replaced, changes none of them.
fn of_spec(spec: &InferencePoolSpec) -> String {
    let spec = InferencePoolSpec {
        replicas: 0,
        update: UpdatePolicy {
            drain_timeout: spec.update.drain_timeout,
            ..UpdatePolicy::default()
        },
        ..spec.clone()
    };
    digest(&json!(spec))
}

/// The pods, where those that are made from the same spec count as made from this template if a run claims the pool.
pub fn with_template(seen: &InferencePoolObservation, template: &str) -> Vec<PodFacts> {
    let status = seen.pool.status.as_ref();
    let claimed = status.is_some_and(|status| status.claimed_by.is_some());
    let (spec, build) = template.split_once('-').unwrap_or((template, template));
    let mut pods = seen.pods.clone();
    for pod in &mut pods {
        let Some(old) = pod.template.as_deref() else { continue };
        // A pod that never ran holds no weights: it waits for the right image maybe.
        let holds_weights = claimed && pod.has_started();
        let current = match old.split_once('-') {
            Some((old, _)) => holds_weights && old == spec,
            // Made before the two digests were told apart: of its spec nothing is known.
            None => holds_weights || old == build,
        };
        if current {
            pod.template = Some(template.to_owned());
        }
    }
    pods
}
