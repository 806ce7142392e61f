//! Finds the driver's image, for pods that do part of a driver's work: that of a driver in the namespace, or the image
//! in the operator's arguments.

use crate::cluster::Cluster;
use crate::error::{Asking, Error};
use grpo_contracts::names::{ROLE, role};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, LocalObjectReference, Pod};
use kube::api::{Api, ListParams};

/// The chart's label of the operator.
const OPERATOR: &str = "app.kubernetes.io/name=grpo-operator";
const HUB_VARIABLE: &str = "HF_ENDPOINT";

/// An image, and the other settings of this cluster's drivers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriverImage {
    pub image: String,
    pub pull_secrets: Vec<LocalObjectReference>,
    /// The cluster's mirror of the hub.
    pub hub_endpoint: Option<String>,
}

/// The image of a driver pod's first container.
pub fn of_pod(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref()?.containers.first()?.image.as_ref()
}

/// The image of any driver in the namespace: all drivers of one operator have the same image.
pub async fn of_neighbour(cluster: &Cluster) -> Result<Option<DriverImage>, Error> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let selector = format!("{ROLE}={}", role::DRIVER);
    let asking = Asking {
        verb: "list",
        resource: "pods",
        namespace: Some(&cluster.namespace),
        name: "",
    };
    let found = pods.list(&ListParams::default().labels(&selector).limit(1)).await;
    let found = found.map_err(|error| asking.failed(error))?;
    Ok(found.items.into_iter().find_map(from_pod))
}

fn from_pod(pod: Pod) -> Option<DriverImage> {
    let image = of_pod(&pod)?.clone();
    let spec = pod.spec?;
    let endpoint = spec.containers.first().and_then(hub_variable);
    Some(DriverImage {
        image,
        pull_secrets: spec.image_pull_secrets.unwrap_or_default(),
        hub_endpoint: endpoint,
    })
}

fn hub_variable(container: &Container) -> Option<String> {
    let mut variables = container.env.iter().flatten();
    variables.find(|variable| variable.name == HUB_VARIABLE)?.value.clone()
}

/// The image of any driver in the namespace, or the one in the operator's Deployment.
pub async fn of_cluster(cluster: &Cluster) -> Result<Option<DriverImage>, Error> {
    match of_neighbour(cluster).await? {
        Some(found) => Ok(Some(found)),
        None => Ok(of_operator(cluster).await),
    }
}

/// The image in the operator's Deployment. `None` for users who may not list Deployments of all namespaces.
pub async fn of_operator(cluster: &Cluster) -> Option<DriverImage> {
    let deployments: Api<Deployment> = Api::all(cluster.client.clone());
    let found = deployments.list(&ListParams::default().labels(OPERATOR)).await.ok()?;
    found.items.iter().find_map(from_deployment)
}

fn from_deployment(deployment: &Deployment) -> Option<DriverImage> {
    let spec = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let args = || {
        spec.containers
            .iter()
            .flat_map(|container| container.args.iter().flatten())
    };
    let value = |flag: &str| args().find_map(|arg| arg.strip_prefix(flag)).map(str::to_owned);
    // The operator gives every driver pod these Secrets, of the pod's own namespace.
    let secrets = args().filter_map(|arg| arg.strip_prefix("--pull-secret="));
    let secret = |name: &str| LocalObjectReference { name: name.to_owned() };
    Some(DriverImage {
        image: value("--driver-image=")?,
        pull_secrets: secrets.map(secret).collect(),
        hub_endpoint: value("--hub-endpoint="),
    })
}

#[cfg(test)]
mod tests;
