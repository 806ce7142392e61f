//! Nodes that are added, replaced or lie in zones, and an operator that is upgraded: a real control plane with its
//! scheduler, whose nodes and running pods are simulated (KWOK). In place of an autoscaler the test adds nodes.
//!
//! Needs the programs that `make setup` builds and the operator's binary: `make test-operator`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grpo_bench::operator_bench::RigError;
use grpo_bench::operator_bench::fleet::{small, volume};
use grpo_bench::operator_bench::rig::{Rig, until};
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Phase;
use grpo_testing::cluster::{ClusterError, api};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

const TEAM: &str = "team";
const GPUS: u32 = 8;
const ZONE: &str = "topology.kubernetes.io/zone";
const SOON: Duration = Duration::from_secs(60);
/// An operator that was killed holds its Lease until it expires, and an attempt that was evicted ends before the next.
const LATER: Duration = Duration::from_secs(150);

type Outcome = Result<(), RigError>;

/// A control plane with the namespace of the runs, and their volume.
async fn rig() -> Result<Rig, RigError> {
    let rig = Rig::start().await?;
    rig.namespace(TEAM).await?;
    volume(&rig.admin, TEAM).await?;
    Ok(rig)
}

/// Nodes with eight cards each.
async fn gpu_nodes(rig: &Rig, names: &[&str], labels: &Value) -> Outcome {
    for name in names {
        rig.node(name, GPUS, labels, &json!([])).await?;
    }
    Ok(())
}

async fn pods(rig: &Rig, run: &str) -> Result<Vec<Pod>, ClusterError> {
    let labels = ListParams::default().labels(&format!("grpo.dev/run={run},grpo.dev/role in (driver,trainer,engine)"));
    let pods: Api<Pod> = Api::namespaced(rig.admin.clone(), TEAM);
    let all = pods.list(&labels).await.map_err(api("listing the pods of", run))?;
    Ok(all.items)
}

fn wants_gpus(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    limits.any(|limits| limits.contains_key("nvidia.com/gpu"))
}

/// The node of each of the run's pods, once the run is running.
async fn running(rig: &Rig, run: &str, limit: Duration) -> Result<BTreeMap<String, String>, RigError> {
    let runs: Api<GrpoRun> = Api::namespaced(rig.admin.clone(), TEAM);
    until(limit, &format!("GrpoRun {run} to run"), async || {
        let status = runs
            .get(run)
            .await
            .map_err(api("reading GrpoRun", run))?
            .status
            .unwrap_or_default();
        if status.phase != Some(Phase::Running) {
            return Ok(Err(format!("{:?}: {:?}", status.phase, status.message)));
        }
        let mut on = BTreeMap::new();
        for pod in pods(rig, run)
            .await?
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        {
            match pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
                Some(node) => on.insert(pod.name_any(), node),
                None => return Ok(Err(format!("{} is on no node", pod.name_any()))),
            };
        }
        Ok(Ok(on))
    })
    .await
}

