//! Rollouts beside steps, dynamic sampling and shaped rewards on a real cluster, with and without a judge. Needs a
//! cluster with images: `make test-overlap`.

use crate::support::{Result, Scene, small_run, verified};
use grpo_crds::InferencePool;
use grpo_records::DropReason;
use grpo_testing::cluster::manifest::RunManifest;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Replaces groups without signal, continues rollouts beside steps, and charges an episode for its cost.
fn overlapping(run: RunManifest) -> RunManifest {
    run.with("/rollout/maxStaleness", json!(1))
        .with("/rollout/onSync", json!("Continue"))
        .with("/rollout/dynamic", json!({"overSample": 1.5, "limit": 3.0}))
}

/// The same, with a judge on a pool of its own and turns that are trained one by one.
pub async fn with_everything(scene: &Scene, run: RunManifest) -> Result<RunManifest> {
    let model = json!({"image": {"reference": "grpo.dev/demo/model:1"}});
    let spec = json!({"model": model, "engine": {"embedded": {}}, "replicas": 1});
    scene
        .make::<InferencePool>(json!({"metadata": {"name": "judge"}, "spec": spec}))
        .await?;
    let prompt = "{{ response }} {{ returnCode }} Good? Answer \\boxed{1} or \\boxed{-1}.";
    Ok(overlapping(run)
        .with("/agent/context", json!({"rows": "PerTurn"}))
        .with("/reward/process", json!({"poolRef": {"name": "judge"}, "votes": 2}))
        .with("/reward/process/sampling", json!({"maxTokensPerCall": 16}))
        .with("/reward/process/system", json!(""))
        .with("/reward/process/prompt", json!(prompt))
        .with("/reward/process/lengths", json!({"response": 200, "output": 200})))
}

#[tokio::test]
#[ignore = "needs a cluster with images: make test-overlap"]
async fn groups_are_replaced_while_episodes_go_on_under_new_weights() -> Result<()> {
    const ITERATIONS: u32 = 4;
    let scene = Scene::new("overlap").await?;
    let shaping = json!({"passRatio": 0.5, "turns": {"each": 0.01, "most": 0.1}, "patchLines": {"each": 0.001}});
    let manifest = overlapping(small_run("overlap")?)
        .with("/rollout/iterations", json!(ITERATIONS))
        .with("/reward/shaping", shaping);
    scene.apply(&manifest).await?;
    let ended = scene.follow("overlap").await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;

    let (mut begun, mut dropped) = (0, BTreeMap::new());
    let mut shapes = BTreeSet::new();
    for (k, iteration) in &folder.state.iterations {
        begun += iteration.tasks.len();
        for reason in iteration.dropped.values() {
            *dropped.entry(format!("{reason:?}")).or_insert(0) += 1;
        }
        let batch = folder.batch(*k)?;
        assert!(batch.groups.len() <= 2, "{} groups of 2", batch.groups.len());
        let alike = |rewards: &[f32]| rewards.windows(2).all(|pair| pair[0] == pair[1]);
        assert!(
            batch.groups.iter().all(|group| !alike(&group.rewards))
                || batch.groups.iter().all(|group| alike(&group.rewards)),
            "{:?}",
            batch.groups
        );
        shapes.extend(
            batch
                .groups
                .iter()
                .flat_map(|group| &group.rewards)
                .map(|reward| reward.to_string()),
        );
    }
    let two = |versions: &Vec<String>| versions.len() > 1;
    let mut continued = 0;
    for scope in folder.scopes()? {
        continued += folder
            .episodes(&scope)?
            .iter()
            .filter(|episode| two(&episode.meta.weights))
            .count();
    }
    scene.say(&format!(
        "{begun} groups begun for {ITERATIONS} batches of 2, left out: {dropped:?}; {continued} episodes by two versions; {} different rewards; {:.0} s",
        shapes.len(),
        ended.seconds
    ));
    assert_eq!(folder.state.finished_iterations(), ITERATIONS);
    assert!(shapes.len() > 2, "rewards are shaped: {shapes:?}");
    let surplus = format!("{:?}", DropReason::Surplus);
    assert!(
        dropped.contains_key(&surplus),
        "over-sampling begins groups that are not needed"
    );
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster with images: make test-overlap"]
async fn judged_turns_are_trained_one_by_one_while_groups_are_replaced() -> Result<()> {
    let scene = Scene::new("overlap-judged").await?;
    let manifest = with_everything(&scene, small_run("everything")?).await?;
    scene.apply(&manifest).await?;
    let ended = scene.follow("everything").await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    assert_eq!(folder.state.finished_iterations(), 2);
    scene.say(&format!("{:.0} s", ended.seconds));
    scene.clear().await
}
