//! Pods that ask for GPUs, on the nodes of a GPU pool: a real scheduler places an engine of eight cards and a trainer
//! of two times eight, whole. The cards are claims of the nodes' status (as e2e/cluster/gpu.sh makes them), without
//! devices.

use crate::support::{Result, SOON, Scene, small_run};
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const GPU: &str = "nvidia.com/gpu";
const POOL: (&str, &str) = ("grpo.dev/pool", "gpu");
/// One engine pod and two trainer pods, each with a node's usual count of cards.
const PODS: usize = 3;
const CARDS: usize = 8;
const VOLUME: &str = "e2e-gpus";

fn cards(pod: &Pod) -> usize {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| {
        container
            .resources
            .as_ref()?
            .limits
            .as_ref()?
            .get(GPU)?
            .0
            .parse::<usize>()
            .ok()
    });
    limits.sum()
}

/// What each node of the pool claims to have; `None` takes the claim back.
async fn claim(scene: &Scene, nodes: &BTreeSet<String>, count: Option<usize>) -> Result<()> {
    let api: Api<Node> = Api::all(scene.client.clone());
    let count = count.map(|count| count.to_string());
    let change = json!({"status": {"capacity": {GPU: count}, "allocatable": {GPU: count}}});
    for node in nodes {
        api.patch_status(node, &PatchParams::default(), &Patch::Merge(&change))
            .await?;
    }
    Ok(())
}

/// A volume that every node can mount, so that the run's pods may be on different ones. Its content is different on
/// each: no pod of this test comes to work with it.
async fn volume(scene: &Scene) -> Result<()> {
    let volumes: Api<PersistentVolume> = Api::all(scene.client.clone());
    let size = json!({"storage": "1Gi"});
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": VOLUME}, "spec": {
        "capacity": size, "accessModes": ["ReadWriteMany"], "storageClassName": "", "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": scene.namespace, "name": VOLUME}, "hostPath": {"path": "/tmp/e2e-gpus", "type": "DirectoryOrCreate"}}});
    volumes
        .create(&PostParams::default(), &serde_json::from_value(volume)?)
        .await?;
    let wanted = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": VOLUME}, "spec": {
        "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": VOLUME, "resources": {"requests": size}}});
    scene.make::<PersistentVolumeClaim>(wanted).await?;
    Ok(())
}

async fn no_volume(scene: &Scene) -> Result<()> {
    let volumes: Api<PersistentVolume> = Api::all(scene.client.clone());
    match volumes.delete(VOLUME, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => Ok(done.map(drop)?),
    }
}

/// The nodes of the run's pods with GPUs, once all have one: each pod's name, node and cards.
fn placed(there: &wait::Objects<Pod>) -> Option<Vec<(String, String, usize)>> {
    let on = there.values().filter(|pod| cards(pod) > 0).filter_map(|pod| {
        let node = pod.spec.as_ref()?.node_name.clone()?;
        Some((pod.name_any(), node, cards(pod)))
    });
    let on: Vec<_> = on.collect();
    (on.len() == PODS).then_some(on)
}

async fn place(scene: &Scene, pool: &BTreeSet<String>, each: usize) -> Result<()> {
    volume(scene).await?;
    let selector: Value = json!({"spec": {"nodeSelector": {POOL.0: POOL.1}}});
    let run = small_run("gpus")?
        .with(
            "/trainer",
            json!({"nodes": 2, "gpusPerNode": CARDS, "podTemplate": selector}),
        )
        .with(
            "/inference/pool",
            json!({"engine": {"vllm": {"tensorParallel": CARDS}}, "podTemplate": selector}),
        )
        .with("/store", json!({"persistentVolumeClaim": {"claimName": VOLUME}}));
    scene.apply(&run).await?;
    let placed = scene
        .until_pods("grpo.dev/run", SOON, "an engine and two trainer pods on nodes", placed)
        .await?;
    // Errors in place of assertions: the caller takes the claims back first.
    let mut given: BTreeMap<&str, usize> = BTreeMap::new();
    for (pod, node, cards) in &placed {
        scene.say(&format!("{pod}: {cards} cards of {node}"));
        if *cards != CARDS || !pool.contains(node) {
            return Err(format!("{pod} has {cards} cards of {node}; the pool is {pool:?}").into());
        }
        *given.entry(node).or_default() += cards;
    }
    match given.values().all(|cards| *cards <= each) {
        true => Ok(()),
        false => Err(format!("{given:?}, of {each} each").into()),
    }
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e, make test-kind"]
async fn an_engine_of_eight_cards_and_a_trainer_of_two_times_eight_are_placed_whole_in_the_pool() -> Result<()> {
    let scene = Scene::new("gpus").await?;
    no_volume(&scene).await?;
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let labelled = ListParams::default().labels(&format!("{}={}", POOL.0, POOL.1));
    let pool: BTreeSet<String> = nodes.list(&labelled).await?.iter().map(ResourceExt::name_any).collect();
    assert!(!pool.is_empty(), "no node has the label {}={}", POOL.0, POOL.1);
    // Enough for all pods, and not for all on one node where there are two.
    let each = PODS.div_ceil(pool.len()) * CARDS;
    claim(&scene, &pool, Some(each)).await?;
    let outcome = place(&scene, &pool, each).await;
    // Other tests expect a cluster without GPUs.
    claim(&scene, &pool, None).await?;
    outcome?;
    scene.clear().await?;
    no_volume(&scene).await
}
