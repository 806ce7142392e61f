//! What a pool has besides its replicas: the service whose name resolves to all of them, and who may reach them.

use grpo_contracts::RunConfig;
use k8s_openapi::api::{
    core::v1::{Service, ServiceAccount},
    networking::v1::NetworkPolicy,
};
use serde_json::json;

use super::{
    labels::{members, pool_labels, selector},
    observation::InferencePoolObservation,
};
use crate::{
    desired_object::DesiredObject,
    names::{self, account, role},
    pod_parts::from_metrics,
};

pub fn objects(seen: &InferencePoolObservation) -> Vec<DesiredObject> {
    vec![account(seen), service(seen), policy(seen)]
}

/// Has no rights: agents ask the API server for nothing but the cluster's public keys, which every account may read.
fn account(seen: &InferencePoolObservation) -> DesiredObject {
    seen.owner.object::<ServiceAccount>(
        account::engines(&seen.owner.name),
        &pool_labels(seen),
        json!({"automountServiceAccountToken": false}),
    )
}

/// Where the replicas' agents are, for people and for clients in the cluster.
pub fn url(seen: &InferencePoolObservation) -> String {
    format!(
        "http://{}.{}.svc:{}",
        names::engines(&seen.owner.name),
        seen.owner.namespace,
        RunConfig::AGENT_PORT
    )
}

/// Its name resolves to every replica, ready or not: the driver asks each how it is.
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

/// Agents are asked by drivers and by the operator, those of a pool that no run owns by other pools' agents too; the
/// pods of a pool reach each other, since a replica may be several. All others stay out, sandboxes too.
fn policy(seen: &InferencePoolObservation) -> DesiredObject {
    let port = json!([{"protocol": "TCP", "port": RunConfig::AGENT_PORT}]);
    let callers = match &seen.run {
        Some(run) => json!({"matchLabels": {names::ROLE: role::DRIVER, names::RUN: run}}),
        None => json!({"matchExpressions": [
            {"key": names::ROLE, "operator": "In", "values": [role::DRIVER, role::ENGINE]},
        ]}),
    };
    seen.owner.object::<NetworkPolicy>(
        names::engines(&seen.owner.name),
        &pool_labels(seen),
        json!({"spec": {
            "podSelector": {"matchLabels": members(seen)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": members(seen)}}]},
                {
                    "from": [
                        {"podSelector": callers},
                        {
                            "namespaceSelector": {},
                            "podSelector": {"matchLabels": {"app.kubernetes.io/name": names::OPERATOR}},
                        },
                        from_metrics(),
                    ],
                    "ports": port,
                },
            ],
        }}),
    )
}
