//! Parts of pods that all our processes share: security, environment, volumes, resources, and the user's overlay.

use grpo_contracts::access::{self, Service};
use grpo_contracts::volumes;
pub use grpo_contracts::volumes::{claim_volume, mount, scratch_volume, secret_folder_volume, secret_volume};
use grpo_crds::common::{EnvVariable, PodOverlay};
use grpo_crds::sources::ModelSource;
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde_json::{Map, Value, json};

use crate::{
    names::{self, Labels},
    settings::Settings,
};

/// User, group and volume group of all our processes.
const USER: i64 = 65532;

/// The restricted Pod Security Standard's requirements for a pod, and its ids, unless the cluster assigns them.
pub fn pod_security(settings: &Settings) -> Value {
    let mut security = json!({
        "runAsNonRoot": true,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    if let Some(fields) = security.as_object_mut().filter(|_| settings.cluster_assigns_ids) {
        for id in ["runAsUser", "runAsGroup", "fsGroup"] {
            fields.remove(id);
        }
    }
    security
}

/// The restricted Pod Security Standard's requirements for a container, and a read-only root file system.
pub fn container_security() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]},
    })
}

/// The environment: variables of every process, then the process's own, then the user's. Each name occurs once: the API
/// server takes a repeated name when a Deployment is created, and refuses to apply it afterwards. Ours win, except
/// `RUST_LOG`, by which the user chooses what one process logs. Among the user's, the last wins.
pub fn environment(settings: &Settings, attempt: u32, own: &[(&str, String)], given: &[EnvVariable]) -> Value {
    let from_field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
    let plain = |name: &str, value: &str| json!({"name": name, "value": value});
    let mut environment = vec![
        from_field("POD_NAME", "metadata.name"),
        from_field("POD_NAMESPACE", "metadata.namespace"),
        from_field("POD_IP", "status.podIP"),
        plain("GRPO_ATTEMPT", &attempt.to_string()),
        plain("HOME", "/tmp"),
    ];
    if !given.iter().any(|variable| variable.name == "RUST_LOG") {
        environment.push(plain("RUST_LOG", &settings.process_log));
    }
    environment.extend(own.iter().map(|(name, value)| plain(name, value)));
    for (at, variable) in given.iter().enumerate() {
        let ours = environment.iter().any(|known| known["name"] == variable.name.as_str());
        let mut later = given.iter().skip(at + 1);
        if !ours && !later.any(|later| later.name == variable.name) {
            environment.push(plain(&variable.name, &variable.value));
        }
    }
    Value::Array(environment)
}

/// The given resources and GPUs, with tiny default requests.
pub fn resources(given: Option<&ResourceRequirements>, gpus: u32) -> Value {
    let section = |quantities: Option<&std::collections::BTreeMap<String, _>>| -> Map<String, Value> {
        quantities
            .into_iter()
            .flatten()
            .map(
                |(name, quantity): (&String, &k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
                    (name.clone(), json!(quantity.0))
                },
            )
            .collect()
    };
    let mut requests = section(given.and_then(|given| given.requests.as_ref()));
    let mut limits = section(given.and_then(|given| given.limits.as_ref()));
    for (name, little) in [("cpu", "20m"), ("memory", "64Mi")] {
        if !requests.contains_key(name) && !limits.contains_key(name) {
            requests.insert(name.to_owned(), json!(little));
        }
    }
    if gpus > 0 {
        limits.insert("nvidia.com/gpu".to_owned(), json!(gpus.to_string()));
    }
    let mut resources = json!({"requests": requests});
    if !limits.is_empty() {
        resources["limits"] = Value::Object(limits);
    }
    if let Some(claims) = given.and_then(|given| given.claims.as_ref()) {
        resources["claims"] = json!(claims);
    }
    resources
}

/// Adds the pull secrets of the operator's own images to the pod's pull secrets.
pub fn add_pull_secrets(pod: &mut Value, settings: &Settings) {
    let mut secrets = pod["imagePullSecrets"].as_array().cloned().unwrap_or_default();
    for name in &settings.pull_secrets {
        let secret = json!({"name": name});
        if !secrets.contains(&secret) {
            secrets.push(secret);
        }
    }
    if !secrets.is_empty() {
        pod["imagePullSecrets"] = Value::Array(secrets);
    }
}

