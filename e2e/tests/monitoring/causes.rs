//! Causes of all alerts, made on the real cluster one after the other.

use super::prometheus::{Labels, Prometheus};
use super::{other_model, outside_schema};
use crate::overlap::with_everything;
use crate::sandboxes::pool::{NAME as POOL, Pool, SANDBOXES, task};
use crate::support::{Result, SOON, Scene, small_run};
use grpo_crds::{InferencePool, SandboxPool};
use grpo_sandbox_protocol::{ImageDemand, Priority};
use grpo_testing::cluster::wait;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::error::Error;
use std::time::Duration;

/// Window of the hurried rules and some scrapes; a run needs a minute until its first episodes.
const LIMIT: Duration = Duration::from_secs(300);
const SYSTEM: &str = "grpo-system";
const OPERATOR: &str = "grpo-operator";
const ROLE: &str = "grpo-operator:grpo-system";
/// A pod that does not answer to Prometheus.
const SILENT: &str = "silent";
const NOWHERE: &str = "localhost:1/nowhere:1";

/// Makes every cause; returns the alerts that fired. Each is silent for its labels before its cause is made.
pub async fn all(scene: &Scene, prometheus: &Prometheus) -> Result<Vec<&'static str>> {
    let mut seen = Vec::new();
    let mut fires = async |alert: &'static str, labels: Labels<'_>| -> Result<()> {
        prometheus.until_fires(alert, labels, LIMIT).await?;
        scene.say(&format!("{alert} fires"));
        seen.push(alert);
        Ok(())
    };
    let quiet = async |alert: &str, labels: Labels<'_>| prometheus.until_quiet(alert, labels, LIMIT).await;
    let here: Labels<'_> = &[("namespace", &scene.namespace)];

    let pool = small_pool("monitoring-pool").await?;
    let gateway = pool.gateway()?;
    let of_pool: Labels<'_> = &[("namespace", &pool.scene.namespace), ("sandbox_pool", POOL)];
    // On the local cluster no NetworkPolicy is enforced.
    fires("GrpoEgressNotProven", of_pool).await?;

    let image = task()?["image"].as_str().unwrap_or_default().to_owned();
    let demand = ImageDemand {
        image: NOWHERE.to_owned(),
        count: 1,
    };
    quiet("GrpoImagesUnavailable", of_pool).await?;
    gateway.demand(vec![demand]).await?;
    fires("GrpoImagesUnavailable", of_pool).await?;

    quiet("GrpoLeasesWait", of_pool).await?;
    let held = gateway.lease("first", &image, Priority::Agent, SOON).await?;
    let waiting = {
        let (gateway, image) = (pool.gateway()?, image.clone());
        tokio::spawn(async move { gateway.lease("second", &image, Priority::Agent, LIMIT).await.map(drop) })
    };
    fires("GrpoLeasesWait", of_pool).await?;
    waiting.abort();
    held.release().await;

    quiet("GrpoGatewayRestarts", of_pool).await?;
    restarts(&pool, 2).await?;
    fires("GrpoGatewayRestarts", of_pool).await?;

    let full = small_pool("monitoring-quota").await?;
    let of_full: Labels<'_> = &[("namespace", &full.scene.namespace), ("sandbox_pool", POOL)];
    quiet("GrpoSandboxesRefused", of_full).await?;
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "1"}}});
    full.scene.make::<ResourceQuota>(quota).await?;
    let refused = {
        let (gateway, image) = (full.gateway()?, image.clone());
        tokio::spawn(async move { gateway.lease("first", &image, Priority::Agent, LIMIT).await.map(drop) })
    };
    fires("GrpoSandboxesRefused", of_full).await?;
    refused.abort();
    full.scene.clear().await?;

    silent_pod(scene, &image).await?;
    fires("GrpoTargetDown", &[here[0], ("pod", SILENT)]).await?;

    // The kernel kills the trainer while libtorch is loaded, before the trainer's own code runs: the library's static
    // objects alone need almost twice this limit, in pages that cannot be dropped. The pods of a trainer are not
    // restarted, so the operator sees them fail, and counts each by its role and the reason of its end.
    quiet("GrpoProcessOutOfMemory", &[("role", "trainer")]).await?;
    let hungry = small_run("hungry")?.with("/trainer/resources", json!({"limits": {"memory": "32Mi"}}));
    scene.apply(&hungry).await?;
    fires("GrpoProcessOutOfMemory", &[("role", "trainer")]).await?;
    scene.runs().delete("hungry", &DeleteParams::default()).await?;

    // More processors than any node has. Admission does not let such a run go to the scheduler.
    let vast = json!({"requests": {"cpu": "1000"}});
    quiet("GrpoRunNeverFits", &[]).await?;
    scene
        .apply(&small_run("vast")?.with("/trainer/resources", vast.clone()))
        .await?;
    fires("GrpoRunNeverFits", &[]).await?;
    scene.runs().delete("vast", &DeleteParams::default()).await?;
    // Engines of a pool of its own have no gate, as the pods of a run that Kueue has admitted.
    let of_engines: Labels<'_> = &[("role", "engine")];
    quiet("GrpoPodsUnschedulable", of_engines).await?;
    let model = json!({"image": {"reference": other_model::MODEL}});
    let spec = json!({"model": model, "engine": {"embedded": {}}, "resources": vast});
    let pool_of_engines = json!({"metadata": {"name": "vast-engines"}, "spec": spec});
    scene.make::<InferencePool>(pool_of_engines).await?;
    fires("GrpoPodsUnschedulable", of_engines).await?;
    let pools: Api<InferencePool> = Api::namespaced(scene.client.clone(), &scene.namespace);
    pools.delete("vast-engines", &DeleteParams::default()).await?;

    // The demo's model as a judge gives no verdict: its votes do not count.
    let of_judged: Labels<'_> = &[here[0], ("run", "judged")];
    let judged = with_everything(scene, small_run("judged")?)
        .await?
        .with("/rollout/iterations", json!(50));
    scene.apply(&judged).await?;
    fires("GrpoJudgeVotesLost", of_judged).await?;
    quiet("GrpoEpisodesVoid", of_judged).await?;
    let lost = lose_sandboxes(scene);
    tokio::select! {
        found = fires("GrpoEpisodesVoid", of_judged) => found?,
        error = lost => return Err(error),
    }
    // Without room for any sandbox the run waits.
    quiet("GrpoRunStalls", of_judged).await?;
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "1"}}});
    scene.make::<ResourceQuota>(quota).await?;
    let lost = lose_sandboxes(scene);
    tokio::select! {
        found = fires("GrpoRunStalls", of_judged) => found?,
        error = lost => return Err(error),
    }
    scene.runs().delete("judged", &DeleteParams::default()).await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(scene.client.clone(), &scene.namespace);
    quotas.delete("none", &DeleteParams::default()).await?;

    // The weights of its first step have no room, so its replica never serves them.
    let of_tight: Labels<'_> = &[here[0], ("run", "tight")];
    quiet("GrpoWeightsNotLoaded", here).await?;
    quiet("GrpoEnginesBehind", of_tight).await?;
    let memory = json!({"medium": "Memory", "sizeLimit": "1Mi"});
    scene
        .apply(&small_run("tight")?.with("/inference/pool/weightsCache", memory))
        .await?;
    fires("GrpoWeightsNotLoaded", here).await?;
    fires("GrpoEnginesBehind", of_tight).await?;
    scene.runs().delete("tight", &DeleteParams::default()).await?;

    let of_other: Labels<'_> = &[here[0], ("run", "other-model")];
    quiet("GrpoLogprobsDiffer", of_other).await?;
    scene.apply(&other_model::run(scene, "other-model").await?).await?;
    fires("GrpoLogprobsDiffer", of_other).await?;
    scene.runs().delete("other-model", &DeleteParams::default()).await?;

    // Refused before anything is made for it.
    quiet("GrpoRunFailed", &[]).await?;
    let agent = json!({"cli": {"command": ["a"], "image": "a"}, "limits": {"promptTokens": 9}});
    scene.apply(&small_run("refused")?.with("/agent", agent)).await?;
    fires("GrpoRunFailed", &[]).await?;

    let of_pools: Labels<'_> = &[("kind", "SandboxPool")];
    quiet("GrpoObjectUnreadable", of_pools).await?;
    let unreadable = json!({"max": "four"});
    let fired = fires("GrpoObjectUnreadable", of_pools);
    outside_schema::while_there::<SandboxPool>(scene, unreadable, fired).await?;

    let of_engines: Labels<'_> = &[("kind", "InferencePool")];
    quiet("GrpoOperatorFault", of_engines).await?;
    let fired = fires("GrpoOperatorFault", of_engines);
    outside_schema::while_there::<InferencePool>(scene, more_pods_than_32_bits(&image), fired).await?;

    quiet("GrpoPermissionMissing", &[]).await?;
    let allowed = forbid_patches(scene).await?;
    let pools: Api<SandboxPool> = Api::namespaced(scene.client.clone(), &pool.scene.namespace);
    let change = json!({"spec": {"max": 3}});
    let changed = pools.patch(POOL, &PatchParams::default(), &Patch::Merge(change)).await;
    let fired = fires("GrpoPermissionMissing", &[]).await;
    // Also after an error: other tests use this operator.
    set_rules(scene, &allowed).await?;
    changed?;
    fired?;

    quiet("GrpoOperatorAbsent", &[]).await?;
    scale_operator(scene, 0).await?;
    let fired = fires("GrpoOperatorAbsent", &[]).await;
    scale_operator(scene, 1).await?;
    fired?;
    pool.scene.clear().await?;
    Ok(seen)
}

