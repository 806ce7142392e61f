//! Pods of other namespaces on a cluster that enforces NetworkPolicies: they reach no service of a run and no sandbox.
//! Pods where metrics are collected reach the services.

use super::{RUN, TARGETS, pod_of};
use crate::sandboxes::pool::task;
use crate::support::{Result, SOON, Scene, small_run};
use grpo_contracts::names;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, AttachParams, Patch, PatchParams};
use serde_json::json;
use std::time::Duration;
use tokio::io::AsyncReadExt;

const VISITOR: &str = "visitor";
/// Time for the network plugin to learn of a pod or a label.
const LEARNT: Duration = Duration::from_secs(60);

/// A pod with a shell in a namespace of its own. `label`: pods there collect metrics.
async fn visitor(name: &str, label: bool) -> Result<Scene> {
    let scene = Scene::new(name).await?;
    if label {
        let namespaces: Api<Namespace> = Api::all(scene.client.clone());
        let labelled = json!({"metadata": {"labels": {names::METRICS: "true"}}});
        namespaces
            .patch(&scene.namespace, &PatchParams::default(), &Patch::Merge(labelled))
            .await?;
    }
    let pod = json!({
        "metadata": {"name": VISITOR, "labels": {"app": VISITOR}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": VISITOR, "image": task()?["image"], "imagePullPolicy": "IfNotPresent", "command": ["sleep", "1000"],
            }],
        },
    });
    scene.make::<Pod>(pod).await?;
    let runs = |there: &wait::Objects<Pod>| {
        let status = there.get(VISITOR)?.status.as_ref()?;
        (status.phase.as_deref() == Some("Running")).then_some(())
    };
    scene
        .until_pods("app=visitor", SOON, "the visitor to run", runs)
        .await?;
    Ok(scene)
}

/// Whether the visitor gets a line of an HTTP answer from this address.
async fn reaches(visitor: &Scene, host: &str, port: u16) -> Result<bool> {
    let ask =
        format!("exec 3<>/dev/tcp/{host}/{port} && printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3");
    let attach = AttachParams::default().stdin(false).stdout(true).stderr(true);
    let command = ["timeout", "5", "bash", "-c", &ask];
    let mut ran = visitor.pods().exec(VISITOR, command, &attach).await?;
    let mut said = String::new();
    if let Some(mut output) = ran.stdout() {
        output.read_to_string(&mut said).await?;
    }
    Ok(said.starts_with("HTTP/"))
}

/// Waits until the visitor reaches exactly the ports of these roles.
async fn until_reached(run: &Scene, visitor: &Scene, wanted: &[&str]) -> Result<()> {
    let began = tokio::time::Instant::now();
    let mut again = tokio::time::interval(Duration::from_secs(2));
    loop {
        again.tick().await;
        let mut reached = Vec::new();
        for target in &TARGETS {
            let (_, host) = pod_of(run, target.role).await?;
            if reaches(visitor, &host, target.port).await? {
                reached.push(target.role);
            }
        }
        if reached == wanted {
            visitor.say(&format!("reaches {reached:?} of the run, and no more"));
            return Ok(());
        }
        if began.elapsed() > LEARNT {
            return Err(format!("{} reaches {reached:?}, and should reach {wanted:?}", visitor.namespace).into());
        }
    }
}

#[tokio::test]
#[ignore = "needs a cluster that enforces NetworkPolicies: make test-kind"]
async fn a_pod_of_another_namespace_reaches_metrics_only_where_they_are_collected() -> Result<()> {
    let theirs = Scene::new("policies").await?;
    theirs
        .apply(&small_run(RUN)?.with("/rollout/iterations", json!(1000)))
        .await?;
    let (hostile, collector) = (visitor("hostile", false).await?, visitor("collector", true).await?);
    until_reached(&theirs, &collector, &["gateway", "driver", "trainer", "engine"]).await?;
    until_reached(&theirs, &hostile, &[]).await?;
    for scene in [hostile, collector, theirs] {
        scene.clear().await?;
    }
    Ok(())
}
