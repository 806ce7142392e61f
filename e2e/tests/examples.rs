//! Every example on a real API server, with the real operator: accepted, with exactly the objects of its golden file.
//!
//! At first the cluster has no nodes, so that no run is admitted and every object can be checked as it was created.
//! Then it has enough nodes, with simulated GPUs (KWOK), and every run is placed whole: all its pods on nodes, no GPU
//! given twice. GPUs that trainer and engines share are devices of nodes of their own, which the test publishes as a
//! driver for dynamic resource allocation does.
//!
//! Needs the programs that `make setup` builds and the operator's binary: part of `make test-e2e`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    time::Duration,
};

use futures::future::try_join_all;
use grpo_bench::operator_bench::{
    RigError,
    rig::{Rig, kinds, until},
};
use grpo_crds::{GrpoRun, grpo_run::Phase};
use grpo_testing::cluster::{ClusterError, api};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::{
    Client, Resource, ResourceExt,
    api::{Api, DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The client that applies the examples.
const PERSON: &str = "person";
/// The example whose SandboxPool others use.
const SHARED: &str = "3-remote-pool-32b";
const GPUS_OF_A_NODE: u32 = 8;
const GPU: &str = "nvidia.com/gpu";
/// The driver for dynamic resource allocation, and its class of GPUs.
const DRIVER: &str = "gpu.nvidia.com";

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// One file of `docs/examples`, in a namespace of its own.
struct Example {
    name: String,
    namespace: String,
    manifests: Vec<Value>,
    /// Objects that it refers to and others must create.
    borrowed: Vec<Value>,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-e2e"]
async fn every_example_is_accepted_and_becomes_what_its_page_lists() -> Outcome<()> {
    let examples = examples();
    assert!(examples.len() >= 15, "there are only {} examples", examples.len());
    let rig = Rig::start().await?;
    let _operator = rig.operator(0)?;
    device_class(&rig.admin).await?;
    try_join_all(examples.iter().map(|example| apply(&rig, example))).await?;

    // No run is admitted: the cluster has no nodes.
    for example in &examples {
        let golden = fs::read_to_string(folder().join("golden").join(format!("{}.yaml", example.name)))?;
        until(
            Duration::from_secs(30),
            &format!("{} to be as its golden file", example.name),
            async || {
                let made = grpo_operator_core::plan::plan(
                    &example.name,
                    &example.namespace,
                    &objects(&rig.admin, example).await?,
                );
                Ok(made.map_or_else(|error| Err(error.to_string()), |made| same(&golden, &made)))
            },
        )
        .await?;
    }

    eprintln!("without nodes:\n{}", waiting(&rig.admin).await?.join("\n"));
    let wanted = gpus_wanted(&rig.admin, &examples).await?;
    // Twice as many as they need: the scheduler spreads small pods, and large ones need whole nodes.
    for node in 0..2 * wanted.div_ceil(GPUS_OF_A_NODE) {
        rig.node(&format!("node-{node}"), GPUS_OF_A_NODE, &json!({}), &json!([]))
            .await?;
    }
    let shared = shared_gpus(&rig.admin).await?;
    assert!(shared > 0, "no example shares GPUs");
    for node in 0..2 * shared.div_ceil(GPUS_OF_A_NODE) {
        let name = format!("shared-{node}");
        rig.node(&name, 0, &json!({}), &json!([])).await?;
        devices(&rig.admin, &name).await?;
    }
    until(Duration::from_secs(60), "every run to run", async || {
        running(&rig.admin).await
    })
    .await?;
    let given = until(Duration::from_secs(10), "every pod to be on a node", async || {
        gpus_given(&rig.admin).await
    })
    .await?;
    assert_eq!(given.values().sum::<u32>(), wanted, "GPUs of pods that are on nodes");
    let most = given.values().max();
    assert!(most <= Some(&GPUS_OF_A_NODE), "a node gave {most:?} GPUs");
    let given = u32::try_from(allocated(&rig.admin).await?.len())?;
    assert_eq!(given, shared, "GPUs of claims");
    suspend_all(&rig.admin).await?;
    // Engines end by the garbage collector, which discovers our kinds in rounds of half a minute.
    until(
        Duration::from_secs(180),
        "the claims of suspended runs to be gone",
        async || {
            let left = resource_claims(&rig.admin).await?;
            let names: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
            Ok(if left.is_empty() { Ok(()) } else { Err(names.join(", ")) })
        },
    )
    .await?;
    Ok(())
}

/// The class of GPUs, as NVIDIA's driver installs it.
async fn device_class(client: &Client) -> Result<(), RigError> {
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]},
    });
    let classes: Api<DeviceClass> = Api::all(client.clone());
    classes
        .patch(DRIVER, &PatchParams::apply(PERSON), &Patch::Apply(class))
        .await
        .map_err(api("making DeviceClass", DRIVER))?;
    Ok(())
}

