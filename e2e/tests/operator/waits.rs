//! The waits of runs, on a control plane without nodes: they continue when the cause ends, a run with a queue makes no
//! pods without Kueue, a quota for one of two runs is not shared, and a foreign pod delays no run.
//!
//! Needs etcd and kube-apiserver, which the test starts itself: `make test-operator`.

use std::time::Duration;

use super::{Operator, get, namespace, run_called, told, until};
use crate::{manifests::merged, support::Result};
use grpo_bench::operator_bench::rig;
use grpo_testing::ask::{Verb, ask};
use grpo_testing::chart;
use grpo_testing::control_plane::{ControlPlane, Options};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

const TEAM: &str = "team";
const SOON: Duration = Duration::from_secs(30);
/// The end of a run's wait is noticed within half a minute.
const NOTICED: Duration = Duration::from_secs(35);
/// Two runs take turns, with pauses of 10 s and more.
const TURNS: Duration = Duration::from_secs(180);

async fn start() -> Result<(ControlPlane, Client, Operator)> {
    start_with(&[]).await
}

/// The same with these flags for the operator.
async fn start_with(flags: &[&str]) -> Result<(ControlPlane, Client, Operator)> {
    let plane = ControlPlane::start(Options {
        controller_manager: true,
        ..Options::default()
    })
    .await?;
    let client = plane.admin().await?;
    chart::install(&client).await?;
    namespace(&client, TEAM, json!({})).await?;
    let operator = Operator::start_with(&plane, "warn", flags).await?;
    Ok((plane, client, operator))
}

fn run(name: &str, patch: Value) -> Value {
    merged(&run_called(name, TEAM), &json!({"spec": patch}))
}