async fn small_pool(name: &str) -> Result<Pool> {
    let limits = json!({"limits": {"memory": "256Mi"}});
    Pool::new(
        name,
        json!({"max": 1, "allowUnenforced": true, "warm": {"images": 1}, "resources": limits}),
    )
    .await
}

/// Deletes the gateway's pod, so many times, and waits for the next one.
async fn restarts(pool: &Pool, times: u32) -> Result<()> {
    let gateways = format!("grpo.dev/role=gateway,grpo.dev/sandbox-pool={POOL}");
    for _ in 0..times {
        let ready = |there: &wait::Objects<Pod>| {
            let ready = there.values().find(|pod| wait::is_ready(pod));
            ready.map(ResourceExt::name_any)
        };
        let name = pool
            .scene
            .until_pods(&gateways, SOON, "a gateway that serves", ready)
            .await?;
        pool.scene
            .pods()
            .delete(&name, &DeleteParams::default().grace_period(0))
            .await?;
        let other = |there: &wait::Objects<Pod>| ready(there).filter(|found| *found != name);
        pool.scene
            .until_pods(&gateways, SOON, "the next gateway", other)
            .await?;
    }
    Ok(())
}

/// A pod that has the label of a gateway and the port of one, and does not answer.
async fn silent_pod(scene: &Scene, image: &str) -> Result<()> {
    let pod = json!({
        "metadata": {"name": SILENT, "labels": {"grpo.dev/role": "gateway"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": SILENT, "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "1000"],
                "ports": [{"name": "http", "containerPort": 8080}],
            }],
        },
    });
    scene.make::<Pod>(pod).await.map(drop)
}