/// Publishes the GPUs of a node, as the driver on it does.
async fn devices(client: &Client, node: &str) -> Result<(), RigError> {
    let devices: Vec<Value> = (0..GPUS_OF_A_NODE)
        .map(|number| json!({"name": format!("gpu-{number}")}))
        .collect();
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
        "spec": {
            "driver": DRIVER, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    });
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    slices
        .patch(node, &PatchParams::apply(PERSON), &Patch::Apply(slice))
        .await
        .map_err(api("publishing the devices of node", node))?;
    Ok(())
}

async fn resource_claims(client: &Client) -> Result<Vec<ResourceClaim>, ClusterError> {
    let claims: Api<ResourceClaim> = Api::all(client.clone());
    let all = claims
        .list(&ListParams::default())
        .await
        .map_err(api("listing", "ResourceClaims"))?;
    Ok(all.items)
}

/// GPUs that the trainers and engines of all runs share. Their claims exist once the runs are admitted.
async fn shared_gpus(client: &Client) -> Result<u32, ClusterError> {
    let runs: Api<GrpoRun> = Api::all(client.clone());
    let all = runs
        .list(&ListParams::default())
        .await
        .map_err(api("listing", "GrpoRuns"))?;
    let trainers = all.iter().filter_map(|run| run.spec.trainer.as_ref());
    let colocated = trainers.filter(|trainer| trainer.colocate);
    Ok(colocated.map(|trainer| trainer.nodes * trainer.gpus_per_node).sum())
}

/// The devices that claims have, none of them twice.
async fn allocated(client: &Client) -> Result<BTreeSet<(String, String)>, ClusterError> {
    let mut given = BTreeSet::new();
    for claim in resource_claims(client).await? {
        let results = claim.status.as_ref().and_then(|status| {
            let devices = status.allocation.as_ref()?.devices.as_ref()?;
            devices.results.clone()
        });
        let results = results.unwrap_or_default();
        assert!(!results.is_empty(), "ResourceClaim {} has no devices", claim.name_any());
        for result in results {
            let device = (result.pool, result.device);
            let is_new = given.insert(device.clone());
            assert!(is_new, "{device:?} is given twice, last to {}", claim.name_any());
        }
    }
    Ok(given)
}

async fn suspend_all(client: &Client) -> Result<(), ClusterError> {
    let runs: Api<GrpoRun> = Api::all(client.clone());
    let all = runs
        .list(&ListParams::default())
        .await
        .map_err(api("listing", "GrpoRuns"))?;
    for run in all {
        let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
        let runs: Api<GrpoRun> = Api::namespaced(client.clone(), &namespace);
        let suspended = json!({"spec": {"suspend": true}});
        runs.patch(&name, &PatchParams::default(), &Patch::Merge(&suspended))
            .await
            .map_err(api("suspending GrpoRun", name.clone()))?;
    }
    Ok(())
}

fn folder() -> PathBuf {
    grpo_testing::repository().join("docs/examples")
}