fn engines(name: &str) -> Value {
    let spec = json!({"model": {"image": {"reference": "example.com/model:1"}}, "engine": {"embedded": {}}});
    json!({"apiVersion": "grpo.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name, "namespace": TEAM}, "spec": spec})
}

/// Waits until the run no longer waits for this reason.
async fn goes_on(client: &Client, run: &Value, reason: &str) -> Result<()> {
    until(NOTICED, &format!("{reason} to be over"), async || {
        let there = get(client, run).await.map_err(|refusal| refusal.to_string())?;
        let conditions = there["status"]["conditions"].as_array().cloned().unwrap_or_default();
        match conditions.iter().find(|condition| condition["reason"] == reason) {
            Some(condition) => Err(condition.to_string()),
            None => Ok(()),
        }
    })
    .await
}

/// Names of the pods in the namespace that belong to a run, its engines included.
async fn pods(client: &Client, run: &str) -> Result<Vec<String>> {
    let labels = ListParams::default().labels(&format!("grpo.dev/run={run},grpo.dev/role in (driver,trainer,engine)"));
    let pods: Api<Pod> = Api::namespaced(client.clone(), TEAM);
    Ok(pods
        .list_metadata(&labels)
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect())
}

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn runs_go_on_when_the_volume_list_pool_or_node_that_they_wait_for_comes() -> Result<()> {
    let (_plane, client, _operator) = start().await?;
    rig::node(
        &client,
        "small",
        0,
        &json!({"nvidia.com/gpu.memory": "1024"}),
        &json!([]),
    )
    .await?;
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "mydisk", "namespace": TEAM},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let sandboxes = json!({"apiVersion": "grpo.dev/v1alpha1", "kind": "SandboxPool", "metadata": {"name": "shared", "namespace": TEAM}, "spec": {"max": 4}});
    let lent = |allowed: Value| {
        let spec = json!({"max": 4, "allowedNamespaces": allowed});
        json!({"apiVersion": "grpo.dev/v1alpha1", "kind": "SandboxPool", "metadata": {"name": "lent", "namespace": "default"}, "spec": spec})
    };
    ask(&client, Verb::Apply, &lent(json!(["another"])), false).await?;
    let large = json!({"model": {"image": {"reference": "example.com/Model-7B:1"}}, "trainer": {"gpusPerNode": 1}});
    let waits = [
        (
            run(
                "stored",
                json!({"store": {"volumeClaimTemplate": null, "persistentVolumeClaim": {"claimName": "mydisk"}}}),
            ),
            "StoreMissing",
        ),
        (
            run(
                "listed",
                json!({"tasks": {"train": {"select": {"instanceIds": {"configMapRef": {"name": "ids", "key": "ids.txt"}}}}}}),
            ),
            "ReferenceMissing",
        ),
        (
            run(
                "sampling",
                json!({"inference": {"pool": null, "poolRef": {"name": "engines"}}}),
            ),
            "InferencePoolMissing",
        ),
        (
            run("judged", json!({"reward": {"process": {"poolRef": {"name": "judge"}}}})),
            "JudgeMissing",
        ),
        (
            run(
                "boxed",
                json!({"sandboxes": {"pool": null, "poolRef": {"name": "shared"}}}),
            ),
            "SandboxPoolMissing",
        ),
        (
            run(
                "guest",
                json!({"sandboxes": {"pool": null, "poolRef": {"name": "lent", "namespace": "default"}}}),
            ),
            "SandboxPoolMissing",
        ),
        (run("large", large), "ExceedsGpuMemory"),
    ];
    for (run, reason) in &waits {
        ask(&client, Verb::Create, run, false).await?;
        told(&client, run, "Admitted", reason, SOON, &[]).await?;
    }
    let list = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ids", "namespace": TEAM}, "data": {"ids.txt": "a"}});
    for object in [&volume, &list, &engines("engines"), &engines("judge"), &sandboxes] {
        ask(&client, Verb::Create, object, false).await?;
    }
    ask(&client, Verb::Apply, &lent(json!(["another", TEAM])), false).await?;
    rig::node(
        &client,
        "large",
        8,
        &json!({"nvidia.com/gpu.memory": "1000000"}),
        &json!([]),
    )
    .await?;
    for (run, reason) in &waits {
        goes_on(&client, run, reason).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn a_run_with_a_queue_says_that_there_is_no_kueue_when_it_lacks_nothing_else() -> Result<()> {
    let (_plane, client, _operator) = start().await?;
    let queued = |name: &str| {
        run(
            name,
            json!({"queueName": "gpus", "inference": {"pool": null, "poolRef": {"name": "engines"}}}),
        )
    };
    let (first, second) = (queued("first"), queued("second"));
    ask(&client, Verb::Create, &first, false).await?;
    told(&client, &first, "Admitted", "InferencePoolMissing", SOON, &[]).await?;
    assert_eq!(pods(&client, "first").await?, Vec::<String>::new());

    ask(&client, Verb::Create, &engines("engines"), false).await?;
    told(
        &client,
        &first,
        "Admitted",
        "WaitsForQuota",
        NOTICED,
        &["install Kueue"],
    )
    .await?;
    assert_eq!(pods(&client, "first").await?, Vec::<String>::new());
    // It claims the pool when it has quota: until then, other runs may use the engines.
    ask(&client, Verb::Create, &second, false).await?;
    told(&client, &second, "Admitted", "WaitsForQuota", SOON, &["install Kueue"]).await?;
    assert_eq!(pods(&client, "second").await?, Vec::<String>::new());
    let pool = get(&client, &engines("engines"))
        .await
        .map_err(|refusal| refusal.to_string())?;
    assert!(pool["status"]["claimedBy"].is_null(), "{pool}");
    Ok(())
}

/// Of two runs with three pods and a gateway each, the quota has room for one and both gateways.
#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn of_two_runs_that_a_quota_holds_alone_one_gets_all_of_its_pods_and_then_the_other() -> Result<()> {
    let (_plane, client, _operator) = start().await?;
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": TEAM}, "spec": {"hard": {"pods": "5"}}});
    ask(&client, Verb::Create, &quota, false).await?;
    until(SOON, "the quota to be counted", async || {
        let there = get(&client, &quota).await.map_err(|refusal| refusal.to_string())?;
        let counted = there["status"]["used"]["pods"].is_string();
        if counted { Ok(()) } else { Err(there.to_string()) }
    })
    .await?;
    let names = ["first", "second"];
    for name in names {
        ask(&client, Verb::Create, &run(name, json!({})), false).await?;
    }
    let whole = until(TURNS, "one of the two to have all of its pods", async || {
        let mut there = Vec::new();
        for name in names {
            there.push(pods(&client, name).await.map_err(|error| error.to_string())?);
        }
        match there.iter().map(Vec::len).collect::<Vec<_>>()[..] {
            [3, 0] => Ok(0),
            [0, 3] => Ok(1),
            _ => Err(format!("{there:?}")),
        }
    })
    .await?;
    let (whole, other) = (names[whole], names[1 - whole]);
    told(
        &client,
        &run(other, json!({})),
        "Provisioned",
        "QuotaExceeded",
        TURNS,
        &["exceeded quota", "ResourceQuota of namespace team"],
    )
    .await?;
    ask(&client, Verb::Delete, &run(whole, json!({})), false).await?;
    until(TURNS, "the other to have all of its pods", async || {
        let there = pods(&client, other).await.map_err(|error| error.to_string())?;
        if there.len() == 3 {
            Ok(())
        } else {
            Err(format!("{there:?}"))
        }
    })
    .await
}

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn a_foreign_pod_that_claims_to_belong_to_a_run_keeps_nobody_waiting_and_is_left_alone() -> Result<()> {
    let (_plane, client, _operator) = start().await?;
    namespace(&client, "elsewhere", json!({})).await?;
    rig::node(&client, "node", 0, &json!({}), &json!([])).await?;
    let ready = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    ask(&client, Verb::PatchStatus, &ready, false).await?;
    // It never fits, so it is not placed itself.
    let victim = run(
        "victim",
        json!({"driver": {"resources": {"requests": {"cpu": "2000"}}}}),
    );
    let uid = ask(&client, Verb::Create, &victim, false).await?["metadata"]["uid"].clone();
    told(&client, &victim, "Admitted", "NeverFits", SOON, &[]).await?;
    let foreign = |namespace: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "cuckoo", "namespace": namespace, "annotations": {"grpo.dev/admitted-with": uid},
                "labels": {"grpo.dev/role": "trainer", "grpo.dev/attempt": "1"}},
            "spec": {"nodeSelector": {"there": "is-none"}, "containers": [{"name": "a", "image": "a"}]}})
    };
    for namespace in [TEAM, "elsewhere"] {
        ask(&client, Verb::Create, &foreign(namespace), false).await?;
    }
    let good = run("good", json!({}));
    ask(&client, Verb::Create, &good, false).await?;
    let driver: Api<Pod> = Api::namespaced(client.clone(), TEAM);
    // Shorter than the deadline for binding admitted pods.
    until(Duration::from_secs(20), "the good run to be admitted", async || {
        let pod = driver.get("good-driver-1-0").await.map_err(|error| error.to_string())?;
        let gates = pod.spec.and_then(|spec| spec.scheduling_gates).unwrap_or_default();
        if gates.is_empty() {
            Ok(())
        } else {
            Err(format!("{gates:?}"))
        }
    })
    .await?;
    for namespace in [TEAM, "elsewhere"] {
        let there = get(&client, &foreign(namespace)).await?;
        assert!(there["metadata"]["deletionTimestamp"].is_null());
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        pods.delete("cuckoo", &DeleteParams::default()).await?;
    }
    Ok(())
}

