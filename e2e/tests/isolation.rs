//! Isolation of sandboxes on a real cluster: a gateway probes it, reports it on its pool, and leases accordingly.
//!
//! Needs a cluster with images and chart: `make test-e2e`. Without one these tests do not run.

use crate::support::gateway::Gateway;
use crate::support::{Result, SOON, Scene, nodes, rows};
use grpo_crds::SandboxPool;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;
use std::time::Duration;

/// A probe without a good result is repeated after 10, 20 and 40 s.
const PROBED_AGAIN: Duration = Duration::from_secs(120);

fn condition<'a>(pool: &'a SandboxPool, type_: &str) -> Option<&'a Condition> {
    let status = pool.status.as_ref()?;
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

async fn until_shown(scene: &Scene, type_: &str, status: &str, limit: Duration) -> Result<Condition> {
    let pools: Api<SandboxPool> = Api::namespaced(scene.client.clone(), &scene.namespace);
    let what = format!("condition {type_} of SandboxPool isolation to be {status}");
    let found = |there: &wait::Objects<SandboxPool>| {
        let found = condition(there.get("isolation")?, type_)?;
        (found.status == status).then(|| found.clone())
    };
    Ok(wait::until(pools, wait::named("isolation"), limit, &what, found).await?)
}

/// Blocks all traffic out of new pods, as a network plugin that enforces the pool's NetworkPolicy. Removed on drop.
struct Firewall {
    nodes: Vec<String>,
}

const TABLE: &str = "grpo_e2e_isolation";
/// The addresses of the cluster's pods (`POD_CIDR` in e2e/cluster/lib.sh).
const PODS: &str = "10.112.0.0/16";

impl Firewall {
    async fn around_new_pods(scene: &Scene) -> Result<Self> {
        let pods: Api<Pod> = Api::all(scene.client.clone());
        let pods = pods.list(&ListParams::default()).await?;
        let known = pods.items.iter().filter_map(|pod| pod.status.as_ref()?.pod_ip.clone());
        let known = known.collect::<Vec<_>>().join(", ");
        let firewall = Self {
            nodes: nodes::names(&scene.client).await?,
        };
        let drop = format!("ct state new ip saddr {PODS} ip saddr != {{ {known} }} drop;");
        let chain = |name: &str| format!("chain {name} {{ type filter hook {name} priority -10; {drop} }}");
        let table = format!("table ip {TABLE} {{\n{}\n{}\n}}", chain("forward"), chain("input"));
        for node in &firewall.nodes {
            nodes::on(node, &["nft", &table])?;
        }
        Ok(firewall)
    }
}

impl Drop for Firewall {
    fn drop(&mut self) {
        for node in &self.nodes {
            let _ = nodes::on(node, &["nft", "delete", "table", "ip", TABLE]);
        }
    }
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_pool_leases_nothing_until_a_sandbox_has_tried_in_vain_to_get_out() -> Result<()> {
    let scene = Scene::new("isolation").await?;
    let pool = json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "SandboxPool", "metadata": {"name": "isolation"},
        "spec": {"max": 4, "resources": {"limits": {"memory": "256Mi", "cpu": "500m"}}},
    });
    let pools: Api<SandboxPool> = Api::namespaced(scene.client.clone(), &scene.namespace);
    pools
        .create(&PostParams::default(), &serde_json::from_value(pool)?)
        .await?;
    let limits = until_shown(&scene, "LimitsEnforced", "True", SOON).await?;
    scene.say(&limits.message);
    for part in [
        "memory 256 MiB",
        "CPU 500m",
        "root inside is an unprivileged user outside",
    ] {
        assert!(limits.message.contains(part), "{part} in {}", limits.message);
    }
    let gateway = Gateway::of(&scene, "isolation").await?;
    // A demo task's image: the only one with a shell that every such cluster has.
    let text = std::fs::read_to_string(rows().join("train.jsonl"))?;
    let task: serde_json::Value = serde_json::from_str(text.lines().next().ok_or("the demo has no tasks")?)?;
    let lease = json!({"id": "l", "run": "r", "image": task["image"], "ttlSeconds": 60, "waitSeconds": 60, "priority": "Agent"});
    let found = pools.get("isolation").await?;
    let egress = condition(&found, "EgressBlocked")
        .ok_or("no condition EgressBlocked")?
        .clone();
    scene.say(&egress.message);
    // A cluster whose network plugin enforces policies shows it at once; elsewhere the test simulates one.
    let _firewall = match egress.status.as_str() {
        "True" => None,
        _ => {
            assert!(egress.message.contains("reached the API server"), "{}", egress.message);
            assert!(egress.message.contains("another sandbox"), "{}", egress.message);
            let (status, refusal) = gateway.post("leases", &lease).await?;
            assert_eq!((status, &refusal["code"]), (403, &json!("EgressUnproven")), "{refusal}");
            let firewall = Firewall::around_new_pods(&scene).await?;
            let shown = until_shown(&scene, "EgressBlocked", "True", PROBED_AGAIN).await?;
            scene.say(&shown.message);
            Some(firewall)
        }
    };
    let (status, leased) = gateway.post("leases", &lease).await?;
    assert_eq!(status, 200, "{leased}");
    let (_, done) = gateway
        .post(
            "leases/l/exec",
            &json!({"id": "e", "argv": ["id", "-u"], "timeoutSeconds": 10}),
        )
        .await?;
    assert_eq!(
        (&done["exitCode"], &done["output"]),
        (&json!(0), &json!("0\n")),
        "{done}"
    );
    pools.delete("isolation", &DeleteParams::default()).await?;
    scene.clear().await
}
