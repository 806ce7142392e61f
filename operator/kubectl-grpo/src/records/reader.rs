//! The reader pod: shows the store of a run without a driver, under the restricted Pod Security Standard, and is
//! deleted after use.
//!
//! It runs the driver's image as `grpo-driver records` on the run's claim, mounted read only, without a service
//! account's token. If this program dies before it deletes the pod, the pod's deadline ends it, and the run's deletion
//! deletes it.

use crate::arguments::RecordsOptions;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::pods::connection::PodConnection;
use crate::pods::serving::ServingPod;
use crate::pods::{MANAGED_BY, container_security, driver_image, pod_security};
use grpo_contracts::RunConfig;
use grpo_contracts::access::account;
use grpo_contracts::names::{RUN, STORE, store_claim_of};
use grpo_crds::GrpoRun;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::time::Duration;

/// Deadline for its start: volumes may need attaching, and the image pulling.
const STARTS_WITHIN: Duration = Duration::from_secs(180);

/// Creates the reader pod of a run and connects to it; after a failure it deletes the pod. The pod ends after
/// `deadline`, even if this program dies.
pub async fn start(
    cluster: &Cluster,
    run: &GrpoRun,
    last_driver: Option<&Pod>,
    options: &RecordsOptions,
    deadline: Duration,
) -> Result<(ServingPod, PodConnection), Error> {
    let name = run.name_any();
    let image = match options
        .reader_image
        .as_ref()
        .or(last_driver.and_then(driver_image::of_pod))
    {
        Some(image) => image.clone(),
        None => driver_image::of_neighbour(cluster)
            .await?
            .map(|found| found.image)
            .ok_or_else(|| Error::NoReaderImage { run: name.clone() })?,
    };
    let wanted = pod(run, &image, last_driver.and_then(|pod| pod.spec.as_ref()), deadline);
    eprintln!("GrpoRun {name} has no driver now; a pod reads its store");
    let purpose = format!("reads the store of GrpoRun {name}");
    ServingPod::start(cluster, wanted, purpose, STARTS_WITHIN).await
}

/// The reader pod of a run. It copies from the last driver the settings for scheduling and for pulling the image.
pub fn pod(run: &GrpoRun, image: &str, last_driver: Option<&PodSpec>, deadline: Duration) -> Value {
    let (args, mounts, volumes) = place(run);
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": format!("{}-records-", run.name_any()),
            "labels": {MANAGED_BY.0: MANAGED_BY.1},
            "ownerReferences": run.owner_ref(&()).into_iter().collect::<Vec<_>>(),
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": deadline.as_secs(),
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": pod_security(),
            "containers": [{
                "name": "records",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "args": args,
                "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
                "securityContext": container_security(),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
            // A volume that only one node at a time may mount is read on the node of the run's other pods.
            "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchExpressions": [
                        {"key": RUN, "operator": "In", "values": [run.name_any()]},
                        {"key": STORE, "operator": "Exists"},
                    ]},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }]}},
        },
    });
    if run.spec.store.object_store.is_some() {
        pod["spec"]["serviceAccountName"] = json!(account::driver(&run.name_any()));
    }
    if let Some(last) = last_driver {
        pod["spec"]["imagePullSecrets"] = json!(last.image_pull_secrets.clone().unwrap_or_default());
        pod["spec"]["nodeSelector"] = json!(last.node_selector.clone().unwrap_or_default());
        pod["spec"]["tolerations"] = json!(last.tolerations.clone().unwrap_or_default());
    }
    pod
}

/// The reader's arguments, mounts and volumes: the store's volume, or the credentials of its bucket. A bucket without a
/// Secret is read as the run's driver reads it.
fn place(run: &GrpoRun) -> (Vec<String>, Value, Value) {
    let mut args = vec!["records".to_owned(), "--path".to_owned(), RunConfig::of(run).store_path];
    let Some(bucket) = &run.spec.store.object_store else {
        let volume = store_claim_of(run)
            .map(|claim| json!({"name": "store", "persistentVolumeClaim": {"claimName": claim, "readOnly": true}}));
        let mounts = json!([{"name": "store", "mountPath": RunConfig::STORE_MOUNT, "readOnly": true}]);
        return (args, mounts, json!(volume.into_iter().collect::<Vec<_>>()));
    };
    let mut set = |flag: &str, value: &str| args.extend([flag.to_owned(), value.to_owned()]);
    set("--url", &bucket.url);
    if let Some(endpoint) = &bucket.endpoint {
        set("--endpoint", endpoint);
    }
    if let Some(region) = &bucket.region {
        set("--region", region);
    }
    let Some(secret) = &bucket.credentials_secret_ref else {
        return (args, json!([]), json!([]));
    };
    set("--credentials", RunConfig::STORE_SECRET);
    let volume = json!({"name": "credentials", "secret": {"secretName": secret.name, "defaultMode": 0o440}});
    let at = json!({"name": "credentials", "mountPath": RunConfig::STORE_SECRET, "readOnly": true});
    (args, json!([at]), json!([volume]))
}

#[cfg(test)]
mod tests;
