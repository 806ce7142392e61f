//! The reader pod: shows the store of a run whose driver is gone, under the restricted Pod Security Standard, and is
//! deleted after use.
//!
//! It runs the driver's image as `grpo-driver records` on the run's claim, mounted read only, without a service
//! account's token. If this program dies before it deletes the pod, the pod's deadline ends it, and it goes with the
//! run.

use super::PodConnection;
use crate::arguments::RecordsOptions;
use crate::cluster::Cluster;
use crate::error::{Asking, Error, refused};
use grpo_contracts::RunConfig;
use grpo_contracts::access::account;
use grpo_contracts::names::{ROLE, RUN, STORE, role, store_claim_of};
use grpo_crds::GrpoRun;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::time::Duration;

const USER: i64 = 65532;
/// The pod ends by then, whatever becomes of us.
const DEADLINE_SECONDS: u32 = 600;
/// It has to run by then: volumes may have to be attached, the image pulled.
const STARTS_WITHIN: Duration = Duration::from_secs(180);
/// The process has to listen by then.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
const KNOCK_EVERY: Duration = Duration::from_millis(200);

/// A reader pod that exists.
pub struct Reader {
    pods: Api<Pod>,
    namespace: String,
    name: String,
}

impl Reader {
    /// Makes the pod and connects to it. After a failure the pod is deleted.
    pub async fn start(
        cluster: &Cluster,
        pods: &Api<Pod>,
        run: &GrpoRun,
        last_driver: Option<&Pod>,
        options: &RecordsOptions,
    ) -> Result<(Self, PodConnection), Error> {
        let name = run.name_any();
        let image = match &options.reader_image {
            Some(image) => image.clone(),
            None => match last_driver.and_then(image_of) {
                Some(image) => image,
                None => any_drivers_image(cluster, pods)
                    .await?
                    .ok_or_else(|| Error::NoReaderImage { run: name.clone() })?,
            },
        };
        let asking = |verb| Asking {
            verb,
            resource: "pods",
            namespace: Some(&cluster.namespace),
            name: &name,
        };
        let wanted = pod(run, &image, last_driver.and_then(|pod| pod.spec.as_ref()));
        let wanted = serde_json::from_value(wanted).map_err(|error| Error::Usage(error.to_string()))?;
        let made = pods
            .create(&PostParams::default(), &wanted)
            .await
            .map_err(|error| asking("create").failed(error))?;
        let reader = Self {
            pods: pods.clone(),
            namespace: cluster.namespace.clone(),
            name: made.name_any(),
        };
        eprintln!("GrpoRun {name} has no driver now; pod {} reads its store", reader.name);
        let opened = tokio::select! {
            opened = reader.open(&name) => opened,
            _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
        };
        match opened {
            Ok(connection) => Ok((reader, connection)),
            Err(error) => {
                reader.remove().await?;
                Err(error)
            }
        }
    }

    async fn open(&self, run: &str) -> Result<PodConnection, Error> {
        let failed = |why: String| Error::Reader {
            run: run.to_owned(),
            pod: self.name.clone(),
            why,
        };
        let settled = |pod: Option<&Pod>| pod.is_none_or(|pod| is_running(pod) || hopeless(pod).is_some());
        let waiting = await_condition(self.pods.clone(), &self.name, settled);
        let Ok(waited) = tokio::time::timeout(STARTS_WITHIN, waiting).await else {
            let seen = self.pods.get(&self.name).await.ok();
            let why = seen
                .as_ref()
                .and_then(what_it_waits_for)
                .unwrap_or_else(|| "nobody says why".into());
            return Err(failed(format!("it waited {} s: {why}", STARTS_WITHIN.as_secs())));
        };
        match waited.map_err(|error| failed(error.to_string()))? {
            None => return Err(failed("it was deleted".into())),
            Some(pod) => {
                if let Some(why) = hopeless(&pod) {
                    return Err(failed(why));
                }
            }
        }
        self.knock(run).await
    }

