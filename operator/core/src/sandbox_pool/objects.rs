//! The objects of a SandboxPool (`grpo.dev`): the gateway with its rights, key and ledger, the service account of its
//! clients, and the network policies of gateway and sandboxes.

use base64::Engine as _;
use grpo_contracts::{RunConfig, listen::everywhere};
use grpo_crds::{
    common::{OverlaySpec, PodOverlay},
    sandbox_pool::IndexPods,
};
use grpo_sandbox_protocol::SANDBOXD_PORT;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, LocalObjectReference, Secret, Service, ServiceAccount},
    networking::v1::NetworkPolicy,
    rbac::v1::{Role, RoleBinding},
};
use serde_json::{Value, json};

use super::observation::SandboxPoolObservation;
use crate::{
    desired_object::DesiredObject,
    digest::digest,
    names::{self, Labels, account, labels, role},
    pod_parts::{
        add_pull_secrets, allow, container_security, environment, from_metrics, lay_over, mount, pod_security,
        resources, scratch_volume,
    },
    settings::Settings,
};

const POOL_FILE: &str = "pool.json";
const CONFIG_FOLDER: &str = "/etc/grpo";
const KEY_FOLDER: &str = "/etc/grpo/key";
const SEED: &str = "seed";
/// Delay of the first liveness probe, seconds. A gateway listens only after it has read its ledger and its pods, which
/// is slow if the API server is under load.
const GATEWAY_LIVENESS_DELAY: u32 = 120;
/// Period of the liveness probe, seconds, and failures in a row before a restart.
const GATEWAY_LIVENESS_PERIOD: u32 = 10;
const GATEWAY_LIVENESS_FAILURES: u32 = 6;

pub fn objects(seen: &SandboxPoolObservation, settings: &Settings) -> Vec<DesiredObject> {
    let mut objects = vec![pool_file(seen, settings), key(seen)];
    objects.extend(ledgers(seen).iter().map(|name| ledger(seen, name)));
    objects.extend(gateway_rights(seen));
    objects.push(client_account(seen));
    objects.push(sandboxes_reach_nothing(seen));
    objects.extend(graders_reach_the_package_index(seen));
    objects.push(callers_reach_the_gateway(seen));
    objects.push(gateway_service(seen));
    objects.push(gateway(seen, settings));
    objects
}

fn pool_labels(seen: &SandboxPoolObservation, role: &str) -> Labels {
    let mut labels = labels([(names::ROLE, role), (names::SANDBOX_POOL, seen.owner.name.as_str())]);
    if let Some(run) = &seen.run {
        labels.insert(names::RUN.to_owned(), run.clone());
    }
    labels
}

fn selector(seen: &SandboxPoolObservation, role: &str) -> Value {
    json!({names::SANDBOX_POOL: seen.owner.name, names::ROLE: role})
}

/// The spec with the operator's pull secrets; the gateway creates sandboxes and prefetch pods from it.
fn pool_text(seen: &SandboxPoolObservation, settings: &Settings) -> String {
    let mut spec = seen.pool.spec.clone();
    if !settings.pull_secrets.is_empty() {
        let overlay = spec.pod_template.get_or_insert_with(PodOverlay::default);
        let pod = overlay.spec.get_or_insert_with(OverlaySpec::default);
        for name in &settings.pull_secrets {
            if !pod.image_pull_secrets.iter().any(|known| known.name == *name) {
                pod.image_pull_secrets.push(LocalObjectReference { name: name.clone() });
            }
        }
    }
    // A spec has only texts and numbers, so it always serializes to JSON.
    serde_json::to_string_pretty(&spec).unwrap_or_default()
}

fn pool_file(seen: &SandboxPoolObservation, settings: &Settings) -> DesiredObject {
    seen.owner.object::<ConfigMap>(
        names::gateway(&seen.owner.name),
        &pool_labels(seen, role::GATEWAY),
        json!({"data": {POOL_FILE: pool_text(seen, settings)}}),
    )
}

/// The gateway's private key. It is random, so it is created once and never written again; the operator cannot read it
/// back.
fn key(seen: &SandboxPoolObservation) -> DesiredObject {
    let seed: [u8; 32] = rand::random();
    let text = base64::engine::general_purpose::STANDARD.encode(seed);
    seen.owner
        .object::<Secret>(
            names::gateway_key(&seen.owner.name),
            &pool_labels(seen, role::GATEWAY),
            json!({"type": "Opaque", "data": {SEED: text}}),
        )
        .created_once()
}

fn ledgers(seen: &SandboxPoolObservation) -> Vec<String> {
    names::ledgers(&seen.owner.name, seen.pool.spec.max)
}

/// A shard of the ledger of leases: created empty, then written by the gateway only.
fn ledger(seen: &SandboxPoolObservation, name: &str) -> DesiredObject {
    seen.owner
        .object::<ConfigMap>(name, &pool_labels(seen, role::LEDGER), json!({"data": {}}))
        .created_once()
}