/// An image mounted as a volume.
pub fn image_volume(name: &str, reference: &str, settings: &Settings) -> Value {
    volumes::image_volume(name, reference, &settings.image_pull_policy)
}

/// The volume with tokens of the pod's account for these services, and its mount. The kubelet renews the tokens.
pub fn tokens(services: &[Service]) -> (Value, Value) {
    tokens_with(services, |service| service.audience().to_owned())
}

/// As [`tokens`], with other audiences than those of all instances of a service.
pub fn tokens_with(services: &[Service], audience: impl Fn(Service) -> String) -> (Value, Value) {
    let token = |service: &Service| {
        json!({"serviceAccountToken": {
            "audience": audience(*service),
            "expirationSeconds": access::TOKEN_SECONDS,
            "path": service.audience(),
        }})
    };
    let sources: Vec<Value> = services.iter().map(token).collect();
    (
        json!({"name": access::TOKENS_VOLUME, "projected": {"sources": sources}}),
        mount(access::TOKENS_VOLUME, access::TOKENS, true),
    )
}

/// Access to the API server for a pod that reads only the cluster's public keys: its account has no rights.
pub fn api_server_access() -> (Value, Value) {
    let name = "api-server";
    (
        json!({"name": name, "projected": {"sources": [
            {"serviceAccountToken": {"expirationSeconds": access::TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ]}}),
        mount(name, access::API_SERVER_ACCESS, true),
    )
}

/// Flags with the accounts of a namespace that may call.
pub fn allow(namespace: &str, accounts: impl IntoIterator<Item = String>) -> Vec<String> {
    let flags = accounts
        .into_iter()
        .map(|account| ["--allow".to_owned(), format!("{namespace}/{account}")]);
    flags.flatten().collect()
}

/// Further allowed callers of all our services: pods of namespaces that collect metrics.
pub fn from_metrics() -> Value {
    json!({"namespaceSelector": {"matchLabels": {names::METRICS: "true"}}})
}

/// The volume of a model and its mount. For a downloaded model the volume holds the link to the files in a cache.
pub fn model(source: &ModelSource, settings: &Settings) -> Option<(Value, Value)> {
    let volume = match (&source.image, &source.persistent_volume_claim) {
        (Some(image), _) => image_volume("model", &image.reference, settings),
        (None, Some(claim)) => claim_volume("model", &claim.claim_name, true),
        (None, None) if source.is_downloaded() => scratch_volume("model"),
        (None, None) => return None,
    };
    Some((volume, mount("model", ModelSource::MOUNT, true)))
}

/// Merges the user's overlay into a pod (or a pod template): our labels win; lists are extended, single values
/// replaced.
pub fn lay_over(pod: &mut Value, overlay: Option<&PodOverlay>) {
    let Some(overlay) = overlay else { return };
    if let Some(metadata) = &overlay.metadata {
        let ours: Labels = serde_json::from_value(pod["metadata"]["labels"].clone()).unwrap_or_default();
        let mut labels = metadata.labels.clone();
        labels.extend(ours);
        pod["metadata"]["labels"] = json!(labels);
        for (key, value) in &metadata.annotations {
            if pod["metadata"]["annotations"][key].is_null() {
                pod["metadata"]["annotations"][key] = json!(value);
            }
        }
    }
    if let Some(Value::Object(fields)) = overlay.spec.as_ref().and_then(|spec| serde_json::to_value(spec).ok()) {
        merge(&mut pod["spec"], Value::Object(fields));
    }
}

fn merge(into: &mut Value, given: Value) {
    match (into, given) {
        (Value::Object(into), Value::Object(given)) => {
            for (name, value) in given {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(given)) => {
            let new: Vec<Value> = given.into_iter().filter(|item| !into.contains(item)).collect();
            into.extend(new);
        }
        (into, given) => *into = given,
    }
}

#[cfg(test)]
mod tests;