fn manifests(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap();
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    documents
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

fn examples() -> Vec<Example> {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let manifests_only = files.filter(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    let names: BTreeSet<String> = manifests_only
        .map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names
        .into_iter()
        .map(|name| {
            let manifests = manifests(&name);
            Example {
                namespace: format!("example-{name}"),
                borrowed: borrowed(&manifests),
                manifests,
                name,
            }
        })
        .collect()
}

/// The pool that a run names and its own file does not contain.
fn borrowed(own: &[Value]) -> Vec<Value> {
    let has = |name: &Value| {
        own.iter()
            .any(|one| one["kind"] == "SandboxPool" && one["metadata"]["name"] == *name)
    };
    let named = own.iter().filter_map(|one| one.pointer("/spec/sandboxes/poolRef/name"));
    let missing: Vec<&Value> = named.filter(|name| !has(name)).collect();
    let shared = manifests(SHARED).into_iter();
    shared
        .filter(|one| one["kind"] == "SandboxPool" && missing.contains(&&one["metadata"]["name"]))
        .collect()
}

/// Creates the objects that an example expects, then applies it as a user does.
async fn apply(rig: &Rig, example: &Example) -> Result<(), RigError> {
    rig.namespace(&example.namespace).await?;
    let (client, namespace) = (&rig.admin, example.namespace.as_str());
    for claim in ["runs", "models", "tasks", "demo-store"] {
        volume(client, namespace, claim).await?;
    }
    for (name, key) in [("modal", "token"), ("s3", "AWS_ACCESS_KEY_ID")] {
        put::<Secret>(client, namespace, name, json!({"stringData": {key: "secret"}})).await?;
    }
    for name in ["django-train-201", "django-heldout-30"] {
        put::<ConfigMap>(
            client,
            namespace,
            name,
            json!({"data": {"ids.txt": "django__django-11099"}}),
        )
        .await?;
    }
    for manifest in example.borrowed.iter().chain(&example.manifests) {
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        let kind = manifest["kind"].as_str().unwrap_or_default();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(grpo_crds::GROUP, "v1alpha1", kind));
        let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        objects
            .patch(name, &PatchParams::apply(PERSON), &Patch::Apply(manifest))
            .await
            .map_err(api("applying", format!("{kind} {name} of {}", example.name)))?;
    }
    Ok(())
}

/// A volume for a claim of this name. The claim itself is created where the examples expect one; the demo creates its
/// own.
async fn volume(client: &Client, namespace: &str, claim: &str) -> Result<(), RigError> {
    let (room, modes) = (json!({"storage": "1Ti"}), json!(["ReadWriteMany", "ReadWriteOnce"]));
    let name = format!("{namespace}-{claim}");
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": room, "accessModes": modes, "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": namespace, "name": claim},
        },
    });
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    volumes
        .patch(&name, &PatchParams::apply(PERSON), &Patch::Apply(volume))
        .await
        .map_err(api("making volume", name.clone()))?;
    if claim == "demo-store" {
        return Ok(());
    }
    let spec = json!({"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": room}});
    put::<PersistentVolumeClaim>(client, namespace, claim, json!({"spec": spec})).await
}

async fn put<K>(client: &Client, namespace: &str, name: &str, mut body: Value) -> Result<(), RigError>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let resource = ApiResource::erase::<K>(&());
    body["apiVersion"] = json!(resource.api_version);
    body["kind"] = json!(resource.kind);
    body["metadata"] = json!({"name": name});
    let objects: Api<K> = Api::namespaced(client.clone(), namespace);
    objects
        .patch(name, &PatchParams::apply(PERSON), &Patch::Apply(body))
        .await
        .map_err(api("making", format!("{} {namespace}/{name}", resource.kind)))?;
    Ok(())
}

