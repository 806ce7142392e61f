//! `kubectl grpo` on runs of other tests: through the driver while the run is running, through a reader pod afterwards.

use super::{Result, SOON, Scene};
use grpo_crds::GrpoRun;
use grpo_records::folder::RunFolder;
use grpo_records::look::EpisodesOf;
use grpo_records::paths;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use kubectl_grpo::arguments::RecordsOptions;
use kubectl_grpo::cluster::Cluster;
use kubectl_grpo::records::{self, Source};
use kubectl_grpo::validated;

/// Labels of the pods that read the store of a run without a driver.
pub const READERS: &str = "app.kubernetes.io/managed-by=kubectl-grpo";

fn cluster(scene: &Scene) -> Cluster {
    Cluster {
        client: scene.client.clone(),
        namespace: scene.namespace.clone(),
        given: None,
    }
}

/// Waits for the first finished episode of a running run, then finds it through the run's driver.
pub async fn looks_into_a_running_run(scene: &Scene, run: &str) -> Result<()> {
    let done = |run: &GrpoRun| {
        let progress = run.status.as_ref()?.progress.as_ref()?;
        progress.episodes_done.filter(|done| *done > 0)
    };
    scene
        .until_run(run, super::RUN_LIMIT, "a finished episode", done)
        .await?;
    let mut opened = records::of_run(&cluster(scene), run, &RecordsOptions::default()).await?;
    let found = episodes(&mut opened.source).await?;
    opened.close().await?;
    let readers = Api::<Pod>::namespaced(scene.client.clone(), &scene.namespace);
    let readers = readers.list(&kube::api::ListParams::default().labels(READERS)).await?;
    assert!(
        readers.items.is_empty(),
        "a reader pod was made although the driver runs"
    );
    assert!(
        !found.is_empty(),
        "the driver shows no episode although one is finished"
    );
    scene.say(&format!("the driver shows {} episodes", found.len()));
    Ok(())
}

/// The records of an ended run, by a reader pod, equal those of its store; and the pod is gone afterwards.
pub async fn reads_an_ended_run(scene: &Scene, run: &str, folder: &RunFolder) -> Result<()> {
    let mut opened = records::of_run(&cluster(scene), run, &RecordsOptions::default()).await?;
    let found = episodes(&mut opened.source).await?;
    let mut known = Vec::new();
    for scope in folder.scopes()? {
        known.extend(folder.episodes(&scope)?.into_iter().map(|episode| episode.path));
    }
    let mut finished: Vec<String> = found
        .iter()
        .filter(|(_, finished)| *finished)
        .map(|(path, _)| path.clone())
        .collect();
    finished.sort();
    known.sort();
    assert_eq!(finished, known);
    let one = known.first().ok_or("the run has no episodes")?;
    assert_eq!(opened.source.turns(one).await?, folder.turns(one)?);
    opened.close().await?;
    let pods = Api::<Pod>::namespaced(scene.client.clone(), &scene.namespace);
    wait::until(
        pods,
        wait::labelled(READERS),
        SOON,
        "the reader pod to be gone",
        |there| there.is_empty().then_some(()),
    )
    .await?;
    scene.say(&format!("a reader pod showed {} episodes", finished.len()));
    Ok(())
}

/// The output of `kubectl grpo validated RUN` for a run with one set.
pub async fn validated(scene: &Scene, run: &GrpoRun) -> Result<String> {
    let (name, set) = (run.name_any(), validated::set_of_run(run, None)?);
    let mut opened = records::of_run(&cluster(scene), &name, &RecordsOptions::default()).await?;
    let list = validated::list(&mut opened.source, &name, &set).await?;
    opened.close().await?;
    Ok(list)
}

/// Folders of all episodes, and whether they are finished.
async fn episodes(source: &mut Source) -> Result<Vec<(String, bool)>> {
    let mut found = Vec::new();
    for scope in source.contents().await?.scopes {
        let mut wanted = EpisodesOf {
            scope: paths::scope(&scope),
            ..EpisodesOf::default()
        };
        loop {
            let page = source.episodes(&wanted).await?;
            found.extend(
                page.episodes
                    .into_iter()
                    .map(|episode| (episode.path, episode.meta.is_some())),
            );
            match page.next {
                Some(next) => wanted.after = Some(next),
                None => break,
            }
        }
    }
    Ok(found)
}
