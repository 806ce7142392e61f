//! The chart is upgraded, rolled back, uninstalled and installed again while two runs work: one on pools of its own,
//! with its store on a volume, one on shared pools, with its store in a bucket. Nothing of a run restarts but its
//! gateway, no episode is lost, and both runs succeed, with a driver of the new version between drivers of the old one.
//!
//! The older version is that of e2e/upgrade/from; e2e/upgrade/before.sh compiles it.

use crate::support::bucket::Bucket;
use crate::support::{RUN_LIMIT, Result, SOON, Scene, helm, small_run, verdicts, verified};
use grpo_crds::{GrpoRun, InferencePool, SandboxPool};
use grpo_demo::follow;
use grpo_testing::chart::OPERATOR;
use grpo_testing::cluster::manifest::RunManifest;
use grpo_testing::cluster::{cache, kubeconfig_path, wait};
use grpo_testing::repository;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tags of the images: of the older version, and of this one.
const OLD: &str = "before";
const NEW: &str = "dev";
const RUNS: [&str; 2] = ["own", "sharing"];
/// More iterations than fit; the last step lowers it.
const WITHOUT_END: u32 = 10_000;
const POOLS: &str = "shared";
/// Roles whose pods an upgrade leaves alone.
const STAY: [&str; 3] = ["driver", "trainer", "engine"];

/// The folder of the older version's chart.
fn old_chart() -> PathBuf {
    cache().join("before/tree/charts/grpo-operator")
}

/// Applies the CRDs, as the book says, and installs or upgrades the chart.
fn install(chart: &Path, tag: &str) -> Result<()> {
    let mut kubectl = Command::new(cache().join("bin/kubectl"));
    kubectl.arg("--kubeconfig").arg(kubeconfig_path());
    let applied = kubectl
        .args(["apply", "--server-side", "--force-conflicts", "-f"])
        .arg(chart.join("crds"))
        .output()?;
    if !applied.status.success() {
        return Err(String::from_utf8_lossy(&applied.stderr).into_owned().into());
    }
    let (chart, tag) = (chart.display().to_string(), format!("images.tag={tag}"));
    let values = ["--reset-values", "--set", tag.as_str()];
    helm(
        &[
            &[
                "upgrade",
                "--install",
                OPERATOR,
                chart.as_str(),
                "--wait",
                "--timeout",
                "180s",
            ][..],
            &values,
        ]
        .concat(),
    )
}

/// A pod with its restarts: one that an upgrade leaves alone is equal before and after.
type Running = BTreeMap<String, (String, i32)>;

/// Pods of a role that run: uid and restarts by name.
async fn running(scene: &Scene, role: &str) -> Result<Running> {
    let there = wait::labelled(&format!("grpo.dev/role={role}"));
    let all = |pods: &wait::Objects<Pod>| {
        let of = |pod: &Pod| {
            let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
            let restarts = containers.iter().map(|container| container.restart_count).sum();
            Some((pod.name_any(), (pod.uid()?, restarts)))
        };
        Some(pods.values().filter_map(of).collect())
    };
    Ok(wait::until(scene.pods(), there, SOON, &format!("pods of role {role}"), all).await?)
}

async fn all_running(scene: &Scene) -> Result<BTreeMap<&'static str, Running>> {
    let mut all = BTreeMap::new();
    for role in STAY {
        all.insert(role, running(scene, role).await?);
    }
    Ok(all)
}

/// Waits until all pods of a role of a run or pool are ready, and have this tag.
async fn until_tagged(scene: &Scene, role: &str, tag: &str, count: usize) -> Result<()> {
    let end = format!(":{tag}");
    let tagged = |pod: &&Pod| {
        let spec = pod.spec.as_ref();
        let images = spec
            .into_iter()
            .flat_map(|spec| &spec.containers)
            .filter_map(|one| one.image.as_deref());
        wait::is_ready(pod) && images.into_iter().all(|image| image.ends_with(&end))
    };
    let all = |pods: &wait::Objects<Pod>| {
        (pods.len() == count && pods.values().filter(tagged).count() == count).then_some(())
    };
    let what = format!("{count} pods of role {role} with the tag {tag}");
    scene
        .until_pods(&format!("grpo.dev/role={role}"), SOON, &what, all)
        .await
}

fn iteration(run: &GrpoRun) -> u32 {
    let progress = run.status.as_ref().and_then(|status| status.progress.as_ref());
    progress.and_then(|progress| progress.iteration).unwrap_or(0)
}

/// Waits until each run has begun so many more iterations.
async fn work_on(scene: &Scene, more: u32) -> Result<()> {
    for name in RUNS {
        let aim = iteration(&scene.runs().get(name).await?) + more;
        let there = |run: &GrpoRun| match follow::has_ended(run) {
            true => Some(Err(format!(
                "{name} ended before iteration {aim}: {}",
                follow::line(run)
            ))),
            false => (iteration(run) >= aim).then_some(Ok(())),
        };
        let what = format!("iteration {aim} of {name}");
        scene.until_run(name, RUN_LIMIT, &what, there).await??;
    }
    Ok(())
}

/// Attempts of drivers and trainers, by run.
async fn attempts(scene: &Scene) -> Result<BTreeMap<&'static str, (u32, u32)>> {
    let mut all = BTreeMap::new();
    for name in RUNS {
        let status = scene.runs().get(name).await?.status.unwrap_or_default();
        let attempts = status.attempts.unwrap_or_default();
        all.insert(name, (attempts.driver.current, attempts.trainer.current));
    }
    Ok(all)
}