/// The objects of an example's manifests, and all objects that they own, directly or not.
async fn objects(client: &Client, example: &Example) -> Result<Vec<Value>, ClusterError> {
    let mut all = Vec::new();
    for kind in kinds() {
        let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), &example.namespace, &kind);
        let listed = objects
            .list(&ListParams::default())
            .await
            .map_err(api("listing", kind.plural.clone()))?;
        for object in listed {
            let mut object = serde_json::to_value(object).unwrap_or_default();
            object["apiVersion"] = json!(kind.api_version);
            object["kind"] = json!(kind.kind);
            all.push(object);
        }
    }
    let is_manifest = |object: &Value| {
        let same = |one: &Value| one["kind"] == object["kind"] && one["metadata"]["name"] == object["metadata"]["name"];
        example.manifests.iter().any(same)
    };
    let mut owners: BTreeSet<String> = BTreeSet::new();
    let (mut found, mut rest): (Vec<Value>, Vec<Value>) = all.into_iter().partition(is_manifest);
    let mut fresh = found.clone();
    while !fresh.is_empty() {
        owners.extend(fresh.iter().map(|object| object["metadata"]["uid"].to_string()));
        let owned = |object: &Value| {
            let references = object["metadata"]["ownerReferences"].as_array();
            references
                .into_iter()
                .flatten()
                .any(|owner| owners.contains(&owner["uid"].to_string()))
        };
        (fresh, rest) = rest.into_iter().partition(owned);
        found.extend(fresh.clone());
    }
    Ok(found)
}

/// The first different line.
fn same(golden: &str, made: &str) -> Result<(), String> {
    let (golden, made): (Vec<&str>, Vec<&str>) = (golden.lines().collect(), made.lines().collect());
    let differs = (0..golden.len().max(made.len())).find(|line| golden.get(*line) != made.get(*line));
    match differs {
        None => Ok(()),
        Some(line) => Err(format!(
            "line {}: the golden file has {:?}, the API server {:?}",
            line + 1,
            golden.get(line),
            made.get(line)
        )),
    }
}

async fn running(client: &Client) -> Result<Result<(), String>, ClusterError> {
    let waiting = waiting(client).await?;
    Ok(if waiting.is_empty() {
        Ok(())
    } else {
        Err(waiting.join("\n"))
    })
}

/// The messages of the runs that are not running.
async fn waiting(client: &Client) -> Result<Vec<String>, ClusterError> {
    let runs: Api<GrpoRun> = Api::all(client.clone());
    let all = runs
        .list(&ListParams::default())
        .await
        .map_err(api("listing", "GrpoRuns"))?;
    let words = |run: &GrpoRun| {
        let status = run.status.clone().unwrap_or_default();
        let (phase, message) = (status.phase, status.message.unwrap_or_default());
        (phase != Some(Phase::Running)).then(|| format!("{} {phase:?}: {message}", run.name_any()))
    };
    Ok(all.iter().filter_map(words).collect())
}

fn gpus(pod: &Pod) -> u32 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| {
        container
            .resources
            .as_ref()?
            .limits
            .as_ref()?
            .get(GPU)?
            .0
            .parse::<u32>()
            .ok()
    });
    limits.sum()
}

async fn gpus_wanted(client: &Client, examples: &[Example]) -> Result<u32, ClusterError> {
    let mut wanted = 0;
    for example in examples {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &example.namespace);
        let all = pods
            .list(&ListParams::default())
            .await
            .map_err(api("listing pods of", &example.name))?;
        wanted += all.iter().map(gpus).sum::<u32>();
    }
    Ok(wanted)
}

/// GPUs of the pods on each node, once all pods are on one.
async fn gpus_given(client: &Client) -> Result<Result<BTreeMap<String, u32>, String>, ClusterError> {
    let pods: Api<Pod> = Api::all(client.clone());
    let all = pods
        .list(&ListParams::default())
        .await
        .map_err(api("listing", "pods"))?;
    let mut given: BTreeMap<String, u32> = BTreeMap::new();
    for pod in all {
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else {
            return Ok(Err(format!("pod {} is on no node", pod.name_any())));
        };
        *given.entry(node).or_default() += gpus(&pod);
    }
    Ok(Ok(given))
}
