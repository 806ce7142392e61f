//! Steps that every move of a store has: a run works and is suspended, its store is read, and the last run ends on what
//! was moved.

use crate::support::{RUN_LIMIT, Result, SOON, Scene, verdicts, verified};
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Phase;
use grpo_demo::follow;
use grpo_records::folder::RunFolder;
use grpo_testing::cluster::manifest::RunManifest;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Makes claims for stores.
pub async fn claims(scene: &Scene, names: &[&str]) -> Result<()> {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}});
    for name in names {
        let claim = json!({"metadata": {"name": name}, "spec": spec});
        scene.make::<PersistentVolumeClaim>(claim).await?;
    }
    Ok(())
}

/// `spec.store` on a claim.
pub fn on(claim: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": claim}})
}

/// Applies a run, suspends it as soon as it is in this iteration, and waits until it has no pods.
pub async fn works_until(scene: &Scene, manifest: &RunManifest, iteration: u32) -> Result<GrpoRun> {
    let name = manifest.name();
    scene.apply(manifest).await?;
    let there = |run: &GrpoRun| match follow::has_ended(run) {
        true => Some(Err(follow::line(run))),
        false => (run.status.as_ref()?.progress.as_ref()?.iteration? >= iteration).then_some(Ok(())),
    };
    let what = format!("iteration {iteration}");
    scene.until_run(name, RUN_LIMIT, &what, there).await??;
    scene.apply(&manifest.clone().with("/suspend", json!(true))).await?;
    let suspended = |run: &GrpoRun| (run.status.as_ref()?.phase? == Phase::Suspended).then_some(());
    scene.until_run(name, SOON, "Suspended", suspended).await?;
    let gone = |pods: &wait::Objects<Pod>| pods.is_empty().then_some(());
    let of_run = format!("grpo.dev/run={name}");
    scene.until_pods(&of_run, SOON, "no pod of the run", gone).await?;
    Ok(scene.runs().get(name).await?)
}

/// Finished work of a store.
pub struct Finished {
    pub iterations: u32,
    verdicts: BTreeSet<String>,
}

impl Finished {
    /// Two verdicts on one episode are an error.
    pub fn of(folder: &RunFolder) -> Result<Self> {
        Ok(Self {
            iterations: folder.state.finished_iterations(),
            verdicts: verdicts(folder)?,
        })
    }

    /// Asserts that this store has everything that an earlier one had.
    pub fn contains(&self, earlier: &Self) {
        let lost: Vec<&String> = earlier.verdicts.difference(&self.verdicts).collect();
        assert!(lost.is_empty(), "verdicts of the store before are missing: {lost:?}");
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            to,
            "{} iterations and {} verdicts",
            self.iterations,
            self.verdicts.len()
        )
    }
}

/// The last run works for two more iterations on a volume with the moved store, and everything is verified.
pub async fn ends(scene: &Scene, manifest: RunManifest, moved: &Finished) -> Result<()> {
    let last = moved.iterations + 2;
    let manifest = manifest.with("/rollout/iterations", json!(last));
    scene.apply(&manifest).await?;
    let ended = scene.follow(manifest.name()).await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    let finished = Finished::of(&folder)?;
    assert_eq!(finished.iterations, last);
    finished.contains(moved);
    scene.say(&format!("{moved} moved; {finished} now"));
    Ok(())
}
