//! A run whose images come from a registry, under an operator installed from there, and two releases beside each other.
//! `make test-release` pushes the images, names the registry, and removes the existing operator.

use crate::support::helm::helm_in;
use crate::support::{Result, SOON, Scene, small_run, verified};
use grpo_testing::chart;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::json;
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
    // The demo's own images: its model and its tasks.
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

/// A release of the chart that watches one namespace; it is uninstalled on drop.
struct Release {
    system: String,
}

impl Release {
    fn install(system: &str, watched: &str) -> Result<Self> {
        let release = Self {
            system: system.to_owned(),
        };
        let chart = chart::folder().display().to_string();
        let watched = format!("watchNamespace={watched}");
        let arguments = [
            "--create-namespace",
            "--wait",
            "--timeout",
            "180s",
            "--set",
            watched.as_str(),
        ];
        let install = [&["install", chart::OPERATOR, chart.as_str()][..], &arguments[..]].concat();
        helm_in(&release.system, &install)?;
        Ok(release)
    }

    /// Whether the release's operator may do this in a namespace, as the API server decides.
    async fn may(&self, scene: &Scene, verb: &str, group: &str, resource: &str) -> Result<bool> {
        let user = format!("system:serviceaccount:{}:{}", self.system, chart::OPERATOR);
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": user,
                "resourceAttributes": {"namespace": scene.namespace, "verb": verb, "group": group, "resource": resource},
            },
        });
        let reviews: Api<SubjectAccessReview> = Api::all(scene.client.clone());
        let answer = reviews
            .create(&PostParams::default(), &serde_json::from_value(review)?)
            .await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if let Err(error) = helm_in(&self.system, &["uninstall", chart::OPERATOR, "--wait"]) {
            eprintln!("release in {} stays: {error}", self.system);
        }
    }
}

#[tokio::test]
#[ignore = "needs a cluster without an operator of all namespaces: make test-release"]
async fn two_releases_work_beside_each_other_and_neither_may_touch_the_others_objects() -> Result<()> {
    const WRITES: [(&str, &str, &str); 5] = [
        ("patch", "grpo.dev", "grporuns/status"),
        ("create", "", "pods"),
        ("delete", "", "pods"),
        ("patch", "", "configmaps"),
        ("create", "rbac.authorization.k8s.io", "roles"),
    ];
    let (first, second) = (Scene::new("first").await?, Scene::new("second").await?);
    let of_first = Release::install("grpo-first", &first.namespace)?;
    let of_second = Release::install("grpo-second", &second.namespace)?;
    for (verb, group, resource) in WRITES {
        for (release, own, other) in [(&of_first, &first, &second), (&of_second, &second, &first)] {
            let may = (
                release.may(own, verb, group, resource).await?,
                release.may(other, verb, group, resource).await?,
            );
            assert_eq!(may, (true, false), "{}: {verb} {group}/{resource}", release.system);
        }
    }
    // Runs with the same name at the same time: names in a shared place would collide here.
    first.apply(&small_run("run")?).await?;
    second.apply(&small_run("run")?).await?;
    for scene in [&first, &second] {
        let ended = scene.follow("run").await?;
        verified(&scene.store_of(&ended.run).await?)?;
        scene.say(&format!("succeeded in {:.0} s", ended.seconds));
    }
    first.clear().await?;
    second.clear().await
}
