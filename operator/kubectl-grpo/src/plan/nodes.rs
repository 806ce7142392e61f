//! The nodes for a plan: from a file, or from the cluster.

use super::error::PlanError;
use super::input::{self, Document};
use crate::cluster::Cluster;
use crate::error::{Asking, Error};
use grpo_operator_core::admission::facts::{NodeFacts, PodNeeds};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// The node labels with the MiB of each GPU, and with the GPUs' name.
const GPU_MEMORY: &str = "nvidia.com/gpu.memory";
const GPU_PRODUCT: &str = "nvidia.com/gpu.product";
/// Pods in one answer: a cluster may have a hundred thousand.
const PAGE: u32 = 500;

/// Nodes, and their pods if known.
#[derive(Clone, Debug)]
pub struct Nodes {
    pub from: String,
    pub nodes: Vec<NodeFacts>,
    pub bound: Option<Vec<PodNeeds>>,
}

impl Nodes {
    /// MiB of the largest GPU, as the operator computes it.
    pub fn gpu_memory(&self) -> Option<u64> {
        let labels = self.nodes.iter().filter_map(|node| node.labels.get(GPU_MEMORY));
        labels.filter_map(|text| text.parse().ok()).max()
    }

    /// The name of the GPUs, if it is the same on all nodes.
    pub fn gpu_product(&self) -> Option<&str> {
        let mut labels = self.nodes.iter().filter_map(|node| node.labels.get(GPU_PRODUCT));
        let first = labels.next()?;
        labels.all(|label| label == first).then_some(first.as_str())
    }
}

pub fn of_file(file: &Path) -> Result<Nodes, PlanError> {
    let documents = input::read(&[PathBuf::from(file)])?;
    let nodes: Vec<Node> = of_kind(&documents, "Node")?;
    let pods: Vec<Pod> = of_kind(&documents, "Pod")?;
    if nodes.is_empty() {
        return Err(PlanError::NoNodes { file: file.to_owned() });
    }
    Ok(Nodes {
        from: file.display().to_string(),
        nodes: nodes.iter().map(NodeFacts::of).collect(),
        bound: (!pods.is_empty()).then(|| on_nodes(&pods)),
    })
}

/// The cluster's nodes. If pods may not be listed, `said` gets a message and all nodes count as empty.
pub async fn of_cluster(cluster: &Cluster, said: impl FnOnce(String)) -> Result<Nodes, Error> {
    let asking = |resource| Asking {
        verb: "list",
        resource,
        namespace: None,
        name: "",
    };
    let api: Api<Node> = Api::all(cluster.client.clone());
    let listed = api.list(&ListParams::default()).await;
    let nodes = listed.map_err(|error| asking("nodes").failed(error))?.items;
    let bound = match pods(cluster).await {
        Ok(pods) => Some(pods),
        Err(error) => {
            let why = asking("pods").failed(error);
            said(format!("{why}; all nodes count as empty"));
            None
        }
    };
    Ok(Nodes {
        from: "the cluster".to_owned(),
        nodes: nodes.iter().map(NodeFacts::of).collect(),
        bound,
    })
}

/// Pods on nodes, page by page: keeps only the needs of each.
async fn pods(cluster: &Cluster) -> Result<Vec<PodNeeds>, kube::Error> {
    let api: Api<Pod> = Api::all(cluster.client.clone());
    let mut params = ListParams::default().limit(PAGE);
    let mut bound = Vec::new();
    loop {
        let page = api.list(&params).await?;
        bound.extend(on_nodes(&page.items));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(bound),
        }
    }
}

/// Ended pods use no resources.
fn on_nodes(pods: &[Pod]) -> Vec<PodNeeds> {
    let ended = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let needs = pods.iter().filter(|pod| !ended(pod)).map(PodNeeds::of);
    needs.filter(|needs| needs.node.is_some()).collect()
}

fn of_kind<K: DeserializeOwned>(documents: &[Document], kind: &str) -> Result<Vec<K>, PlanError> {
    let read = |document: &Document| {
        serde_json::from_value(document.value.clone()).map_err(|source| PlanError::Object {
            what: format!("{kind} {}", document.name()),
            file: document.file.clone(),
            source,
        })
    };
    documents
        .iter()
        .filter(|document| document.kind() == kind)
        .map(read)
        .collect()
}
