//! The pod that lists the tasks that a run would have: the driver's image as `grpo-driver tasks`, with only the volumes
//! that the run's driver would have for its datasets. It has no service account's token.

use crate::pods::driver_image::DriverImage;
use crate::pods::{MANAGED_BY, container_security, pod_security};
use grpo_contracts::RunConfig;
use grpo_contracts::volumes::{dataset_volumes, mount, scratch_volume};
use grpo_crds::common::{EnvVariable, OverlaySpec, ProcessOptions};
use serde_json::{Value, json};

/// The pod ends after this time, even if this program dies: downloads and a hundred thousand rows take long.
pub const DEADLINE_SECONDS: u32 = 4 * 3600;
const HUB_VARIABLE: &str = "HF_ENDPOINT";
const PULL_POLICY: &str = "IfNotPresent";

pub fn pod(config: &RunConfig, driver: &DriverImage) -> Value {
    let options = config.spec.driver.clone().unwrap_or_default();
    let mut volumes = vec![scratch_volume("tmp")];
    let mut mounts = vec![mount("tmp", "/tmp", false)];
    for (volume, at) in dataset_volumes(config, PULL_POLICY) {
        volumes.push(volume);
        mounts.push(at);
    }
    let OverlaySpec {
        node_selector,
        tolerations,
        image_pull_secrets,
        runtime_class_name,
        priority_class_name,
        scheduler_name,
    } = overlay(&options);
    let mut secrets: Vec<Value> = config
        .spec
        .image_pull_secrets
        .iter()
        .map(|secret| json!(secret))
        .collect();
    let others = driver
        .pull_secrets
        .iter()
        .chain(&image_pull_secrets)
        .map(|secret| json!(secret));
    for secret in others {
        if !secrets.contains(&secret) {
            secrets.push(secret);
        }
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": format!("{}-tasks-", config.name),
            "labels": {MANAGED_BY.0: MANAGED_BY.1},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": pod_security(),
            "imagePullSecrets": secrets,
            "nodeSelector": node_selector,
            "tolerations": tolerations,
            "runtimeClassName": runtime_class_name,
            "priorityClassName": priority_class_name,
            "schedulerName": scheduler_name,
            "containers": [{
                "name": "tasks",
                "image": driver.image,
                "imagePullPolicy": PULL_POLICY,
                "args": ["tasks"],
                "env": environment(&options, driver),
                "resources": resources(&options),
                "securityContext": container_security(),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    })
}

fn overlay(options: &ProcessOptions) -> OverlaySpec {
    let template = options.pod_template.as_ref();
    template.and_then(|template| template.spec.clone()).unwrap_or_default()
}

/// Proxies and certificates of the run's driver, and the cluster's hub unless the run names another.
fn environment(options: &ProcessOptions, driver: &DriverImage) -> Value {
    let named = options.env.iter().any(|variable| variable.name == HUB_VARIABLE);
    let hub = driver
        .hub_endpoint
        .iter()
        .filter(|_| !named)
        .map(|endpoint| EnvVariable {
            name: HUB_VARIABLE.to_owned(),
            value: endpoint.clone(),
        });
    let home = EnvVariable {
        name: "HOME".to_owned(),
        value: "/tmp".to_owned(),
    };
    std::iter::once(home)
        .chain(hub)
        .chain(options.env.iter().cloned())
        .map(|variable| json!(variable))
        .collect()
}

/// The resources of the run's driver, or enough for the rows of a large set.
fn resources(options: &ProcessOptions) -> Value {
    let given = options.resources.as_ref().map(|resources| json!(resources));
    let usual = || json!({"requests": {"cpu": "20m", "memory": "256Mi"}, "limits": {"cpu": "2", "memory": "4Gi"}});
    given.unwrap_or_else(usual)
}

#[cfg(test)]
mod tests;
