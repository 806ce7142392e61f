//! A pod that serves a few answers to this program: creates it, waits for it, connects to it and deletes it.
//!
//! If this program dies before it deletes the pod, the pod's own deadline ends it.

use super::connection::PodConnection;
use super::why::{hopeless, is_running, what_it_waits_for};
use crate::cluster::Cluster;
use crate::error::{Asking, Error, refused};
use grpo_contracts::RunConfig;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::Value;
use std::time::Duration;

/// Deadline for the process to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
const KNOCK_EVERY: Duration = Duration::from_millis(200);

/// A pod that exists.
pub struct ServingPod {
    pods: Api<Pod>,
    events: Api<Event>,
    namespace: String,
    name: String,
    /// The purpose, for messages: `reads the store of GrpoRun demo`.
    purpose: String,
}

impl ServingPod {
    /// Creates the pod and connects to it. After a failure, or Ctrl-C, it deletes the pod.
    pub async fn start(
        cluster: &Cluster,
        wanted: Value,
        purpose: String,
        starts_within: Duration,
    ) -> Result<(Self, PodConnection), Error> {
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let wanted = serde_json::from_value(wanted).map_err(|error| Error::Usage(error.to_string()))?;
        let asking = Asking {
            verb: "create",
            resource: "pods",
            namespace: Some(&cluster.namespace),
            name: "",
        };
        let made = pods
            .create(&PostParams::default(), &wanted)
            .await
            .map_err(|error| asking.failed(error))?;
        let serving = Self {
            pods,
            events: Api::namespaced(cluster.client.clone(), &cluster.namespace),
            namespace: cluster.namespace.clone(),
            name: made.name_any(),
            purpose,
        };
        let opened = tokio::select! {
            opened = serving.open(starts_within) => opened,
            _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
        };
        match opened {
            Ok(connection) => Ok((serving, connection)),
            Err(error) => {
                serving.remove().await?;
                Err(error)
            }
        }
    }

    async fn open(&self, starts_within: Duration) -> Result<PodConnection, Error> {
        let settled = |pod: Option<&Pod>| pod.is_none_or(|pod| is_running(pod) || hopeless(pod).is_some());
        let waiting = await_condition(self.pods.clone(), &self.name, settled);
        let Ok(waited) = tokio::time::timeout(starts_within, waiting).await else {
            let why = self.last_warning().await;
            let seen = self.pods.get(&self.name).await.ok();
            let why = why.or_else(|| seen.as_ref().and_then(what_it_waits_for));
            let why = why.unwrap_or_else(|| "its status and its events name no cause".into());
            return Err(self.failed(format!("it waited {} s: {why}", starts_within.as_secs())));
        };
        match waited.map_err(|error| self.failed(error.to_string()))? {
            None => return Err(self.failed("it was deleted".into())),
            Some(pod) => {
                if let Some(why) = hopeless(&pod) {
                    return Err(self.failed(why));
                }
            }
        }
        self.knock().await
    }

    /// Tries to connect: the process may not listen yet, and an ended one never will.
    async fn knock(&self) -> Result<PodConnection, Error> {
        let began = std::time::Instant::now();
        loop {
            match PodConnection::of_pod(&self.pods, &self.namespace, &self.name, RunConfig::RECORDS_PORT).await {
                Err(Error::PodConnection { .. }) if began.elapsed() < LISTENS_WITHIN => {
                    tokio::time::sleep(KNOCK_EVERY).await
                }
                Err(Error::PodConnection { why, .. }) => {
                    let seen = self.pods.get(&self.name).await.ok();
                    return Err(self.failed(seen.as_ref().and_then(hopeless).unwrap_or(why)));
                }
                other => return other,
            }
        }
    }

    /// A volume that cannot be mounted appears in events only. Callers who may not list them get `None`.
    async fn last_warning(&self) -> Option<String> {
        let of_pod = format!("involvedObject.name={},type=Warning", self.name);
        let events = self.events.list(&ListParams::default().fields(&of_pod)).await.ok()?;
        let newest = events
            .items
            .into_iter()
            .max_by_key(|event| event.last_timestamp.clone())?;
        let reason = newest.reason.unwrap_or_default();
        Some(format!("{reason}: {}", newest.message.unwrap_or_default()))
    }

    fn failed(&self, why: String) -> Error {
        Error::ServingPod {
            pod: self.name.clone(),
            purpose: self.purpose.clone(),
            why,
        }
    }

    pub async fn remove(&self) -> Result<(), Error> {
        let asking = Asking {
            verb: "delete",
            resource: "pods",
            namespace: Some(&self.namespace),
            name: &self.name,
        };
        match self
            .pods
            .delete(&self.name, &DeleteParams::default().grace_period(0))
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if refused(&error, 404) => Ok(()),
            Err(error) => Err(asking.failed(error)),
        }
    }
}
