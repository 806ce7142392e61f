//! Commands on the cluster's nodes: in the namespaces of the local cluster, or in the containers that are kind's nodes.

use super::{Result, repository};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use std::process::Command;

/// The only node of the local cluster (`NODE` in e2e/cluster/lib.sh).
pub const LOCAL: &str = "grpo-node";

/// Runs on this node the command that its arguments will be.
pub fn command(node: &str) -> Command {
    if node == LOCAL {
        return Command::new(repository().join("e2e/cluster/enter.sh"));
    }
    let mut docker = Command::new("docker");
    docker.args(["exec", node]);
    docker
}

/// The output of a command on this node; an error with its messages if it fails.
pub fn on(node: &str, arguments: &[&str]) -> Result<String> {
    let ran = command(node).args(arguments).output()?;
    match ran.status.success() {
        true => Ok(String::from_utf8_lossy(&ran.stdout).into_owned()),
        false => Err(format!("{arguments:?} on {node}: {}", String::from_utf8_lossy(&ran.stderr)).into()),
    }
}

/// The names of all nodes.
pub async fn names(client: &Client) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let all = nodes.list(&ListParams::default()).await?;
    Ok(all.iter().map(ResourceExt::name_any).collect())
}
