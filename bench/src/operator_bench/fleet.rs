//! Many small runs, and the pods that their gateways would create.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use grpo_crds::{GrpoRun, SandboxPool, grpo_run::Phase};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Client, ResourceExt,
    api::{Api, ListParams, PostParams},
};
use serde_json::{Value, json};

use super::{
    RigError,
    rig::{Rig, owner, parsed, until},
};
use grpo_testing::cluster::{api, manifest::RunManifest};

/// Concurrent requests: the API server and everything else share this machine.
const AT_A_TIME: usize = 8;
const RUNS_PER_NAMESPACE: usize = 100;
/// Driver, two trainers, an engine and a gateway.
const OWN_PODS: usize = 5;
pub const SANDBOXES: usize = 5;
pub const PODS_PER_RUN: usize = OWN_PODS + SANDBOXES;
const STORE: &str = "stores";

/// Runs, distributed over a few namespaces.
#[derive(Clone, Debug)]
pub struct Fleet {
    pub runs: Vec<Place>,
}

/// Namespace and name of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub namespace: String,
    pub name: String,
}

impl Fleet {
    /// Creates namespaces and nodes for this many runs, but no run.
    pub async fn prepare(rig: &Rig, count: usize) -> Result<Self, RigError> {
        let places = (0..count).map(|number| Place {
            namespace: format!("team-{}", number / RUNS_PER_NAMESPACE),
            name: format!("run-{number}"),
        });
        let runs: Vec<Place> = places.collect();
        let namespaces: std::collections::BTreeSet<&str> = runs.iter().map(|run| run.namespace.as_str()).collect();
        for namespace in namespaces {
            rig.namespace(namespace).await?;
            volume(&rig.admin, namespace).await?;
        }
        for node in 0..count.div_ceil(20).max(2) {
            rig.node(&format!("node-{node}"), 0, &json!({}), &json!([])).await?;
        }
        Ok(Self { runs })
    }

    /// Applies all runs and waits until they are running.
    pub async fn launch(&self, rig: &Rig, limit: Duration) -> Result<(), RigError> {
        stream::iter(&self.runs)
            .map(|run| async { launch(&rig.admin, run).await })
            .buffer_unordered(AT_A_TIME)
            .try_collect::<()>()
            .await?;
        self.running(&rig.admin, limit).await
    }

    /// Waits until all runs are running.
    pub async fn running(&self, client: &Client, limit: Duration) -> Result<(), RigError> {
        let runs: Api<GrpoRun> = Api::all(client.clone());
        until(limit, "all runs to run", async || {
            let all = runs
                .list(&ListParams::default().match_any())
                .await
                .map_err(api("listing", "GrpoRuns"))?;
            let phase = |run: &GrpoRun| run.status.as_ref().and_then(|status| status.phase);
            let run = all.iter().filter(|run| phase(run) == Some(Phase::Running)).count();
            let other = all.iter().find(|run| phase(run) != Some(Phase::Running));
            let why = other.and_then(|run| run.status.as_ref()?.message.clone());
            if run < self.runs.len() {
                tokio::time::sleep(Duration::from_millis(900)).await;
                return Ok(Err(format!("{run} of {} run; another says {why:?}", self.runs.len())));
            }
            Ok(Ok(()))
        })
        .await
    }

    /// Creates the pods of sandboxes, as gateways would, and waits until each pool has counted its own.
    pub async fn sandboxes(&self, rig: &Rig, limit: Duration) -> Result<(), RigError> {
        let nodes = self.runs.len().div_ceil(20).max(2);
        stream::iter(self.runs.iter().enumerate())
            .map(|(number, run)| async move { sandboxes_of(&rig.admin, run, number % nodes).await })
            .buffer_unordered(AT_A_TIME)
            .try_collect::<()>()
            .await?;
        let pools: Api<SandboxPool> = Api::all(rig.admin.clone());
        until(limit, "all sandboxes to be counted", async || {
            let all = pools
                .list(&ListParams::default().match_any())
                .await
                .map_err(api("listing", "SandboxPools"))?;
            let ready = |pool: &SandboxPool| pool.status.as_ref().map_or(0, |status| status.ready as usize);
            let behind = all.iter().filter(|pool| ready(pool) < SANDBOXES).count();
            if behind > 0 {
                tokio::time::sleep(Duration::from_millis(900)).await;
                return Ok(Err(format!("{behind} pools are behind")));
            }
            Ok(Ok(()))
        })
        .await
    }
}

/// Applies one small run.
pub async fn launch(client: &Client, run: &Place) -> Result<(), RigError> {
    small(&run.name).apply(client, &run.namespace).await?;
    Ok(())
}

/// A run of five pods without GPUs.
pub fn small(name: &str) -> RunManifest {
    RunManifest(json!({
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GrpoRun",
        "metadata": {"name": name},
        "spec": {
            "model": {"image": {"reference": "example.com/model:1"}},
            "tasks": {"train": {"dataset": {"image": {"reference": "example.com/tasks:1", "path": "train.jsonl"}}}},
            "agent": {"bash": {}},
            "rollout": {"iterations": 10, "prompts": 8, "samples": 8},
            "trainer": {"nodes": 2},
            "inference": {"pool": {"engine": {"embedded": {}}}},
            "sandboxes": {"pool": {"max": SANDBOXES, "allowUnenforced": true}},
            "store": {"persistentVolumeClaim": {"claimName": STORE}},
        },
    }))
}

/// A volume that all runs of a namespace share, bound at once.
pub async fn volume(client: &Client, namespace: &str) -> Result<(), RigError> {
    let name = format!("{namespace}-{STORE}");
    let capacity = json!({"storage": "1Ti"});
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = parsed(json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": capacity, "accessModes": ["ReadWriteMany"], "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": namespace, "name": STORE},
        },
    }));
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .map_err(api("creating volume", name.clone()))?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = parsed(json!({
        "metadata": {"name": STORE},
        "spec": {
            "accessModes": ["ReadWriteMany"], "resources": {"requests": capacity}, "storageClassName": "", "volumeName": name,
        },
    }));
    claims
        .create(&PostParams::default(), &claim)
        .await
        .map_err(api("creating claim", format!("{namespace}/{STORE}")))?;
    Ok(())
}

async fn sandboxes_of(client: &Client, run: &Place, node: usize) -> Result<(), RigError> {
    let pools: Api<SandboxPool> = Api::namespaced(client.clone(), &run.namespace);
    let pool = pools
        .get(&run.name)
        .await
        .map_err(api("reading SandboxPool", &run.name))?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &run.namespace);
    for number in 0..SANDBOXES {
        let pod = parsed(sandbox(&pool, number, node));
        pods.create(&PostParams::default(), &pod)
            .await
            .map_err(api("creating the pod of a sandbox of", &run.name))?;
    }
    Ok(())
}

/// Name of a sandbox's pod.
pub fn sandbox_name(run: &str, number: usize) -> String {
    format!("{run}-sandbox-{number}")
}

fn sandbox(pool: &SandboxPool, number: usize, node: usize) -> Value {
    let name = pool.name_any();
    json!({
        "metadata": {
            "name": sandbox_name(&name, number),
            "labels": {
                "app.kubernetes.io/managed-by": "grpo-operator", "grpo.dev/role": "sandbox",
                "grpo.dev/sandbox-pool": name, "grpo.dev/run": name,
            },
            "ownerReferences": owner(pool),
        },
        "spec": {
            "nodeName": format!("node-{node}"),
            "containers": [{"name": "sandbox", "image": "example.com/task:1"}],
        },
    })
}
