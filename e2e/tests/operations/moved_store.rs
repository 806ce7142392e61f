//! A store is copied to another volume while its run is suspended, and a new run continues there: the steps of the page
//! on storage, "Move a store".

use crate::support::{RUN_LIMIT, Result, SOON, Scene, small_run, verdicts, verified};
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Phase;
use grpo_demo::follow;
use grpo_testing::cluster::manifest::delete_run;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::json;

const RUN: &str = "moved";
/// More iterations than are made before the move.
const MORE: u32 = 100;
const COPIES: &str = "copies";

async fn claim(scene: &Scene, name: &str) -> Result<()> {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}});
    let claim = json!({"metadata": {"name": name}, "spec": spec});
    scene.make::<PersistentVolumeClaim>(claim).await.map(drop)
}

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
    claim(&scene, "first").await?;
    claim(&scene, "second").await?;
    let on = |claim: &str| json!({"persistentVolumeClaim": {"claimName": claim}});
    let manifest = small_run(RUN)?
        .with("/rollout/iterations", json!(MORE))
        .with("/store", on("first"));
    scene.apply(&manifest).await?;
    let second_iteration = |run: &GrpoRun| match follow::has_ended(run) {
        true => Some(Err(follow::line(run))),
        false => (run.status.as_ref()?.progress.as_ref()?.iteration? >= 2).then_some(Ok(())),
    };
    scene
        .until_run(RUN, RUN_LIMIT, "its second iteration", second_iteration)
        .await??;
    scene.apply(&manifest.clone().with("/suspend", json!(true))).await?;
    let suspended = |run: &GrpoRun| (run.status.as_ref()?.phase? == Phase::Suspended).then_some(());
    scene.until_run(RUN, SOON, "Suspended", suspended).await?;
    let gone = |pods: &wait::Objects<Pod>| pods.is_empty().then_some(());
    scene
        .until_pods(&format!("grpo.dev/run={RUN}"), SOON, "no pod of the run", gone)
        .await?;

    let run = scene.runs().get(RUN).await?;
    let before = scene.store_of(&run).await?;
    let (finished, had) = (before.state.finished_iterations(), verdicts(&before)?);
    copy(&scene, "first", "second").await?;
    delete_run(&scene.client, &run, SOON).await?;
    let last = finished + 2;
    scene
        .apply(
            &manifest
                .with("/store", on("second"))
                .with("/rollout/iterations", json!(last)),
        )
        .await?;
    let ended = scene.follow(RUN).await?;
    let after = scene.store_of(&ended.run).await?;
    verified(&after)?;
    assert_eq!(after.state.finished_iterations(), last);
    let has = verdicts(&after)?;
    assert!(
        had.is_subset(&has),
        "verdicts of the first volume are missing: {:?}",
        had.difference(&has)
    );
    scene.say(&format!(
        "{finished} iterations and {} verdicts moved; {last} iterations and {} verdicts now",
        had.len(),
        has.len()
    ));
    scene.clear().await
}