/// Waits until the run's pods with GPUs are what an autoscaler acts upon: pods that the scheduler has tried in vain.
async fn unschedulable(rig: &Rig, run: &str, count: usize) -> Outcome {
    until(SOON, &format!("{count} pods that fit on no node"), async || {
        let tried = |pod: &&Pod| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let mut reasons = conditions.filter_map(|one| one.reason.as_deref());
            reasons.any(|reason| reason == "Unschedulable")
        };
        let all = pods(rig, run).await?;
        let there = all.iter().filter(|pod| wants_gpus(pod)).filter(tried).count();
        Ok(if there == count {
            Ok(())
        } else {
            Err(format!("{there}"))
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn a_gpu_pool_without_nodes_gets_its_nodes_and_the_run_begins_on_them() -> Outcome {
    let rig = rig().await?;
    let _operator = rig.operator_with(0, &["--node-scale-up-seconds=600"])?;
    rig.node("cpu", 0, &json!({}), &json!([])).await?;
    let run = small("large")
        .with("/trainer", json!({"nodes": 2, "gpusPerNode": GPUS}))
        .with("/inference/pool", json!({"engine": {"vllm": {"tensorParallel": GPUS}}}));
    run.apply(&rig.admin, TEAM).await?;
    unschedulable(&rig, "large", 3).await?;
    gpu_nodes(&rig, &["new-0", "new-1", "new-2"], &json!({})).await?;
    let on = running(&rig, "large", SOON).await?;
    let new: BTreeSet<&str> = on
        .values()
        .map(String::as_str)
        .filter(|node| node.starts_with("new-"))
        .collect();
    assert_eq!(new.len(), 3, "{on:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn a_run_waits_for_room_in_the_zone_of_its_store_while_another_zone_is_free() -> Outcome {
    let rig = rig().await?;
    let _operator = rig.operator(0)?;
    gpu_nodes(&rig, &["east-0"], &json!({ZONE: "east"})).await?;
    gpu_nodes(&rig, &["west-0"], &json!({ZONE: "west"})).await?;
    let volumes: Api<PersistentVolume> = Api::all(rig.admin.clone());
    let west = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["west"]}]}]}}}});
    let name = format!("{TEAM}-stores");
    let patched = volumes
        .patch(&name, &PatchParams::default(), &Patch::Merge(&west))
        .await;
    patched.map_err(api("giving a zone to volume", &name))?;

    let run = |name: &str| small(name).with("/trainer", json!({"nodes": 1, "gpusPerNode": GPUS}));
    let stored = |on: &BTreeMap<String, String>| {
        let of_store = on
            .iter()
            .filter(|(pod, _)| pod.contains("-driver-") || pod.contains("-trainer-"));
        of_store.map(|(_, node)| node.clone()).collect::<BTreeSet<_>>()
    };
    let first = run("first").apply(&rig.admin, TEAM).await?;
    let on = running(&rig, "first", SOON).await?;
    assert_eq!(stored(&on), BTreeSet::from(["west-0".to_owned()]), "{on:?}");

    run("second").apply(&rig.admin, TEAM).await?;
    let runs: Api<GrpoRun> = Api::namespaced(rig.admin.clone(), TEAM);
    until(SOON, "the second run to wait", async || {
        let status = runs
            .get("second")
            .await
            .map_err(api("reading GrpoRun", "second"))?
            .status;
        let status = status.unwrap_or_default();
        let says = status.message.clone().unwrap_or_default();
        let waits = status.phase == Some(Phase::Queued) && !says.is_empty();
        Ok(if waits {
            Ok(())
        } else {
            Err(format!("{:?}: {says}", status.phase))
        })
    })
    .await?;
    let early = pods(&rig, "second").await?;
    let placed = early
        .iter()
        .filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()));
    assert_eq!(placed.count(), 0, "a pod of a run that waits is on a node");

    grpo_testing::cluster::manifest::delete_run(&rig.admin, &first, SOON).await?;
    let on = running(&rig, "second", LATER).await?;
    assert_eq!(stored(&on), BTreeSet::from(["west-0".to_owned()]), "{on:?}");
    Ok(())
}

