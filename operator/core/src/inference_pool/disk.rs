//! The node's disk that a replica's pod requests: what its bounded caches may fill. The pod then comes to a node that
//! has the disk, and is not the first to be evicted there.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use super::launch::{AGENT, ENGINE, WEIGHTS_VOLUME};
use crate::{model_download::CACHE_VOLUME, quantity::thousandths};

const DISK: &str = "ephemeral-storage";

/// Adds the request to the agent's container, or to the engine's in a pod without an agent. `spec` is a pod's, with its
/// containers and volumes. If the user has requested disk for the engine or the agent, that is for the whole pod.
pub(super) fn request(spec: &mut Value) {
    let has_agent = container(spec, AGENT).is_some();
    let bytes = may_fill(spec, has_agent);
    let is_given = |container: &mut Value| {
        ["requests", "limits"]
            .iter()
            .any(|of| container["resources"][of][DISK] != Value::Null)
    };
    if bytes == 0
        || [ENGINE, AGENT]
            .iter()
            .any(|name| container(spec, name).is_some_and(is_given))
    {
        return;
    }
    if let Some(container) = container(spec, if has_agent { AGENT } else { ENGINE }) {
        container["resources"]["requests"][DISK] = json!(format!("{}Mi", bytes.div_ceil(1 << 20)));
    }
}

/// Bytes of the node's disk. Only an agent fills the cache of weights.
fn may_fill(spec: &Value, has_agent: bool) -> u64 {
    let limits = spec["volumes"].as_array().into_iter().flatten().filter_map(|volume| {
        let filled = volume["name"] == CACHE_VOLUME || has_agent && volume["name"] == WEIGHTS_VOLUME;
        let cache = &volume["emptyDir"];
        let on_disk = filled && cache["medium"].is_null();
        let limit = cache["sizeLimit"].as_str().filter(|_| on_disk)?;
        u64::try_from(thousandths(&Quantity(limit.to_owned()))? / 1000).ok()
    });
    limits.sum()
}

fn container<'a>(spec: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let Value::Object(spec) = spec else { return None };
    spec.iter_mut()
        .filter(|(list, _)| *list == "containers" || *list == "initContainers")
        .filter_map(|(_, list)| list.as_array_mut())
        .flatten()
        .find(|container| container["name"] == name)
}