    /// The process may not listen yet; one that has ended never will.
    async fn knock(&self, run: &str) -> Result<PodConnection, Error> {
        let began = std::time::Instant::now();
        loop {
            match PodConnection::of_pod(&self.pods, &self.namespace, &self.name, RunConfig::RECORDS_PORT).await {
                Err(Error::PodConnection { .. }) if began.elapsed() < LISTENS_WITHIN => {
                    tokio::time::sleep(KNOCK_EVERY).await
                }
                Err(Error::PodConnection { why, .. }) => {
                    let seen = self.pods.get(&self.name).await.ok();
                    return Err(Error::Reader {
                        run: run.to_owned(),
                        pod: self.name.clone(),
                        why: seen.as_ref().and_then(hopeless).unwrap_or(why),
                    });
                }
                other => return other,
            }
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

/// The reader pod of a run. What made the last driver schedulable and its image pullable is taken over from it.
pub fn pod(run: &GrpoRun, image: &str, last_driver: Option<&PodSpec>) -> Value {
    let (args, mounts, volumes) = place(run);
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": format!("{}-records-", run.name_any()),
            "labels": {"app.kubernetes.io/managed-by": "kubectl-grpo"},
            "ownerReferences": run.owner_ref(&()).into_iter().collect::<Vec<_>>(),
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "records",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "args": args,
                "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
                    "capabilities": {"drop": ["ALL"]},
                },
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
            // A volume that one node at a time may mount is read where the run's other pods have it.
            "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchExpressions": [
                        {"key": RUN, "operator": "In", "values": [run.name_any()]},
                        {"key": STORE, "operator": "Exists"},
                    ]},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }]}},
        },
    });
    if run.spec.store.object_store.is_some() {
        pod["spec"]["serviceAccountName"] = json!(account::driver(&run.name_any()));
    }
    if let Some(last) = last_driver {
        pod["spec"]["imagePullSecrets"] = json!(last.image_pull_secrets.clone().unwrap_or_default());
        pod["spec"]["nodeSelector"] = json!(last.node_selector.clone().unwrap_or_default());
        pod["spec"]["tolerations"] = json!(last.tolerations.clone().unwrap_or_default());
    }
    pod
}

/// The reader's arguments, mounts and volumes: the store's volume, or the credentials of its bucket. A bucket without a
/// Secret is read as the run's driver.
fn place(run: &GrpoRun) -> (Vec<String>, Value, Value) {
    let mut args = vec!["records".to_owned(), "--path".to_owned(), RunConfig::of(run).store_path];
    let Some(bucket) = &run.spec.store.object_store else {
        let volume = store_claim_of(run)
            .map(|claim| json!({"name": "store", "persistentVolumeClaim": {"claimName": claim, "readOnly": true}}));
        let mounts = json!([{"name": "store", "mountPath": RunConfig::STORE_MOUNT, "readOnly": true}]);
        return (args, mounts, json!(volume.into_iter().collect::<Vec<_>>()));
    };
    let mut set = |flag: &str, value: &str| args.extend([flag.to_owned(), value.to_owned()]);
    set("--url", &bucket.url);
    if let Some(endpoint) = &bucket.endpoint {
        set("--endpoint", endpoint);
    }
    if let Some(region) = &bucket.region {
        set("--region", region);
    }
    let Some(secret) = &bucket.credentials_secret_ref else {
        return (args, json!([]), json!([]));
    };
    set("--credentials", RunConfig::STORE_SECRET);
    let volume = json!({"name": "credentials", "secret": {"secretName": secret.name, "defaultMode": 0o440}});
    let at = json!({"name": "credentials", "mountPath": RunConfig::STORE_SECRET, "readOnly": true});
    (args, json!([at]), json!([volume]))
}

/// The image of a driver pod's first container.
fn image_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.containers.first()?.image.clone()
}

/// The drivers of one operator all have one image, so that of a neighbour will do.
async fn any_drivers_image(cluster: &Cluster, pods: &Api<Pod>) -> Result<Option<String>, Error> {
    let selector = format!("{ROLE}={}", role::DRIVER);
    let found = pods
        .list(&ListParams::default().labels(&selector).limit(1))
        .await
        .map_err(|error| super::listing_pods(cluster).failed(error))?;
    Ok(found.items.iter().find_map(image_of))
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

/// Why the pod will not run any more, if it is so.
fn hopeless(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let ended = status.container_statuses.iter().flatten().find_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        let words = ended.message.as_deref().map(str::trim).unwrap_or("it said nothing");
        Some(format!("it ended with exit code {}: {words}", ended.exit_code))
    });
    let failed = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    let image = what_it_waits_for(pod).filter(|why| why.contains("ImagePull") || why.contains("InvalidImageName"));
    ended
        .or_else(|| failed.then(|| status.message.clone().unwrap_or_else(|| "it failed".into())))
        .or(image)
}

/// In the scheduler's or the kubelet's words.
fn what_it_waits_for(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let container = status.container_statuses.iter().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().unwrap_or("Waiting");
        Some(format!("{reason}: {}", waiting.message.as_deref().unwrap_or_default()))
    });
    let scheduled = status.conditions.iter().flatten().find_map(|condition| {
        (condition.type_ == "PodScheduled" && condition.status == "False").then(|| condition.message.clone())?
    });
    container.or(scheduled)
}

#[cfg(test)]
mod tests;
