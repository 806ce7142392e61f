//! The operator on a control plane without nodes: how much it needs, what it does while nothing happens, what outages do to it.
//!
//! Needs the programs that `make setup` builds and the operator's binary: `make test-operator`.

use grpo_e2e::control_plane::{ControlPlane, Options};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use serde_json::json;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn a_control_plane_without_kubelets_runs_pods_in_words() -> Result<()> {
    let begun = std::time::Instant::now();
    let plane = ControlPlane::start(Options::FULL).await?;
    eprintln!("up after {:?}", begun.elapsed());
    let client = plane.admin().await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": "n"}}))?;
    nodes.create(&PostParams::default(), &node).await?;
    let ready = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    grpo_e2e::cluster::wait::until(
        nodes,
        Default::default(),
        Duration::from_secs(20),
        "a ready node",
        |all| all.values().any(ready).then_some(()),
    )
    .await?;
    eprintln!("node ready after {:?}", begun.elapsed());
    Ok(())
}
