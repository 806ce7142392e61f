//! One replica: the engine on loopback, and the agent that is its only door. Both restart in place.

use grpo_crds::RunConfig;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::read::Seen;
use crate::{
    child::Child,
    cluster::digest,
    names::{self, Labels, labels, role},
    pod_parts::{container_security, environment, lay_over, model, mount, pod_security, resources, scratch_volume},
    settings::Settings,
};

const ENGINE_PORT: u16 = 8001;
const CACHE: &str = "/cache";

/// Labels that all replicas have, and their service selects.
pub fn selector(seen: &Seen) -> Labels {
    [
        (names::INFERENCE_POOL, seen.owner.name.as_str()),
        (names::ROLE, role::ENGINE),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// Labels of everything of a pool.
pub fn pool_labels(seen: &Seen) -> Labels {
    let mut labels = labels([
        (names::ROLE, role::ENGINE),
        (names::INFERENCE_POOL, seen.owner.name.as_str()),
    ]);
    if let Some(run) = &seen.run {
        labels.insert(names::RUN.to_owned(), run.clone());
    }
    labels
}

/// The pod of a replica, marked with what it is made from.
pub fn engine(seen: &Seen, settings: &Settings, replica: u32) -> Child {
    let spec = &seen.pool.spec;
    let mut volumes = vec![scratch_volume("cache"), scratch_volume("tmp")];
    let tmp = || mount("tmp", "/tmp", false);
    let cache = |read_only| mount("cache", CACHE, read_only);
    let mut engine_mounts = vec![cache(true), tmp()];
    if let Some((volume, at)) = model(&spec.model, settings) {
        volumes.push(volume);
        engine_mounts.push(at);
    }
    let mut labels = pool_labels(seen);
    labels.insert(names::RANK.to_owned(), replica.to_string());
    labels.insert(names::ATTEMPT.to_owned(), "1".to_owned());
    let pod_spec = json!({
        "restartPolicy": "Always",
        "enableServiceLinks": false,
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 10,
        "hostname": names::engine(&seen.owner.name, replica),
        "subdomain": names::engines(&seen.owner.name),
        "securityContext": pod_security(),
        "volumes": volumes,
        "containers": [
            {
                "name": "engine",
                "image": settings.engine_image,
                "imagePullPolicy": settings.image_pull_policy,
                "args": ["--model-dir", spec.model.directory(), "--listen", format!("127.0.0.1:{ENGINE_PORT}")],
                "env": environment(settings, 1, &[], &spec.env),
                "resources": resources(spec.resources.as_ref(), 0),
                "securityContext": container_security(),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": engine_mounts,
            },
            {
                "name": "agent",
                "image": settings.agent_image,
                "imagePullPolicy": settings.image_pull_policy,
                "args": ["--engine", format!("http://127.0.0.1:{ENGINE_PORT}"), "--cache-dir", CACHE],
                "env": environment(settings, 1, &[], &[]),
                "ports": [{"name": "http", "containerPort": RunConfig::AGENT_PORT, "protocol": "TCP"}],
                "readinessProbe": {
                    "httpGet": {"path": "/readyz", "port": RunConfig::AGENT_PORT},
                    "periodSeconds": 1,
                },
                "resources": resources(None, 0),
                "securityContext": container_security(),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [cache(false), tmp()],
            },
        ],
    });
    let mut pod = seen.owner.child::<Pod>(
        names::engine(&seen.owner.name, replica),
        &labels,
        json!({"spec": pod_spec}),
    );
    lay_over(&mut pod.object, spec.pod_template.as_ref());
    let template = digest(&pod.object);
    pod.annotated(names::TEMPLATE, &template)
}