/// Does something to the installation, and asserts that nothing of the runs restarts but their gateways.
async fn disturb(scene: &Scene, what: &str, tag: &str, change: impl FnOnce() -> Result<()>) -> Result<()> {
    let (before, attempts_before) = (all_running(scene).await?, attempts(scene).await?);
    change()?;
    until_tagged(scene, "gateway", tag, RUNS.len()).await?;
    scene.say(&format!("{what}: the gateways have the tag {tag}"));
    work_on(scene, 2).await?;
    assert_eq!(all_running(scene).await?, before, "{what}: pods of a run stay");
    assert_eq!(attempts(scene).await?, attempts_before, "{what}: no attempt ends");
    scene.say(&format!("{what}: both runs have worked on"));
    Ok(())
}

/// Kills the driver of a run; the next one has the installation's version, and works beside the older parts.
async fn next_driver(scene: &Scene, run: &str, tag: &str) -> Result<()> {
    let driver = wait::labelled(&format!("grpo.dev/role=driver,grpo.dev/run={run}"));
    scene.kill("driver", scene.pods(), driver, None).await?;
    let labels = format!("grpo.dev/role=driver,grpo.dev/run={run}");
    let end = format!(":{tag}");
    let next = |pods: &wait::Objects<Pod>| {
        let has = |pod: &&Pod| {
            let containers = pod
                .spec
                .as_ref()
                .map(|spec| spec.containers.as_slice())
                .unwrap_or_default();
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Running")
                && containers
                    .iter()
                    .all(|one| one.image.as_deref().is_some_and(|image| image.ends_with(&end)))
        };
        pods.values().find(has).map(|_| ())
    };
    scene
        .until_pods(&labels, SOON, &format!("a driver of {run} with the tag {tag}"), next)
        .await?;
    work_on(scene, 2).await?;
    scene.say(&format!("{run} has worked on with a driver of the tag {tag}"));
    Ok(())
}

fn endless(name: &str) -> Result<RunManifest> {
    Ok(small_run(name)?
        .with("/rollout/iterations", json!(WITHOUT_END))
        .with("/checkpoint/every", json!(2)))
}

/// The run of each name, and the pools that one of them shares.
async fn begin(scene: &Scene, bucket: &Bucket) -> Result<BTreeMap<&'static str, RunManifest>> {
    let own = endless(RUNS[0])?;
    let part = |pointer: &str| own.0["spec"].pointer(pointer).cloned().unwrap_or_default();
    let mut engines = part("/inference/pool");
    engines["model"] = part("/model");
    let metadata = json!({"name": POOLS});
    scene
        .make::<InferencePool>(json!({"metadata": metadata, "spec": engines}))
        .await?;
    scene
        .make::<SandboxPool>(json!({"metadata": metadata, "spec": part("/sandboxes/pool")}))
        .await?;
    let shared = json!({"poolRef": {"name": POOLS}});
    let sharing = bucket
        .holds(endless(RUNS[1])?)
        .with("/inference", shared.clone())
        .with("/sandboxes", shared);
    let runs = BTreeMap::from([(RUNS[0], own), (RUNS[1], sharing)]);
    for manifest in runs.values() {
        scene.apply(manifest).await?;
    }
    Ok(runs)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster and the images of two versions: make test-operations"]
async fn runs_work_on_through_an_upgrade_a_rollback_and_a_new_installation() -> Result<()> {
    let new_chart = repository().join("charts/grpo-operator");
    let scene = Scene::new("upgrade").await?;
    let bucket = Bucket::new(&scene).await?;
    install(&old_chart(), OLD)?;
    let runs = begin(&scene, &bucket).await?;
    until_tagged(&scene, "gateway", OLD, RUNS.len()).await?;
    work_on(&scene, 2).await?;

    disturb(&scene, "upgrade", NEW, || install(&new_chart, NEW)).await?;
    next_driver(&scene, RUNS[0], NEW).await?;
    // Suspended and resumed, a run has the new version alone.
    let sharing = &runs[RUNS[1]];
    scene.apply(&sharing.clone().with("/suspend", json!(true))).await?;
    let gone = |pods: &wait::Objects<Pod>| pods.is_empty().then_some(());
    let of_sharing = format!("grpo.dev/run={}", RUNS[1]);
    scene
        .until_pods(&of_sharing, SOON, "no pod of the suspended run", gone)
        .await?;
    scene.apply(&sharing.clone().with("/suspend", json!(false))).await?;
    work_on(&scene, 2).await?;
    scene.say("the suspended run has worked on with the new version");

    disturb(&scene, "rollback", OLD, || {
        helm(&["rollback", OPERATOR, "--wait", "--timeout", "180s"])
    })
    .await?;
    // The older version continues a store that the new one wrote, on the volume and in the bucket.
    for name in RUNS {
        next_driver(&scene, name, OLD).await?;
    }

    disturb(&scene, "new installation", NEW, || {
        helm(&["uninstall", OPERATOR, "--wait"])?;
        install(&new_chart, NEW)
    })
    .await?;

    for (name, manifest) in runs {
        let last = iteration(&scene.runs().get(name).await?) + 1;
        scene
            .apply(
                &manifest
                    .with("/suspend", json!(false))
                    .with("/rollout/iterations", json!(last)),
            )
            .await?;
        let ended = scene.follow(name).await?;
        let folder = match &ended.run.spec.store.object_store {
            None => scene.store_of(&ended.run).await?,
            Some(_) => bucket.store_of(&ended.run)?,
        };
        verified(&folder)?;
        let voids: u64 = folder.state.voids.values().sum();
        scene.say(&format!(
            "{name}: {} iterations, {} verdicts, {voids} voids",
            folder.state.finished_iterations(),
            verdicts(&folder)?.len()
        ));
    }
    scene.until_no_sandbox_is_leased().await?;
    scene.clear().await
}
