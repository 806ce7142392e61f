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
use crate::pods::driver_image::DriverImage;
use crate::pods::serving::ServingPod;
use crate::pods::{MANAGED_BY, container_security, driver_image, pod_security};
use grpo_contracts::RunConfig;
use grpo_contracts::access::account;
use grpo_contracts::names::{RUN, STORE, store_claim_of};
use grpo_crds::GrpoRun;
use grpo_crds::common::{OverlayMetadata, OverlaySpec, PodOverlay};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodSpec};
use kube::api::Api;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::time::Duration;

/// Deadline for its start: volumes may need attaching, and the image pulling.
const STARTS_WITHIN: Duration = Duration::from_secs(180);
/// Labels and annotations below this prefix are the operator's: by them, it and this plugin find a run's pods.
const OPERATORS: &str = "grpo.dev/";

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
    if last_driver.is_none_or(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending"))
        && let Some(claim) = store_claim_of(run)
        && is_unbound(cluster, &claim).await
    {
        return Err(Error::NoVolumeYet { run: name, claim });
    }
    let last_spec = last_driver.and_then(|pod| pod.spec.as_ref());
    let image = found_image(cluster, &name, last_driver, options.reader_image.as_ref()).await?;
    let wanted = pod(run, &image, last_spec, deadline);
    eprintln!("GrpoRun {name} has no driver now; a pod reads its store");
    let purpose = format!("reads the store of GrpoRun {name}");
    ServingPod::start(cluster, wanted, purpose, STARTS_WITHIN).await
}

/// Whether a claim has no volume yet. The first pod of such a claim may decide where its volume is made: a reader would
/// tie the run's store to a node without GPUs. Assumes that it has one if the user may not read claims.
async fn is_unbound(cluster: &Cluster, claim: &str) -> bool {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let bound = |claim: PersistentVolumeClaim| claim.status.and_then(|status| status.phase).as_deref() == Some("Bound");
    claims
        .get_opt(claim)
        .await
        .is_ok_and(|found| found.is_some_and(|claim| !bound(claim)))
}

/// The image, and Secrets to pull it with. With a `given` image, the Secrets of another driver are still useful.
async fn found_image(
    cluster: &Cluster,
    run: &str,
    last_driver: Option<&Pod>,
    given: Option<&String>,
) -> Result<DriverImage, Error> {
    let mut found = last_driver.and_then(of_last_driver);
    if found.is_none() {
        found = driver_image::of_cluster(cluster).await?;
    }
    match (found, given) {
        (found, Some(image)) => Ok(DriverImage {
            image: image.clone(),
            ..found.unwrap_or_default()
        }),
        (Some(found), None) => Ok(found),
        (None, None) => Err(Error::NoReaderImage { run: run.to_owned() }),
    }
}

/// Without its Secrets: [`pod`] reads them in the last driver's spec.
fn of_last_driver(pod: &Pod) -> Option<DriverImage> {
    Some(DriverImage {
        image: driver_image::of_pod(pod)?.clone(),
        ..DriverImage::default()
    })
}

/// The reader pod of a run. It has the driver's environment and labels, because it reaches the store as the driver
/// does. Where the last driver pod was scheduled, the reader is scheduled too.
pub fn pod(run: &GrpoRun, driver: &DriverImage, last_driver: Option<&PodSpec>, deadline: Duration) -> Value {
    let (args, mounts, volumes) = place(run);
    let options = run.spec.driver.clone().unwrap_or_default();
    let PodOverlay { metadata, spec } = options.pod_template.unwrap_or_default();
    let OverlaySpec {
        node_selector,
        tolerations,
        image_pull_secrets,
        runtime_class_name,
        priority_class_name,
        scheduler_name,
    } = spec.unwrap_or_default();
    let last = last_driver.cloned().unwrap_or_default();
    let tolerations = once_each(last.tolerations.iter().flatten().chain(&tolerations));
    let secrets = last.image_pull_secrets.iter().flatten().chain(&driver.pull_secrets);
    let secrets = secrets.chain(&image_pull_secrets).map(|secret| &secret.name);
    let secrets = run
        .spec
        .image_pull_secrets
        .iter()
        .map(|secret| &secret.name)
        .chain(secrets);
    let secrets = once_each(secrets.map(|name| json!({"name": name})));
    let container = json!({
        "name": "records",
        "image": driver.image,
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "env": options.env,
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    });
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": metadata_of(run, metadata.unwrap_or_default()),
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": deadline.as_secs(),
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": pod_security(),
            "imagePullSecrets": secrets,
            "nodeSelector": last.node_selector.unwrap_or(node_selector),
            "tolerations": tolerations,
            "runtimeClassName": runtime_class_name,
            "priorityClassName": priority_class_name,
            "schedulerName": scheduler_name,
            "affinity": near_the_store(run),
            "containers": [container],
            "volumes": volumes,
        },
    });
    if run.spec.store.object_store.is_some() {
        pod["spec"]["serviceAccountName"] = json!(account::driver(&run.name_any()));
    }
    pod
}

/// A volume that only one node at a time may mount is read on the node of the run's other pods.
fn near_the_store(run: &GrpoRun) -> Value {
    json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 100,
        "podAffinityTerm": {
            "labelSelector": {"matchExpressions": [
                {"key": RUN, "operator": "In", "values": [run.name_any()]},
                {"key": STORE, "operator": "Exists"},
            ]},
            "topologyKey": "kubernetes.io/hostname",
        },
    }]}})
}

/// Labels and annotations of the driver's template: Azure's workload identity and service meshes act on them. Ours win.
fn metadata_of(run: &GrpoRun, given: OverlayMetadata) -> Value {
    let OverlayMetadata {
        mut labels,
        mut annotations,
    } = given;
    let is_users = |key: &String, _: &mut String| !key.starts_with(OPERATORS);
    labels.retain(is_users);
    annotations.retain(is_users);
    labels.insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
    json!({
        "generateName": format!("{}-records-", run.name_any()),
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": run.owner_ref(&()).into_iter().collect::<Vec<_>>(),
    })
}

/// The values in their order, without repetitions.
fn once_each<T: serde::Serialize>(values: impl Iterator<Item = T>) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::new();
    for value in values.map(|value| json!(value)) {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
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