/// The gateway may create and delete pods of its namespace, read Events and write its own ledger, and nothing else. In
/// a pool with a package index it also labels the pods of graders.
fn gateway_rights(seen: &SandboxPoolObservation) -> [DesiredObject; 3] {
    let (name, labels) = (names::gateway(&seen.owner.name), pool_labels(seen, role::GATEWAY));
    let owner = &seen.owner;
    let mut pod_verbs = vec!["create", "delete", "get", "list", "watch"];
    if seen.pool.spec.package_index.is_some() {
        pod_verbs.push("patch");
    }
    [
        owner.object::<ServiceAccount>(&name, &labels, json!({"automountServiceAccountToken": false})),
        owner.object::<Role>(
            &name,
            &labels,
            json!({"rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": pod_verbs},
                {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ledgers(seen), "verbs": ["get", "update"]},
                {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
            ]}),
        ),
        owner.object::<RoleBinding>(
            &name,
            &labels,
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
            }),
        ),
    ]
}

/// The service account of people and other systems that use the pool: a token of this account for the gateway, issued
/// by the API server, gives access. The account has no rights and no pod.
fn client_account(seen: &SandboxPoolObservation) -> DesiredObject {
    seen.owner.object::<ServiceAccount>(
        account::sandbox_client(&seen.owner.name),
        &pool_labels(seen, role::GATEWAY),
        json!({"automountServiceAccountToken": false}),
    )
}

/// Flags with the accounts that may call the gateway. A pool made for a run serves that run; any other pool serves the
/// runs of its own namespace and of the namespaces it allows.
fn callers(seen: &SandboxPoolObservation) -> Vec<String> {
    let driver = account::driver(seen.run.as_deref().unwrap_or("*"));
    let own = [driver.clone(), account::sandbox_client(&seen.owner.name)];
    let mut flags = allow(&seen.owner.namespace, own);
    flags.extend(other_namespaces(seen).flat_map(|namespace| allow(namespace, [driver.clone()])));
    flags
}

/// Namespaces whose runs may lease sandboxes, besides the pool's own.
fn other_namespaces(seen: &SandboxPoolObservation) -> impl Iterator<Item = &str> {
    let allowed = seen.pool.spec.allowed_namespaces.iter().map(String::as_str);
    allowed.filter(|namespace| *namespace != seen.owner.namespace)
}

/// Allows drivers, and pods marked as clients, to reach the gateway.
fn callers_reach_the_gateway(seen: &SandboxPoolObservation) -> DesiredObject {
    let mut drivers = json!({names::ROLE: role::DRIVER});
    if let Some(run) = &seen.run {
        drivers[names::RUN] = json!(run);
    }
    let mut from = vec![
        json!({"podSelector": {"matchLabels": drivers}}),
        json!({"podSelector": {"matchLabels": {names::SANDBOX_CLIENT: seen.owner.name}}}),
        from_metrics(),
    ];
    let others: Vec<&str> = other_namespaces(seen).collect();
    if !others.is_empty() {
        let named = json!({"key": names::NAMESPACE_NAME, "operator": "In", "values": others});
        from.push(json!({
            "namespaceSelector": {"matchExpressions": [named]},
            "podSelector": {"matchLabels": drivers},
        }));
    }
    seen.owner.object::<NetworkPolicy>(
        names::gateway(&seen.owner.name),
        &pool_labels(seen, role::GATEWAY),
        json!({"spec": {
            "podSelector": {"matchLabels": selector(seen, role::GATEWAY)},
            "policyTypes": ["Ingress"],
            "ingress": [{
                "from": from,
                "ports": [{"protocol": "TCP", "port": RunConfig::GATEWAY_PORT}],
            }],
        }}),
    )
}

/// Allows only the gateway to reach sandboxes; sandboxes and prefetch pods reach nothing.
fn sandboxes_reach_nothing(seen: &SandboxPoolObservation) -> DesiredObject {
    seen.owner.object::<NetworkPolicy>(
        names::sandbox_policy(&seen.owner.name),
        &pool_labels(seen, role::SANDBOX),
        json!({"spec": {
            "podSelector": {
                "matchLabels": {names::SANDBOX_POOL: seen.owner.name},
                "matchExpressions": [{"key": names::ROLE, "operator": "In", "values": [role::SANDBOX, role::IMAGE]}],
            },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{
                "from": [{"podSelector": {"matchLabels": selector(seen, role::GATEWAY)}}],
                "ports": [{"protocol": "TCP", "port": SANDBOXD_PORT}],
            }],
        }}),
    )
}

