//! The template of replicas, as two digests: of the pool's spec, and of the pods that this operator creates from it.
//!
//! A replica of another template is replaced. While a run claims the pool only another spec counts: an operator of
//! another version, or with other settings, restarts no engine that holds a run's weights.

use grpo_crds::inference_pool::{InferencePoolSpec, UpdatePolicy};
use serde_json::{Value, json};

use super::{observation::InferencePoolObservation, replica_pods::pod};
use crate::{digest::digest, names::PodKey, pods::PodFacts, settings::Settings};

/// Two replicas of the same template differ only in number and attempt.
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

/// The digest of the spec without the number of replicas and the limits of their replacement: these change no replica.
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

/// The pods; while a run claims the pool, pods created from the same spec count as created from this template.
pub fn with_template(seen: &InferencePoolObservation, template: &str) -> Vec<PodFacts> {
    let status = seen.pool.status.as_ref();
    let claimed = status.is_some_and(|status| status.claimed_by.is_some());
    let (spec, build) = template.split_once('-').unwrap_or((template, template));
    let mut pods = seen.pods.clone();
    for pod in &mut pods {
        let Some(old) = pod.template.as_deref() else { continue };
        // A pod that never ran holds no weights: it may wait for the right image.
        let holds_weights = claimed && pod.has_started();
        let current = match old.split_once('-') {
            Some((old, _)) => holds_weights && old == spec,
            // Created before the template had two digests: its spec is unknown.
            None => holds_weights || old == build,
        };
        if current {
            pod.template = Some(template.to_owned());
        }
    }
    pods
}
