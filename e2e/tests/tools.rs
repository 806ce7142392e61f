//! The tools of the other end-to-end tests, on a real cluster: copying a store, writing files to a volume, and reliably
//! killing one process.
//!
//! Needs a cluster with images: `make test-e2e`. Without one these tests do not run.

use crate::support::{Result, SOON, Scene, repository, small_run};
use grpo_crds::GrpoRun;
use grpo_testing::cluster::{store, volume, wait};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_store_is_copied_out_of_the_cluster_whole() -> Result<()> {
    let scene = Scene::new("copy").await?;
    let long = "0123456789\n".repeat(50_000);
    scene
        .volume_with_files("mine", &[("one", "1"), ("long", &long)])
        .await?;
    let manifest = small_run("copied")?.with(
        "/store",
        json!({"persistentVolumeClaim": {"claimName": "mine"}, "path": "."}),
    );
    let mut run: GrpoRun = serde_json::from_value(manifest.0)?;
    run.metadata.namespace = Some(scene.namespace.clone());
    let to = repository().join("out/e2e/copy");
    store::copy(&scene.client, &run, &to).await?;
    assert_eq!(std::fs::read_to_string(to.join("one"))?, "1");
    assert_eq!(std::fs::read_to_string(to.join("long"))?, long);
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn files_of_any_size_are_written_to_a_volume_whole() -> Result<()> {
    let scene = Scene::new("volume").await?;
    let (client, namespace) = (&scene.client, scene.namespace.as_str());
    volume::create(client, namespace, "files", "50Mi").await?;
    // More than a ConfigMap holds, with bytes of every value.
    let long: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let files = [("empty", b"".as_slice()), ("long", long.as_slice())];
    volume::write(client, namespace, "files", &files).await?;
    volume::write(client, namespace, "files", &[("empty", b"now not".as_slice())]).await?;
    assert!(volume::exists(client, namespace, "files").await?);
    let manifest = small_run("written")?.with(
        "/store",
        json!({"persistentVolumeClaim": {"claimName": "files"}, "path": "."}),
    );
    let mut run: GrpoRun = serde_json::from_value(manifest.0)?;
    run.metadata.namespace = Some(scene.namespace.clone());
    let to = repository().join("out/e2e/volume");
    store::copy(client, &run, &to).await?;
    assert!(std::fs::read(to.join("long"))? == long);
    assert_eq!(std::fs::read_to_string(to.join("empty"))?, "now not");
    volume::delete(client, namespace, "files").await?;
    assert!(!volume::exists(client, namespace, "files").await?);
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_killed_process_is_gone_and_its_pod_says_by_which_signal() -> Result<()> {
    let scene = Scene::new("kill").await?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "victim", "labels": {"app": "victim"}},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "sleeper", "image": "grpo.dev/driver:dev", "imagePullPolicy": "IfNotPresent", "command": ["sleep", "600"]}]},
    });
    scene.make::<Pod>(pod).await?;
    scene
        .kill("sleeper", scene.pods(), wait::labelled("app=victim"), Some("sleeper"))
        .await?;
    let exit = |there: &wait::Objects<Pod>| {
        let status = there
            .get("victim")?
            .status
            .as_ref()?
            .container_statuses
            .as_ref()?
            .first()?;
        Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
    };
    assert_eq!(
        scene.until_pods("app=victim", SOON, "an exit code", exit).await?,
        128 + 9
    );
    scene.clear().await
}
