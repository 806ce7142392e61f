//! A package index in the cluster: graders reach it and nothing else, agents do not reach it, and a grader's pod is
//! deleted although the pool resets.
//!
//! A cluster that does not enforce NetworkPolicies skips the checks of what sandboxes must not reach.

use grpo_crds::SandboxPool;
use grpo_sandbox_protocol::Priority;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use super::pool::{NAME, Pool, SANDBOXES, shell, task};
use crate::support::{Result, SOON};

const INDEX: &str = "pypi";
/// Behind the Service's port 80.
const PORT: u16 = 8080;
/// Fetches the page of an address.
const FETCH: &str = r#"python3 -c "
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=5).status)" "#;

/// The index: a web server in a pod, behind a Service with another port.
async fn serve_an_index(pool: &Pool, image: &str) -> Result<()> {
    let labels = json!({"app": INDEX});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": INDEX, "labels": labels},
        "spec": {"containers": [{
            "name": INDEX, "image": image, "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-m", "http.server", PORT.to_string()], "workingDir": "/usr",
            "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        }]},
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": INDEX},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": PORT}]},
    });
    let params = PostParams::default();
    pool.scene.pods().create(&params, &serde_json::from_value(pod)?).await?;
    let services: Api<Service> = Api::namespaced(pool.scene.client.clone(), &pool.scene.namespace);
    services.create(&params, &serde_json::from_value(service)?).await?;
    let labels = format!("app={INDEX}");
    pool.scene
        .until_pods(&labels, SOON, "an index that serves", |pods| {
            pods.values().any(wait::is_ready).then_some(())
        })
        .await
}

fn is_labelled(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key("grpo.dev/grader"))
}

#[tokio::test]
#[ignore = "needs a cluster: make test-sandboxes"]
async fn graders_reach_the_package_index_and_agents_do_not() -> Result<()> {
    let url = format!("http://{INDEX}.e2e-packages.svc/");
    let index = json!({"url": url, "port": PORT, "pods": {"matchLabels": {"app": INDEX}}});
    let limits = json!({"cpu": "1", "memory": "256Mi"});
    let spec = json!({
        "max": 4, "allowUnenforced": true, "reset": "ContainerRestart", "packageIndex": index,
        "resources": {"limits": limits},
    });
    let pool = Pool::new("packages", spec).await?;
    let image = task()?["image"].as_str().unwrap_or_default().to_owned();
    serve_an_index(&pool, &image).await?;
    let enforced = is_enforced(&pool).await?;
    let gateway = pool.gateway()?;

    let grader = gateway.lease("grader", &image, Priority::Grader, SOON).await?;
    assert!(is_labelled(&pool.pod(&grader.lease.sandbox).await?));
    let fetched = grader
        .exec(&shell("fetch", &format!("{FETCH} $PIP_INDEX_URL"), 30))
        .await?;
    assert_eq!(
        (fetched.exit_code, fetched.output.trim()),
        (Some(0), "200"),
        "{fetched:?}"
    );

    let agent = gateway.lease("agent", &image, Priority::Agent, SOON).await?;
    assert!(!is_labelled(&pool.pod(&agent.lease.sandbox).await?));
    let variable = agent.exec(&shell("variable", "echo \"[$PIP_INDEX_URL]\"", 30)).await?;
    assert_eq!(variable.output.trim(), "[]");
    if enforced {
        let fetched = agent.exec(&shell("fetch", &format!("{FETCH} {url}"), 30)).await?;
        assert_ne!(fetched.exit_code, Some(0), "an agent reached the index: {fetched:?}");
        let ip = pool
            .pod(&agent.lease.sandbox)
            .await?
            .status
            .and_then(|status| status.pod_ip);
        let other = format!(
            "{FETCH} http://{}:7070/healthz",
            ip.ok_or("the agent's pod has no address")?
        );
        let fetched = grader.exec(&shell("other", &other, 30)).await?;
        assert_ne!(fetched.exit_code, Some(0), "a grader reached a sandbox: {fetched:?}");
    }

    let graders = grader.lease.sandbox.clone();
    grader.release().await;
    let gone = |pods: &wait::Objects<Pod>| (!pods.contains_key(&graders)).then_some(());
    pool.scene
        .until_pods(SANDBOXES, SOON, "the grader's pod to be gone", gone)
        .await?;
    agent.release().await;
    without_an_index_the_policy_goes(&pool).await?;
    pool.scene.clear().await
}

/// Whether the gateway's probe has shown that sandboxes reach nothing.
async fn is_enforced(pool: &Pool) -> Result<bool> {
    let pools: Api<SandboxPool> = Api::namespaced(pool.scene.client.clone(), &pool.scene.namespace);
    let probed = |there: &wait::Objects<SandboxPool>| {
        let shown = there.get(NAME)?.status.as_ref()?.egress_blocked.clone()?;
        (shown != "Unknown").then_some(shown)
    };
    let shown = wait::until(pools, wait::named(NAME), SOON, "the pool's egress to be probed", probed).await?;
    pool.scene.say(&format!("egress blocked: {shown}"));
    Ok(shown == "True")
}

async fn without_an_index_the_policy_goes(pool: &Pool) -> Result<()> {
    let policies: Api<NetworkPolicy> = Api::namespaced(pool.scene.client.clone(), &pool.scene.namespace);
    let name = format!("{NAME}-graders");
    assert!(policies.get_opt(&name).await?.is_some());
    let pools: Api<SandboxPool> = Api::namespaced(pool.scene.client.clone(), &pool.scene.namespace);
    let without = Patch::Merge(json!({"spec": {"packageIndex": null}}));
    pools.patch(NAME, &PatchParams::default(), &without).await?;
    let gone = |there: &wait::Objects<NetworkPolicy>| there.is_empty().then_some(());
    Ok(wait::until(
        policies,
        wait::named(&name),
        SOON,
        "the policy of graders to be gone",
        gone,
    )
    .await?)
}
