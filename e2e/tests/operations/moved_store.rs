//! A store is copied to another volume while its run is suspended, and a new run continues there: the steps of the page
//! on storage, "Move a store".

use super::steps::{Finished, claims, ends, on, works_until};
use crate::support::{Result, SOON, Scene, small_run};
use grpo_testing::cluster::manifest::delete_run;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

const RUN: &str = "moved";
/// More iterations than are made before the move.
const MORE: u32 = 100;
const COPIES: &str = "copies";

/// Copies the whole volume, owners and times included.
async fn copy(scene: &Scene, from: &str, to: &str) -> Result<()> {
    let volume = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let pod = json!({
        "metadata": {"name": COPIES},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": COPIES, "image": "grpo.dev/driver:dev", "imagePullPolicy": "IfNotPresent",
                "command": ["cp", "-a", format!("/{from}/."), format!("/{to}/")],
                "securityContext": {"runAsUser": 0}, "volumeMounts": [mount(from), mount(to)],
            }],
            "volumes": [volume(from), volume(to)],
        },
    });
    scene.make::<Pod>(pod).await?;
    let ended = |pods: &wait::Objects<Pod>| match pods.get(COPIES)?.status.as_ref()?.phase.as_deref()? {
        "Succeeded" => Some(Ok(())),
        "Failed" => Some(Err("copying the volume failed")),
        _ => None,
    };
    let done = wait::until(scene.pods(), wait::named(COPIES), SOON, "the copy of the volume", ended).await?;
    Ok(done?)
}

#[tokio::test]
#[ignore = "needs a cluster with images: make test-operations"]
async fn a_run_continues_on_a_copy_of_its_store_on_another_volume() -> Result<()> {
    let scene = Scene::new("moved-store").await?;
    claims(&scene, &["first", "second"]).await?;
    let manifest = small_run(RUN)?
        .with("/rollout/iterations", json!(MORE))
        .with("/store", on("first"));
    let run = works_until(&scene, &manifest, 2).await?;
    let moved = Finished::of(&scene.store_of(&run).await?)?;
    copy(&scene, "first", "second").await?;
    delete_run(&scene.client, &run, SOON).await?;
    ends(&scene, manifest.with("/store", on("second")), &moved).await?;
    scene.clear().await
}
