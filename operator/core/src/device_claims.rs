//! GPUs by dynamic resource allocation: how a pod uses a named ResourceClaim, and how many GPUs claims and pods have.
//!
//! A device plugin gives a GPU to one pod only. Pods that name the same request of the same ResourceClaim share its
//! GPUs.

use std::collections::BTreeMap;

use k8s_openapi::api::{core::v1::PodSpec, resource::v1::ResourceClaim};
use serde_json::{Value, json};

/// The class of whole GPUs, which NVIDIA's driver for dynamic resource allocation installs.
pub const GPU_CLASS: &str = "gpu.nvidia.com";

/// The claim's name within a pod.
const IN_POD: &str = "gpus";

/// Gives the GPUs of a claim to a pod and to its first container: those of one request, or all.
pub fn give_gpus(pod: &mut Value, claim: &str, request: Option<&str>) {
    push(
        &mut pod["resourceClaims"],
        json!({"name": IN_POD, "resourceClaimName": claim}),
    );
    let mut used = json!({"name": IN_POD});
    if let Some(request) = request {
        used["request"] = json!(request);
    }
    push(&mut pod["containers"][0]["resources"]["claims"], used);
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        other => *other = json!([item]),
    }
}

/// GPUs of ResourceClaims, by claim and request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimedGpus(BTreeMap<String, BTreeMap<String, i64>>);

impl ClaimedGpus {
    pub fn of(claims: &[ResourceClaim]) -> Self {
        let of_claim = |claim: &ResourceClaim| -> BTreeMap<String, i64> {
            let requests = claim
                .spec
                .devices
                .iter()
                .flat_map(|devices| devices.requests.iter().flatten());
            requests
                .filter_map(|request| {
                    let exactly = request.exactly.as_ref()?;
                    let count = exactly.count.unwrap_or(1);
                    (exactly.device_class_name == GPU_CLASS).then(|| (request.name.clone(), count))
                })
                .collect()
        };
        let name = |claim: &ResourceClaim| claim.metadata.name.clone().unwrap_or_default();
        Self(claims.iter().map(|claim| (name(claim), of_claim(claim))).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// GPUs of all claims, each counted once, however many pods share it.
    pub fn total(&self) -> i64 {
        self.0.values().flat_map(BTreeMap::values).sum()
    }

    /// GPUs that a pod shares with other pods.
    pub fn of_pod(&self, pod: &PodSpec) -> i64 {
        let named = pod.resource_claims.iter().flatten();
        let claims: BTreeMap<&str, &BTreeMap<String, i64>> = named
            .filter_map(|claim| {
                let requests = self.0.get(claim.resource_claim_name.as_ref()?)?;
                Some((claim.name.as_str(), requests))
            })
            .collect();
        let used = pod
            .containers
            .iter()
            .filter_map(|container| container.resources.as_ref()?.claims.as_ref())
            .flatten();
        used.filter_map(|used| {
            let requests = claims.get(used.name.as_str())?;
            match &used.request {
                Some(request) => requests.get(request).copied(),
                None => Some(requests.values().sum()),
            }
        })
        .sum()
    }

    /// The requests of each claim: `engine-0: 2 GPUs`.
    pub fn in_words(&self) -> BTreeMap<String, Vec<String>> {
        let words = |requests: &BTreeMap<String, i64>| -> Vec<String> {
            let words = requests.iter().map(|(request, count)| match count {
                1 => format!("{request}: 1 GPU"),
                count => format!("{request}: {count} GPUs"),
            });
            words.collect()
        };
        self.0
            .iter()
            .map(|(claim, requests)| (claim.clone(), words(requests)))
            .collect()
    }
}

#[cfg(test)]
mod tests;