/// As `kubectl drain` does it: no new pod comes to the node, and its pods are evicted.
async fn drain(rig: &Rig, node: &str) -> Outcome {
    let nodes: Api<Node> = Api::all(rig.admin.clone());
    let cordoned = json!({"spec": {"unschedulable": true}});
    let done = nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&cordoned))
        .await;
    done.map_err(api("cordoning node", node))?;
    let all: Api<Pod> = Api::all(rig.admin.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let there = all
        .list(&on_node)
        .await
        .map_err(api("listing the pods of node", node))?;
    for pod in there {
        let pods: Api<Pod> = Api::namespaced(rig.admin.clone(), &pod.namespace().unwrap_or_default());
        match pods.evict(&pod.name_any(), &EvictParams::default()).await {
            // The operator replaces the others of a run as soon as one of its pods goes.
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            evicted => drop(evicted.map_err(api("evicting pod", pod.name_any()))?),
        }
    }
    nodes
        .delete(node, &DeleteParams::default())
        .await
        .map_err(api("deleting node", node))?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn a_run_whose_node_pool_is_replaced_continues_on_the_new_nodes() -> Outcome {
    let rig = rig().await?;
    let _operator = rig.operator(0)?;
    gpu_nodes(&rig, &["old-0", "old-1"], &json!({})).await?;
    let run = small("moved").with("/trainer", json!({"nodes": 2, "gpusPerNode": GPUS}));
    run.apply(&rig.admin, TEAM).await?;
    let before = running(&rig, "moved", SOON).await?;
    gpu_nodes(&rig, &["new-0", "new-1"], &json!({})).await?;
    drain(&rig, "old-0").await?;
    drain(&rig, "old-1").await?;
    let after = until(LATER, "all pods on new nodes", async || {
        let on = running(&rig, "moved", LATER).await;
        let on = match on {
            Ok(on) => on,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let moved = on.values().all(|node| node.starts_with("new-"));
        Ok(if moved { Ok(on) } else { Err(format!("{on:?}")) })
    })
    .await?;
    assert_eq!(after.len(), before.len(), "{before:?}, then {after:?}");
    Ok(())
}

/// The uid and agent's image of each engine pod of a pool.
async fn engines(rig: &Rig, pool: &str) -> Result<BTreeMap<String, String>, ClusterError> {
    let pods: Api<Pod> = Api::namespaced(rig.admin.clone(), TEAM);
    let labels = ListParams::default().labels(&format!("grpo.dev/inference-pool={pool}"));
    let all = pods
        .list(&labels)
        .await
        .map_err(api("listing the pods of InferencePool", pool))?;
    let of = |pod: &Pod| {
        let images = pod
            .spec
            .iter()
            .flat_map(|spec| spec.containers.iter().filter_map(|one| one.image.as_deref()));
        (pod.uid().unwrap_or_default(), images.collect::<Vec<_>>().join(" "))
    };
    Ok(all.iter().map(of).collect())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn an_upgrade_with_other_settings_replaces_idle_engines_and_none_that_a_run_claims() -> Outcome {
    const NEW: &str = "example.com/agent:2";
    let rig = rig().await?;
    let operator = rig.operator(0)?;
    rig.node("node", 0, &json!({}), &json!([])).await?;
    let idle = json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "idle", "namespace": TEAM},
        "spec": {"model": {"image": {"reference": "example.com/model:1"}}, "engine": {"embedded": {}}},
    });
    let pools: Api<grpo_crds::InferencePool> = Api::namespaced(rig.admin.clone(), TEAM);
    let applied = pools
        .patch("idle", &PatchParams::apply("person"), &Patch::Apply(&idle))
        .await;
    applied.map_err(api("applying InferencePool", "idle"))?;
    small("busy").apply(&rig.admin, TEAM).await?;
    running(&rig, "busy", SOON).await?;
    let [claimed, unclaimed] = [engines(&rig, "busy").await?, engines(&rig, "idle").await?];
    assert!(
        !claimed.is_empty() && !unclaimed.is_empty(),
        "{claimed:?}, {unclaimed:?}"
    );

    drop(operator);
    let _upgraded = rig.operator_with(
        1,
        &[
            &format!("--agent-image={NEW}"),
            "--process-log=debug",
            "--image-pull-policy=Always",
        ],
    )?;
    until(LATER, "the idle engines with the new agent", async || {
        let now = engines(&rig, "idle").await?;
        let new = now.len() == unclaimed.len() && now.values().all(|images| images.contains(NEW));
        Ok(if new { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .await?;
    assert_eq!(engines(&rig, "busy").await?, claimed);
    running(&rig, "busy", SOON).await?;
    Ok(())
}
