//! A run whose images come from a registry, under an operator that was installed from there. Needs both:
//! `make test-release`, which pushes them and names the registry.

use crate::support::{Result, SOON, Scene, small_run, verified};
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeSet;

/// Images of all containers and image volumes of a pod.
fn images_of(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let volumes = spec.volumes.iter().flatten();
    let mounted = volumes.filter_map(|volume| volume.image.as_ref()?.reference.clone());
    containers
        .filter_map(|container| container.image.clone())
        .chain(mounted)
        .collect()
}

#[tokio::test]
#[ignore = "needs images in a registry: make test-release"]
async fn a_run_with_the_registrys_images_alone_succeeds() -> Result<()> {
    const OURS: [&str; 6] = ["driver", "trainer", "engine", "engine-agent", "gateway", "sandboxd"];
    let registry = std::env::var("GRPO_RELEASE_IMAGES")?;
    let scene = Scene::new("release").await?;
    scene.apply(&small_run("release")?).await?;
    let mut seen = BTreeSet::new();
    let what = format!("pods with all of {OURS:?} from {registry}");
    scene
        .until_pods("", SOON, &what, |pods| {
            seen.extend(pods.values().flat_map(images_of));
            let there = |name: &&str| {
                seen.iter()
                    .any(|image| image.starts_with(&format!("{registry}{name}:")))
            };
            OURS.iter().all(there).then_some(())
        })
        .await?;
    // The demo's own: its model and its tasks.
    let others: Vec<&String> = seen
        .iter()
        .filter(|image| !image.starts_with(&registry) && !image.starts_with("grpo.dev/demo/"))
        .collect();
    assert!(others.is_empty(), "images from elsewhere: {others:?}");
    let ended = scene.follow("release").await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    scene.say(&format!("{seen:?}; {:.0} s", ended.seconds));
    scene.clear().await
}