/// Pods of a run without a node, as the scheduler would see them: none has a gate or a selected node.
async fn pending(client: &Client, run: &str) -> std::result::Result<Vec<String>, String> {
    let labels = ListParams::default().labels(&format!("grpo.dev/run={run},grpo.dev/role in (driver,trainer,engine)"));
    let pods: Api<Pod> = Api::namespaced(client.clone(), TEAM);
    let mut pending = Vec::new();
    for pod in pods.list(&labels).await.map_err(|error| error.to_string())? {
        let spec = pod.spec.clone().unwrap_or_default();
        let chosen = spec
            .node_selector
            .is_some_and(|labels| labels.contains_key("kubernetes.io/hostname"));
        if spec.scheduling_gates.is_some_and(|gates| !gates.is_empty()) || chosen {
            return Err(format!("{} has a gate or a chosen node", pod.name_any()));
        }
        if spec.node_name.is_none() {
            pending.push(pod.name_any());
        }
    }
    Ok(pending)
}

/// Nothing binds the claim here, and the API server refuses another size of a claim that is not bound.
#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn a_suspended_run_gives_its_pods_back_although_the_api_server_refuses_an_object_of_it() -> Result<()> {
    let (_plane, client, _operator) = start().await?;
    // The garbage collector deletes engines, later.
    let own = async || {
        let mut own = pods(&client, "resized").await.map_err(|error| error.to_string())?;
        own.retain(|pod| !pod.contains("-engine-"));
        Ok::<_, String>(own)
    };
    let size = |storage: &str, suspend: bool| {
        let store = json!({"volumeClaimTemplate": {"resources": {"requests": {"storage": storage}}}});
        run("resized", json!({"store": store, "suspend": suspend}))
    };
    ask(&client, Verb::Apply, &size("1Gi", false), false).await?;
    until(SOON, "driver and trainer", async || match own().await? {
        pods if pods.len() < 2 => Err(format!("{pods:?}")),
        _ => Ok(()),
    })
    .await?;
    let larger = size("2Gi", false);
    ask(&client, Verb::Apply, &larger, false).await?;
    let claim = "PersistentVolumeClaim team/resized-store";
    told(&client, &larger, "Provisioned", "ApplyFailed", SOON, &[claim]).await?;
    ask(&client, Verb::Apply, &size("2Gi", true), false).await?;
    until(NOTICED, "its pods to be gone", async || match own().await? {
        pods if pods.is_empty() => Ok(()),
        pods => Err(format!("{pods:?}")),
    })
    .await
}

