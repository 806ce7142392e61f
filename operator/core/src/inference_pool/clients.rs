//! Clients of a pool outside of runs: the flags that let them in, the way that the network leaves to them, and the
//! service that divides them among the replicas.
//!
//! The service has the replicas that serve only. The pool's other service ([`super::objects`]) names all of them, for
//! drivers, which choose a replica themselves.

use std::collections::BTreeSet;

use grpo_contracts::RunConfig;
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use super::{
    labels::{pool_labels, selector},
    observation::InferencePoolObservation,
};
use crate::{desired_object::DesiredObject, names};

/// The namespace and name of each client's account.
fn accounts(seen: &InferencePoolObservation) -> impl Iterator<Item = (&str, &str)> {
    let own = seen.owner.namespace.as_str();
    let clients = seen.pool.spec.clients.iter();
    clients.map(move |client| {
        (
            client.namespace.as_deref().unwrap_or(own),
            client.service_account.as_str(),
        )
    })
}

/// The agents' flags: what an account may do as a client.
pub fn flags(seen: &InferencePoolObservation) -> Vec<String> {
    let flags =
        accounts(seen).map(|(namespace, account)| ["--allow-sampling".to_owned(), format!("{namespace}/{account}")]);
    flags.flatten().collect()
}

/// Whose pods reach the agents, as a peer of a NetworkPolicy, which does not know accounts: pods with the label of
/// clients, in the clients' namespaces. A sandbox never has the label.
pub fn peer(seen: &InferencePoolObservation) -> Option<Value> {
    let namespaces: BTreeSet<&str> = accounts(seen).map(|(namespace, _)| namespace).collect();
    (!namespaces.is_empty()).then(|| {
        json!({
            "namespaceSelector": {"matchExpressions": [
                {"key": names::NAMESPACE_NAME, "operator": "In", "values": namespaces},
            ]},
            "podSelector": {"matchLabels": {names::INFERENCE_CLIENT: seen.owner.name}},
        })
    })
}

/// The service of a pool with clients.
pub fn service(seen: &InferencePoolObservation) -> Option<DesiredObject> {
    let port = RunConfig::AGENT_PORT;
    (!seen.pool.spec.clients.is_empty()).then(|| {
        seen.owner.object::<Service>(
            names::clients(&seen.owner.name),
            &pool_labels(seen),
            json!({"spec": {
                "type": "ClusterIP",
                "selector": selector(seen),
                "ports": [{"name": "http", "port": port, "targetPort": port, "protocol": "TCP"}],
            }}),
        )
    })
}

/// Names of services that an earlier spec needed and this one does not.
pub fn unused_services(seen: &InferencePoolObservation) -> Vec<String> {
    match seen.pool.spec.clients.is_empty() {
        true => vec![names::clients(&seen.owner.name)],
        false => Vec::new(),
    }
}

/// The service's URL inside the cluster.
pub fn url(seen: &InferencePoolObservation) -> Option<String> {
    (!seen.pool.spec.clients.is_empty()).then(|| {
        format!(
            "http://{}.{}.svc:{}",
            names::clients(&seen.owner.name),
            seen.owner.namespace,
            RunConfig::AGENT_PORT
        )
    })
}
