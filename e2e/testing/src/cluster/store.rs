//! Copies a run's store from the cluster: a short-lived pod mounts the run's claim, and its `tar` streams through an
//! exec.

use super::{ClusterError, api, wait};
use grpo_contracts::names;
use grpo_crds::GrpoRun;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, DeleteParams, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;

/// The image of a run without a driver's pod. Any of our images with `tar` would do.
pub(super) const IMAGE: &str = "grpo.dev/driver:dev";
/// For a pod to run, and for an object to be gone.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
const ERROR_LINES: u64 = 4096;

/// Copies the whole store of the run into `to`, which is emptied first.
pub async fn copy(client: &Client, run: &GrpoRun, to: &Path) -> Result<(), ClusterError> {
    let namespace = run.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let name = format!("{}-store-reader", run.name_any());
    let reader = reader(run, &name, &image(&pods, run).await?)?;
    let object = format!("Pod {namespace}/{name}");
    remove(&pods, &name).await?;
    pods.create(&PostParams::default(), &reader)
        .await
        .map_err(api("creating", object))?;
    let copied = stream(&pods, run, &name, to).await;
    let removed = remove(&pods, &name).await;
    copied.and(removed)
}

/// The claim of the run, and the run's folder in it.
fn place(run: &GrpoRun) -> (String, String) {
    let store = &run.spec.store;
    let own = format!("{}/{}", run.namespace().unwrap_or_default(), run.name_any());
    let path = store.path.clone().unwrap_or(own);
    match &store.persistent_volume_claim {
        Some(claim) => (claim.claim_name.clone(), path),
        None => (format!("{}-store", run.name_any()), path),
    }
}

/// The driver's image: the nodes have it, under a name by which they may use it. A kubelet that has pulled an image
/// checks the right to use it under each other name too.
async fn image(pods: &Api<Pod>, run: &GrpoRun) -> Result<String, ClusterError> {
    let drivers = format!(
        "{}={},{}={}",
        names::RUN,
        run.name_any(),
        names::ROLE,
        names::role::DRIVER
    );
    let found = pods.list(&ListParams::default().labels(&drivers)).await.map_err(api(
        "listing the driver's pods of",
        format!("GrpoRun {}", run.name_any()),
    ))?;
    let image = found
        .items
        .into_iter()
        .find_map(|pod| pod.spec?.containers.first()?.image.clone());
    Ok(image.unwrap_or_else(|| IMAGE.to_owned()))
}

fn reader(run: &GrpoRun, name: &str, image: &str) -> Result<Pod, ClusterError> {
    let (claim, _) = place(run);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "grpo-demo"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": 600,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "reader", "image": image, "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", "600"],
                "securityContext": {"runAsUser": 0},
                "volumeMounts": [{"name": "store", "mountPath": "/store", "readOnly": true}],
            }],
            "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": claim, "readOnly": true}}],
        },
    });
    serde_json::from_value(pod).map_err(|e| copy_failed(run, Path::new(""), e.to_string()))
}

/// Deletes a pod, and waits until it is gone.
pub(super) async fn remove(pods: &Api<Pod>, name: &str) -> Result<(), ClusterError> {
    match pods.delete(name, &DeleteParams::default().grace_period(0)).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(api("deleting", format!("Pod {name}"))(error)),
    }
    let what = format!("Pod {name} to be gone");
    Ok(wait::until(pods.clone(), wait::named(name), PATIENCE, &what, |there| {
        there.is_empty().then_some(())
    })
    .await?)
}

/// Waits until a pod runs.
pub(super) async fn running(pods: &Api<Pod>, name: &str) -> Result<(), ClusterError> {
    let what = format!("Pod {name} to run");
    let runs = |there: &wait::Objects<Pod>| {
        let pod = there.get(name)?;
        (pod.status.as_ref()?.phase.as_deref() == Some("Running")).then_some(())
    };
    Ok(wait::until(pods.clone(), wait::named(name), PATIENCE, &what, runs).await?)
}

async fn stream(pods: &Api<Pod>, run: &GrpoRun, name: &str, to: &Path) -> Result<(), ClusterError> {
    let failed = |what: String| copy_failed(run, to, what);
    running(pods, name).await?;
    if to.exists() {
        std::fs::remove_dir_all(to).map_err(|e| failed(format!("emptying the folder: {e}")))?;
    }
    std::fs::create_dir_all(to).map_err(|e| failed(format!("making the folder: {e}")))?;
    let (_, path) = place(run);
    let folder = format!("/store/{path}");
    let attach = AttachParams::default().stdin(false).stdout(true).stderr(true);
    // Times of files keep their parts of a second.
    let mut there = pods
        .exec(name, ["tar", "--format=posix", "-C", &folder, "-cf", "-", "."], &attach)
        .await
        .map_err(api("running tar in", format!("Pod {name}")))?;
    let mut here = tokio::process::Command::new("tar")
        .args(["-x", "--no-same-owner", "-C"])
        .arg(to)
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|e| failed(format!("starting tar: {e}")))?;
    let (Some(mut from), Some(mut errors), Some(mut into)) = (there.stdout(), there.stderr(), here.stdin.take()) else {
        return Err(failed("no streams".into()));
    };
    let mut said = String::new();
    let (copied, _) = tokio::join!(tokio::io::copy(&mut from, &mut into), async {
        let _ = (&mut errors).take(ERROR_LINES).read_to_string(&mut said).await;
        tokio::io::copy(&mut errors, &mut tokio::io::sink()).await
    });
    copied.map_err(|e| failed(format!("streaming: {e}")))?;
    drop(into);
    let unpacked = here.wait().await.map_err(|e| failed(format!("waiting for tar: {e}")))?;
    let ended = match there.take_status() {
        Some(status) => status.await,
        None => None,
    };
    let packed = ended.is_none_or(|s| s.status.as_deref() == Some("Success"));
    // A file that grows during the copy is not a fault: records are put in place whole.
    if unpacked.success() && (packed || said.lines().all(|l| l.contains("file changed as we read it"))) {
        Ok(())
    } else {
        Err(failed(format!("tar: {}", said.trim())))
    }
}

fn copy_failed(run: &GrpoRun, to: &Path, what: String) -> ClusterError {
    ClusterError::Copy {
        run: format!("GrpoRun {}", run.name_any()),
        to: to.to_owned(),
        what,
    }
}