/// Allows sandboxes leased by a grader to reach the pool's package index. Policies add up: this one removes nothing
/// from the policy above, and does not affect sandboxes without the label.
fn graders_reach_the_package_index(seen: &SandboxPoolObservation) -> Option<DesiredObject> {
    let index = seen.pool.spec.package_index.as_ref()?;
    let peer = match (&index.pods, &index.cidr) {
        (
            Some(IndexPods {
                namespace,
                match_labels,
            }),
            _,
        ) => {
            let mut peer = json!({"podSelector": {"matchLabels": match_labels}});
            if let Some(namespace) = namespace {
                peer["namespaceSelector"] = json!({"matchLabels": {names::NAMESPACE_NAME: namespace}});
            }
            peer
        }
        (None, Some(cidr)) => json!({"ipBlock": {"cidr": cidr}}),
        // The API server rejects such a pool.
        (None, None) => return None,
    };
    let mut graders = selector(seen, role::SANDBOX);
    graders[names::GRADER] = json!("true");
    Some(seen.owner.object::<NetworkPolicy>(
        names::grader_policy(&seen.owner.name),
        &pool_labels(seen, role::SANDBOX),
        json!({"spec": {
            "podSelector": {"matchLabels": graders},
            "policyTypes": ["Egress"],
            "egress": [{"to": [peer], "ports": [{"protocol": "TCP", "port": index.policy_port()}]}],
        }}),
    ))
}

fn gateway_service(seen: &SandboxPoolObservation) -> DesiredObject {
    let port = RunConfig::GATEWAY_PORT;
    seen.owner.object::<Service>(
        names::gateway(&seen.owner.name),
        &pool_labels(seen, role::GATEWAY),
        json!({"spec": {
            "selector": selector(seen, role::GATEWAY),
            "ports": [{"name": "http", "port": port, "targetPort": port, "protocol": "TCP"}],
        }}),
    )
}

/// One gateway at a time: the old one ends before the new one starts. A change of the pool's spec replaces the gateway;
/// leases survive in the ledger.
fn gateway(seen: &SandboxPoolObservation, settings: &Settings) -> DesiredObject {
    let owner = &seen.owner;
    let name = names::gateway(&owner.name);
    let labels = pool_labels(seen, role::GATEWAY);
    let options = seen.pool.spec.gateway.clone().unwrap_or_default();
    let port = RunConfig::GATEWAY_PORT;
    let mut arguments = vec![
        "--pool-file".to_owned(),
        format!("{CONFIG_FOLDER}/{POOL_FILE}"),
        "--pool".to_owned(),
        owner.name.clone(),
        "--namespace".to_owned(),
        owner.namespace.clone(),
        "--pool-uid".to_owned(),
        owner.uid.clone(),
        "--key-file".to_owned(),
        format!("{KEY_FOLDER}/{SEED}"),
        "--sandboxd-image".to_owned(),
        settings.sandboxd_image.clone(),
    ];
    for ledger in ledgers(seen) {
        arguments.extend(["--ledger".to_owned(), ledger]);
    }
    arguments.extend(["--listen".to_owned(), everywhere(port).to_string()]);
    arguments.extend(callers(seen));
    let mut template = json!({
        "metadata": {"labels": labels, "annotations": {names::TEMPLATE: digest(&json!(pool_text(seen, settings)))}},
        "spec": {
            "serviceAccountName": name,
            "automountServiceAccountToken": true,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 10,
            "securityContext": pod_security(settings),
            "volumes": [
                {"name": "config", "configMap": {"name": name}},
                {"name": "key", "secret": {"secretName": names::gateway_key(&owner.name), "defaultMode": 0o440}},
                scratch_volume("tmp"),
            ],
            "containers": [{
                "name": "gateway",
                "image": settings.gateway_image,
                "imagePullPolicy": settings.image_pull_policy,
                "args": arguments,
                "env": environment(settings, 1, &[], &options.env),
                "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
                "readinessProbe": {"httpGet": {"path": "/readyz", "port": port}, "periodSeconds": 1},
                // A gateway without progress is restarted; leases survive that too.
                "livenessProbe": {
                    "httpGet": {"path": "/healthz", "port": port},
                    "initialDelaySeconds": GATEWAY_LIVENESS_DELAY,
                    "periodSeconds": GATEWAY_LIVENESS_PERIOD,
                    "timeoutSeconds": 5,
                    "failureThreshold": GATEWAY_LIVENESS_FAILURES,
                },
                "resources": resources(options.resources.as_ref(), 0),
                "securityContext": container_security(),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    mount("config", CONFIG_FOLDER, true),
                    mount("key", KEY_FOLDER, true),
                    mount("tmp", "/tmp", false),
                ],
            }],
        },
    });
    lay_over(&mut template, options.pod_template.as_ref());
    add_pull_secrets(&mut template["spec"], settings);
    owner.object::<Deployment>(
        &name,
        &labels,
        json!({"spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector(seen, role::GATEWAY)},
            "template": template,
        }}),
    )
}