/// Deletes every sandbox of the namespace again and again. Returns only if that fails.
async fn lose_sandboxes(scene: &Scene) -> Box<dyn Error + Send + Sync> {
    let mut again = tokio::time::interval(Duration::from_secs(1));
    let (which, now) = (
        ListParams::default().labels(SANDBOXES),
        DeleteParams::default().grace_period(0),
    );
    loop {
        again.tick().await;
        if let Err(error) = scene.pods().delete_collection(&now, &which).await {
            return error.into();
        }
    }
}

/// A pool with 10,000,000,000 pods. The operator multiplies replicas and nodes in 32 bits, which the maxima of the
/// schema keep far away, so its reconcile panics. A build without checks of overflow (a release profile) would not.
fn more_pods_than_32_bits(image: &str) -> Value {
    json!({
        "model": {"image": {"reference": image}}, "engine": {"vllm": {"nodes": 100_000}}, "replicas": 100_000,
    })
}

/// Takes the verb `patch` for Deployments away from the operator; returns its rules as they were.
async fn forbid_patches(scene: &Scene) -> Result<Value> {
    let roles: Api<ClusterRole> = Api::all(scene.client.clone());
    let rules = serde_json::to_value(roles.get(ROLE).await?.rules)?;
    let mut fewer = rules.clone();
    for rule in fewer.as_array_mut().into_iter().flatten() {
        let of_deployments = rule["resources"]
            .as_array()
            .is_some_and(|all| all.contains(&json!("deployments")));
        if let Some(verbs) = rule["verbs"].as_array_mut().filter(|_| of_deployments) {
            verbs.retain(|verb| verb != "patch");
        }
    }
    set_rules(scene, &fewer).await?;
    Ok(rules)
}

async fn set_rules(scene: &Scene, rules: &Value) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(scene.client.clone());
    roles
        .patch(ROLE, &PatchParams::default(), &Patch::Merge(json!({"rules": rules})))
        .await?;
    Ok(())
}

async fn scale_operator(scene: &Scene, replicas: u32) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(scene.client.clone(), SYSTEM);
    let change = json!({"spec": {"replicas": replicas}});
    deployments
        .patch(OPERATOR, &PatchParams::default(), &Patch::Merge(change))
        .await?;
    let scaled = |there: &wait::Objects<Deployment>| {
        let status = there.get(OPERATOR)?.status.as_ref()?;
        (status.ready_replicas.unwrap_or(0) == replicas as i32).then_some(())
    };
    let what = format!("{replicas} operators");
    Ok(wait::until(deployments, wait::named(OPERATOR), SOON, &what, scaled).await?)
}