/// Waits until the run is admitted for this reason.
async fn admitted(client: &Client, run: &Value, reason: &str) -> Result<()> {
    until(NOTICED, reason, async || {
        let there = get(client, run).await.map_err(|refusal| refusal.to_string())?;
        let conditions = there["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_so = |one: &Value| one["type"] == "Admitted" && one["status"] == "True" && one["reason"] == reason;
        if conditions.iter().any(is_so) {
            Ok(())
        } else {
            Err(there["status"].to_string())
        }
    })
    .await
}

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn where_nodes_are_added_a_run_that_fits_on_none_is_let_go_and_runs_on_the_new_ones() -> Result<()> {
    let (_plane, client, _operator) = start_with(&["--node-scale-up-seconds=600"]).await?;
    rig::node(&client, "small", 0, &json!({}), &json!([])).await?;
    let large = run("large", json!({"trainer": {"gpusPerNode": 8}}));
    ask(&client, Verb::Create, &large, false).await?;
    admitted(&client, &large, "WaitsForNodes").await?;
    let waiting = until(SOON, "its pods without gates", async || {
        match pending(&client, "large").await? {
            pods if pods.len() < 3 => Err(format!("{pods:?}")),
            pods => Ok(pods),
        }
    })
    .await?;
    // In place of the autoscaler and the scheduler.
    rig::node(&client, "new", 8, &json!({}), &json!([])).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), TEAM);
    for name in waiting {
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "new"}});
        let _: Value = pods
            .create_subresource("binding", &name, &PostParams::default(), &binding)
            .await?;
    }
    admitted(&client, &large, "Admitted").await
}
