//! Every process is killed once in the middle of one run. No finished work is lost or repeated, and each step has the
//! bits of an undisturbed trainer ([`undisturbed`]).
//!
//! Needs a cluster with images and chart: `make test-chaos`. Without one this test does not run.

mod campaigns;
mod random;
mod undisturbed;

use crate::support::{RUN_LIMIT, Result, SOON, Scene, small_run, verified};
use grpo_crds::{GrpoRun, Stage};
use grpo_demo::follow;
use grpo_records::Event;
use grpo_records::folder::RunFolder;
use grpo_testing::cluster::manifest::delete_run;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use serde_json::json;
use std::time::Duration;

const RUN: &str = "chaos";
const ITERATIONS: u32 = 8;
const SANDBOXES: u32 = 6;
const KILLS: u32 = 7;
/// Until a sandbox with a lease is found, and gone after its kill.
const MOMENT: Duration = Duration::from_secs(5);
const TRIES: u32 = 10;
/// One iteration, including its repeated work, with every process restarting.
const NEXT_ITERATION: Duration = Duration::from_secs(5 * 60);

#[tokio::test]
#[ignore = "takes a cluster apart: make test-chaos"]
async fn a_run_survives_the_death_of_every_process_with_nothing_lost_or_doubled_and_the_same_bits() -> Result<()> {
    let scene = Scene::new("chaos").await?;
    let manifest = undisturbed::with_same_bits(small_run(RUN)?)
        .with("/rollout/iterations", json!(ITERATIONS))
        .with("/checkpoint/every", json!(3))
        .with("/sandboxes/pool/max", json!(SANDBOXES));
    scene.apply(&manifest).await?;
    let runs = scene.runs();
    let follower = tokio::spawn(async move { follow::follow(&runs, RUN, 3 * RUN_LIMIT).await });

    let system: Api<Pod> = Api::namespaced(scene.client.clone(), "grpo-system");
    let of = |role: &str| wait::labelled(&format!("grpo.dev/role={role}"));
    let rank = |rank: u32| wait::labelled(&format!("grpo.dev/role=trainer,grpo.dev/rank={rank}"));
    at(&scene, 1, Stage::Rollout).await?;
    scene
        .kill(
            "operator",
            system,
            wait::labelled("app.kubernetes.io/name=grpo-operator"),
            None,
        )
        .await?;
    at(&scene, 2, Stage::Rollout).await?;
    scene.kill("gateway", scene.pods(), of("gateway"), None).await?;
    at(&scene, 3, Stage::Rollout).await?;
    kill_leased_sandbox(&scene).await?;
    at(&scene, 4, Stage::Rollout).await?;
    scene.kill("driver", scene.pods(), of("driver"), None).await?;
    at(&scene, 5, Stage::Rollout).await?;
    scene.kill("trainer rank 0", scene.pods(), rank(0), None).await?;
    at(&scene, 6, Stage::Rollout).await?;
    scene.kill("trainer rank 1", scene.pods(), rank(1), None).await?;
    at(&scene, 7, Stage::Rollout).await?;
    scene.kill("engine", scene.pods(), of("engine"), Some("engine")).await?;

    let ended = follower.await??;
    scene.say(&format!("succeeded after {:.0} s", ended.seconds));
    let folder = scene.store_of(&ended.run).await?;
    // Each committed verdict exists once, voids have no reward, batches and rates follow from the episodes.
    verified(&folder)?;
    assert_eq!(folder.state.finished_iterations(), ITERATIONS);
    let repeated = repeated_tries(&folder)?;
    scene.say(&format!(
        "{repeated} tries came to nothing; at most {} were in flight when something was killed",
        KILLS * SANDBOXES
    ));
    assert!(repeated <= KILLS * SANDBOXES, "{repeated} tries were repeated");
    undisturbed::same_bits(&scene, &ended.run, &folder).await?;

    no_sandbox_outlives(&scene, &ended.run).await?;
    scene.clear().await
}

/// Waits until the run has reached this stage.
async fn at(scene: &Scene, iteration: u32, stage: Stage) -> Result<()> {
    let there = |run: &GrpoRun| {
        let progress = run.status.as_ref()?.progress.as_ref()?;
        if follow::has_ended(run) {
            return Some(Err(format!(
                "the run ended before iteration {iteration}: {}",
                follow::line(run)
            )));
        }
        let reached = progress.iteration == Some(iteration) && progress.stages.contains(&stage);
        (reached || progress.iteration > Some(iteration)).then_some(Ok(()))
    };
    let what = format!("{stage:?} of iteration {iteration}");
    Ok(scene.until_run(RUN, NEXT_ITERATION, &what, there).await??)
}

/// Kills a leased sandbox. The first one may be released before its process is found: then another one is killed.
async fn kill_leased_sandbox(scene: &Scene) -> Result<()> {
    for _ in 0..TRIES {
        let leased = leased_sandbox(scene, RUN).await?;
        let kill = scene.kill("leased sandbox", scene.pods(), wait::named(&leased), None);
        match tokio::time::timeout(MOMENT, kill).await {
            Ok(Ok(_)) => return Ok(()),
            missing => {
                let why = missing.map_or_else(|_| "it is not there".to_owned(), |ended| format!("{:?}", ended.err()));
                scene.say(&format!("sandbox {leased} was not killed: {why}"));
            }
        }
    }
    Err(format!("none of {TRIES} leased sandboxes could be killed").into())
}

/// The name of a sandbox that is leased according to the ledger.
async fn leased_sandbox(scene: &Scene, run: &str) -> Result<String> {
    use k8s_openapi::api::core::v1::ConfigMap;
    let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), &scene.namespace);
    let leased = |there: &wait::Objects<ConfigMap>| {
        let entries = there.values().next()?.data.as_ref()?;
        entries.values().find_map(|entry| {
            let entry: serde_json::Value = serde_json::from_str(entry).ok()?;
            entry["sandbox"].as_str().map(str::to_owned)
        })
    };
    Ok(wait::until(
        maps,
        wait::named(&format!("{run}-ledger-0")),
        SOON,
        "a lease in the ledger",
        leased,
    )
    .await?)
}

/// Attempts without a verdict: abandoned by a process that died, or void.
fn repeated_tries(folder: &RunFolder) -> Result<u32> {
    let verdicts: std::collections::HashSet<&str> = folder
        .journal
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Verdict { episode, .. } => Some(episode.as_str()),
            _ => None,
        })
        .collect();
    let mut repeated = 0;
    for scope in folder.scopes()? {
        let attempts = folder.attempts(&scope)?;
        repeated += attempts.iter().filter(|path| !verdicts.contains(path.as_str())).count() as u32;
    }
    Ok(repeated)
}

/// A finished run holds no lease, and a deleted one leaves no sandbox.
async fn no_sandbox_outlives(scene: &Scene, run: &GrpoRun) -> Result<()> {
    scene.until_no_sandbox_is_leased().await?;
    delete_run(&scene.client, run, SOON).await?;
    let none = |there: &wait::Objects<Pod>| there.is_empty().then_some(());
    scene
        .until_pods("grpo.dev/role=sandbox", SOON, "every sandbox to be gone", none)
        .await
}
