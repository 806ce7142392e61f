//! The objects of a pool besides its replicas: account, the service whose name resolves to all replicas, network
//! policy.

use grpo_contracts::RunConfig;
use k8s_openapi::api::{
    core::v1::{Service, ServiceAccount},
    networking::v1::NetworkPolicy,
};
use serde_json::json;

use super::{
    clients,
    labels::{members, pool_labels, selector},
    observation::InferencePoolObservation,
};
use crate::{
    desired_object::DesiredObject,
    names::{self, account, role},
    pod_parts::from_metrics,
};

pub fn objects(seen: &InferencePoolObservation) -> Vec<DesiredObject> {
    let mut objects = vec![account(seen), service(seen), policy(seen)];
    objects.extend(clients::service(seen));
    objects
}

/// An account without rights: agents ask the API server only for the cluster's public keys, which every account may
/// read.
fn account(seen: &InferencePoolObservation) -> DesiredObject {
    seen.owner.object::<ServiceAccount>(
        account::engines(&seen.owner.name),
        &pool_labels(seen),
        json!({"automountServiceAccountToken": false}),
    )
}

/// The URL of the replicas' agents inside the cluster.
pub fn url(seen: &InferencePoolObservation) -> String {
    format!(
        "http://{}.{}.svc:{}",
        names::engines(&seen.owner.name),
        seen.owner.namespace,
        RunConfig::AGENT_PORT
    )
}

/// The name resolves to every replica, ready or not: the driver asks each for its status.
fn service(seen: &InferencePoolObservation) -> DesiredObject {
    let port = RunConfig::AGENT_PORT;
    seen.owner.object::<Service>(
        names::engines(&seen.owner.name),
        &pool_labels(seen),
        json!({"spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": selector(seen),
            "ports": [{"name": "http", "port": port, "targetPort": port, "protocol": "TCP"}],
        }}),
    )
}

/// Allows drivers, the operator and metrics collectors to reach agents; in a pool without a run, also the agents of
/// other pools. The pods of a pool reach each other, since a replica may have several. Pods of clients are allowed too.
/// All others are denied, sandboxes too.
fn policy(seen: &InferencePoolObservation) -> DesiredObject {
    let port = json!([{"protocol": "TCP", "port": RunConfig::AGENT_PORT}]);
    let callers = match &seen.run {
        Some(run) => json!({"matchLabels": {names::ROLE: role::DRIVER, names::RUN: run}}),
        None => json!({"matchExpressions": [
            {"key": names::ROLE, "operator": "In", "values": [role::DRIVER, role::ENGINE]},
        ]}),
    };
    let mut from = vec![
        json!({"podSelector": callers}),
        json!({
            "namespaceSelector": {},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": names::OPERATOR}},
        }),
        from_metrics(),
    ];
    from.extend(clients::peer(seen));
    seen.owner.object::<NetworkPolicy>(
        names::engines(&seen.owner.name),
        &pool_labels(seen),
        json!({"spec": {
            "podSelector": {"matchLabels": members(seen)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": members(seen)}}]},
                {"from": from, "ports": port},
            ],
        }}),
    )
}
