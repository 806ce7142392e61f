//! A pod with only the fields that the gateway reads. A pool has ten thousand pods, so the rest is not kept in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as full;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer};

use grpo_contracts::names::GRADER;

use crate::pod::{IMAGE_ANNOTATION, INDEX_ANNOTATION, SLOT_LABEL, TEMPLATE_ANNOTATION, TERM_ANNOTATION};

/// The fields of a pod that are read, with their Kubernetes names.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SlimPod {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    pub spec: Option<Spec>,
    pub status: Option<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub node_name: Option<String>,
    pub containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Container {
    pub image: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    pub phase: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    #[serde(deserialize_with = "disruptions")]
    pub conditions: Option<Vec<Condition>>,
    pub container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub state: Option<ContainerState>,
    pub last_state: Option<ContainerState>,
    pub restart_count: i32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    pub terminated: Option<Terminated>,
    pub waiting: Option<Waiting>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    pub exit_code: i32,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Waiting {
    pub reason: Option<String>,
    pub message: Option<String>,
}

impl SlimPod {
    /// How often the pod's container has restarted.
    pub fn restarts(&self) -> u32 {
        let statuses = self
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        let restarts = statuses.map(|container| container.restart_count).max();
        restarts.and_then(|count| count.try_into().ok()).unwrap_or(0)
    }
}

/// The condition that says why a pod was ended.
pub const DISRUPTION: &str = "DisruptionTarget";

/// Keeps only the disruption condition. Every pod also has four conditions about its start.
fn disruptions<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Condition>>, D::Error> {
    let conditions: Option<Vec<Condition>> = Deserialize::deserialize(from)?;
    let disruptions = conditions
        .into_iter()
        .flatten()
        .filter(|condition| condition.type_ == DISRUPTION);
    let disruptions: Vec<Condition> = disruptions.collect();
    Ok((!disruptions.is_empty()).then_some(disruptions))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Drops the managed fields, which are a third of a pod, and keeps only the labels and annotations that the gateway
/// reads.
fn metadata<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    let found = Metadata::deserialize(from)?;
    let some = |mut all: BTreeMap<String, String>, wanted: &[&str]| {
        all.retain(|key, _| wanted.contains(&key.as_str()));
        (!all.is_empty()).then_some(all)
    };
    Ok(ObjectMeta {
        name: found.name,
        namespace: found.namespace,
        uid: found.uid,
        resource_version: found.resource_version,
        deletion_timestamp: found.deletion_timestamp,
        labels: some(found.labels, &[SLOT_LABEL, GRADER]),
        annotations: some(
            found.annotations,
            &[IMAGE_ANNOTATION, INDEX_ANNOTATION, TERM_ANNOTATION, TEMPLATE_ANNOTATION],
        ),
        ..ObjectMeta::default()
    })
}

impl Resource for SlimPod {
    type DynamicType = ();
    type Scope = <full::Pod as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        full::Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        full::Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        full::Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        full::Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests;
