//! A store is moved from a volume into a bucket, a new run continues there, and from the bucket to another volume: the
//! commands of the page on storage, "Between a volume and a bucket". In place of `aws s3 sync`, the bucket's files are
//! written and read one by one with plain requests of a client of S3.

use super::steps::{Finished, claims, ends, on, works_until};
use crate::support::bucket::Bucket;
use crate::support::{Result, SOON, Scene, small_run};
use grpo_records::folder::RunFolder;
use grpo_testing::cluster::manifest::delete_run;
use grpo_testing::cluster::{cache, kubeconfig_path, wait};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};

const RUN: &str = "moved";
/// More iterations than are made before the moves.
const MORE: u32 = 100;
const MOVER: &str = "mover";
/// Of the store, what no other store needs: as on the page.
const LEFT_OUT: [&str; 4] = [
    "--exclude=./.staging",
    "--exclude=./.probe",
    "--exclude=./hub",
    "--exclude=*#*",
];

/// A pod that mounts a claim, with the user of a run's processes.
async fn mover(scene: &Scene, claim: &str) -> Result<()> {
    let pod = json!({
        "metadata": {"name": MOVER},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": MOVER, "image": "grpo.dev/driver:dev", "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", "infinity"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "store", "mountPath": "/store"}],
            }],
            "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": claim}}],
        },
    });
    scene.make::<Pod>(pod).await?;
    let runs = |pods: &wait::Objects<Pod>| wait::is_ready(pods.get(MOVER)?).then_some(());
    Ok(wait::until(scene.pods(), wait::named(MOVER), SOON, "the mover to run", runs).await?)
}

async fn remove_mover(scene: &Scene) -> Result<()> {
    scene.pods().delete(MOVER, &DeleteParams::default()).await?;
    let gone = |pods: &wait::Objects<Pod>| pods.is_empty().then_some(());
    Ok(wait::until(scene.pods(), wait::named(MOVER), SOON, "the mover to be gone", gone).await?)
}

/// `kubectl exec` in the mover.
fn in_mover(scene: &Scene, command: &[&str]) -> Command {
    let mut kubectl = Command::new(cache().join("bin/kubectl"));
    kubectl.arg("--kubeconfig").arg(kubeconfig_path());
    kubectl.args(["--namespace", scene.namespace.as_str(), "exec", "-i", MOVER, "--"]);
    kubectl.args(command);
    kubectl
}

/// `from | into`.
fn piped(mut from: Command, mut into: Command) -> Result<()> {
    let mut first = from.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let between = first.stdout.take().ok_or("the first command has no output")?;
    let last = into.stdin(between).status()?;
    match first.wait()?.success() && last.success() {
        true => Ok(()),
        false => Err(format!("{from:?} | {into:?} failed: {last}").into()),
    }
}

fn pack(folder: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(folder).args(LEFT_OUT).args(["-cf", "-", "."]);
    tar
}

fn unpack(folder: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(folder).args(["--no-same-owner", "-xf", "-"]);
    tar
}

/// The run's folder on a volume of the mover.
fn on_volume(scene: &Scene) -> String {
    format!("/store/{}/{RUN}", scene.namespace)
}

/// Copies the store on a claim into an empty folder.
async fn unload(scene: &Scene, claim: &str, to: &Path) -> Result<()> {
    mover(scene, claim).await?;
    let from = on_volume(scene);
    let tar = ["tar", "-C", from.as_str()];
    let packs = [&tar[..], &LEFT_OUT[..], &["-cf", "-", "."][..]].concat();
    piped(in_mover(scene, &packs), unpack(to))?;
    remove_mover(scene).await
}

/// Copies a folder to a claim, as the store of the run.
async fn load(scene: &Scene, claim: &str, from: &Path) -> Result<()> {
    mover(scene, claim).await?;
    let to = on_volume(scene);
    let made = in_mover(scene, &["mkdir", "-p", to.as_str()])
        .stdin(Stdio::null())
        .status()?;
    if !made.success() {
        return Err(format!("making {to} on the claim {claim} failed: {made}").into());
    }
    piped(pack(from), in_mover(scene, &["tar", "-C", to.as_str(), "-xf", "-"]))?;
    remove_mover(scene).await
}

#[tokio::test]
#[ignore = "needs a cluster with images: make test-operations"]
async fn a_run_continues_on_a_copy_of_its_store_in_a_bucket_and_on_a_volume_again() -> Result<()> {
    let scene = Scene::new("moved-to-bucket").await?;
    let bucket = Bucket::new(&scene).await?;
    claims(&scene, &["first", "back"]).await?;
    let manifest = small_run(RUN)?.with("/rollout/iterations", json!(MORE));

    let run = works_until(&scene, &manifest.clone().with("/store", on("first")), 2).await?;
    let folder = tempfile::tempdir()?;
    unload(&scene, "first", folder.path()).await?;
    let first = Finished::of(&RunFolder::open(folder.path())?)?;
    let files = bucket.put_store(RUN, folder.path()).await?;
    scene.say(&format!("{first} in {files} files are in the bucket"));
    delete_run(&scene.client, &run, SOON).await?;

    // Its last finished iteration is one that the volume does not have.
    let run = works_until(&scene, &bucket.holds(manifest.clone()), first.iterations + 2).await?;
    let second = Finished::of(&bucket.store_of(&run)?)?;
    second.contains(&first);
    assert!(
        second.iterations > first.iterations,
        "the run in the bucket finished nothing: {second}"
    );
    let folder = tempfile::tempdir()?;
    let files = bucket.get_store(RUN, folder.path()).await?;
    scene.say(&format!("{second} in {files} files come out of the bucket"));
    load(&scene, "back", folder.path()).await?;
    delete_run(&scene.client, &run, SOON).await?;

    ends(&scene, manifest.with("/store", on("back")), &second).await?;
    scene.clear().await
}
