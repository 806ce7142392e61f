//! The run, its ranks and their cluster: observations and faults.

use std::time::{Duration, Instant};

use grpo_bench::operator_bench::{
    RigError,
    fleet::{small, volume},
    rig::{Rig, parsed, until},
};
use grpo_contracts::{
    names::PROGRESS_FIELD_MANAGER,
    names::{ATTEMPT, RANK, ROLE, RUN, role},
};
use grpo_crds::{AttemptStatus, GrpoRun, grpo_run::Phase};
use grpo_testing::cluster::{ClusterError, api, wait::is_ready};
use grpo_testing::control_plane::Part;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, Pod, PodCondition, Service},
    scheduling::v1::PriorityClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

pub type Result<T> = std::result::Result<T, RigError>;

const TEAM: &str = "team";
pub const NAME: &str = "ranks";
const RANKS: usize = 2;
/// This many failures in a row end the run.
pub const LIMIT: u32 = 3;
/// Deadline for the recovery from a fault.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// KWOK ignores objects with this annotation.
const SILENT: &str = "grpo.dev/silent";
pub const GPU: &str = "nvidia.com/gpu";

/// The result of one fault.
#[derive(Debug)]
pub struct Row {
    pub fault: &'static str,
    /// From room for all ranks until all of them run.
    pub seconds: f64,
    pub attempt: u32,
    /// Failures in a row, as the status counts them.
    pub counted: u32,
}

pub struct World {
    rig: Rig,
    pub operator: Part,
    runs: Api<GrpoRun>,
    pub pods: Api<Pod>,
    nodes: Api<Node>,
    services: Api<Service>,
    pub rows: Vec<Row>,
}

impl World {
    /// Starts a running run of two ranks, on the only two GPUs.
    pub async fn start() -> Result<Self> {
        let rig = Rig::start().await?;
        let operator = rig.operator(0)?.part;
        rig.namespace(TEAM).await?;
        volume(&rig.admin, TEAM).await?;
        rig.node("plain", 0, &json!({}), &json!([])).await?;
        let world = Self {
            runs: Api::namespaced(rig.admin.clone(), TEAM),
            pods: Api::namespaced(rig.admin.clone(), TEAM),
            nodes: Api::all(rig.admin.clone()),
            services: Api::namespaced(rig.admin.clone(), TEAM),
            operator,
            rig,
            rows: Vec::new(),
        };
        world.gpu_node("gpu-0").await?;
        world.gpu_node("gpu-1").await?;
        let urgent = parsed(json!({"metadata": {"name": "urgent"}, "value": 1000}));
        let classes: Api<PriorityClass> = Api::all(world.rig.admin.clone());
        classes
            .create(&PostParams::default(), &urgent)
            .await
            .map_err(api("creating priority class", "urgent"))?;
        let tolerations = json!([{"key": GPU, "operator": "Exists"}]);
        let trainer = json!({"nodes": RANKS, "gpusPerNode": 1, "podTemplate": {"spec": {"tolerations": tolerations}}});
        small(NAME)
            .with("/trainer", trainer)
            .with("/failurePolicy", json!({"maxConsecutiveFailures": LIMIT}))
            .apply(&world.rig.admin, TEAM)
            .await?;
        world.at_work(1, Instant::now()).await?;
        Ok(world)
    }
}

/// Observing and waiting.
impl World {
    /// Waits until all ranks of an attempt run, and checks the counts and the remains of the previous attempts.
    pub async fn back(&mut self, fault: &'static str, since: Instant, attempt: u32, counted: u32) -> Result<()> {
        let seconds = self.at_work(attempt, since).await?;
        let run = self.seen().await?;
        let known = attempts(&run);
        assert_eq!(
            (known.current, known.consecutive_failures),
            (attempt, counted),
            "{fault}: {known:?}"
        );
        let driver = run.status.and_then(|status| status.attempts).unwrap_or_default().driver;
        assert_eq!(
            (driver.current, driver.consecutive_failures),
            (1, 0),
            "{fault}: {driver:?}"
        );
        for pod in self.all_ranks().await? {
            let of = pod.labels().get(ATTEMPT).cloned().unwrap_or_default();
            assert_eq!(variable(&pod, "GRPO_ATTEMPT"), Some(of.clone()), "{}", pod.name_any());
            let meets = variable(&pod, "MASTER_ADDR").unwrap_or_default();
            assert!(meets.ends_with(&format!(".{NAME}-trainer-{of}")), "{meets}");
            let earlier = of != attempt.to_string();
            assert_eq!(earlier, pod.metadata.deletion_timestamp.is_some(), "{}", pod.name_any());
        }
        let services = self.services.list_metadata(&ListParams::default()).await;
        let services = services.map_err(api("listing", "services"))?;
        let hosts: Vec<String> = services
            .iter()
            .map(ResourceExt::name_any)
            .filter(|name| {
                name.strip_prefix(&format!("{NAME}-trainer-"))
                    .is_some_and(|n| n.parse::<u32>().is_ok())
            })
            .collect();
        assert_eq!(
            hosts,
            [format!("{NAME}-trainer-{attempt}")],
            "where earlier attempts met is gone"
        );
        self.rows.push(Row {
            fault,
            seconds,
            attempt,
            counted,
        });
        Ok(())
    }

    /// Seconds until the operator reports the run as running, and all ranks of this attempt run.
    async fn at_work(&self, attempt: u32, since: Instant) -> Result<f64> {
        until(PATIENCE, &format!("attempt {attempt} to run"), async || {
            let run = self.seen().await?;
            let status = run.status.clone().unwrap_or_default();
            let ready = self.ranks(attempt).await?.iter().filter(|pod| is_ready(pod)).count();
            let runs = status.phase == Some(Phase::Running) && attempts(&run).current == attempt;
            let there = || {
                format!(
                    "{ready} ranks ready; {:?}, {:?}; {:?}",
                    status.phase,
                    status.message,
                    attempts(&run)
                )
            };
            Ok((runs && ready == RANKS).then_some(()).ok_or_else(there))
        })
        .await?;
        Ok(since.elapsed().as_secs_f64())
    }

    /// Waits until the pods of the next attempt exist; not all of them have room.
    pub async fn waits_for_room(&self, attempt: u32) -> Result<()> {
        until(PATIENCE, &format!("attempt {attempt} to be made"), async || {
            let made = self.ranks(attempt).await?;
            let ready = made.iter().filter(|pod| is_ready(pod)).count();
            let run = self.seen().await?;
            let told = attempts(&run).current == attempt;
            let there = || format!("{} pods, {ready} ready", made.len());
            Ok((made.len() == RANKS && ready < RANKS && told)
                .then_some(())
                .ok_or_else(there))
        })
        .await
    }

    /// Checks that the status names this pod as the end of the last attempt, with the cluster's reason.
    pub async fn ended_for(&self, pod: &str, reason: &str) -> Result<()> {
        let said = attempts(&self.seen().await?).last_failure.unwrap_or_default();
        assert!(said.contains(pod) && said.contains(reason), "{said}");
        Ok(())
    }

    pub async fn told(&self, words: &str) -> Result<()> {
        until(PATIENCE, words, async || {
            let message = self
                .seen()
                .await?
                .status
                .and_then(|status| status.message)
                .unwrap_or_default();
            Ok(message.contains(words).then_some(()).ok_or(message))
        })
        .await
    }

    pub async fn seen(&self) -> std::result::Result<GrpoRun, ClusterError> {
        self.runs.get(NAME).await.map_err(api("reading GrpoRun", NAME))
    }

    pub async fn all_ranks(&self) -> std::result::Result<Vec<Pod>, ClusterError> {
        let ours = ListParams::default().labels(&format!("{RUN}={NAME},{ROLE}={}", role::TRAINER));
        let pods = self.pods.list(&ours).await.map_err(api("listing", "pods"))?;
        Ok(pods.items)
    }

    pub async fn ranks(&self, attempt: u32) -> std::result::Result<Vec<Pod>, ClusterError> {
        let mut pods = self.all_ranks().await?;
        pods.retain(|pod| pod.labels().get(ATTEMPT) == Some(&attempt.to_string()));
        Ok(pods)
    }

    pub async fn rank(&self, attempt: u32, rank: usize) -> Result<Pod> {
        let mut pods = self.ranks(attempt).await?;
        pods.retain(|pod| pod.labels().get(RANK) == Some(&rank.to_string()));
        Ok(pods.remove(0))
    }
}

/// Causing faults.
impl World {
    pub async fn gpu_node(&self, name: &str) -> Result<()> {
        let taints = json!([{"key": GPU, "effect": "NoSchedule"}]);
        self.rig.node(name, 1, &json!({}), &taints).await
    }

    /// Cordons the node of a rank and evicts it, as `kubectl drain` does; returns the node.
    pub async fn drain(&self, attempt: u32) -> Result<String> {
        let pod = self.rank(attempt, 0).await?;
        let node = node_of(&pod);
        self.cordon(&node, true).await?;
        self.pods
            .evict(&pod.name_any(), &EvictParams::default())
            .await
            .map_err(api("evicting pod", pod.name_any()))?;
        Ok(node)
    }

    pub async fn cordon(&self, node: &str, cordoned: bool) -> Result<()> {
        self.patch_node(node, &json!({"spec": {"unschedulable": cordoned}}))
            .await
    }

    pub async fn patch_node(&self, node: &str, patch: &Value) -> Result<()> {
        let patched = self
            .nodes
            .patch(node, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.map_err(api("changing node", node))?;
        Ok(())
    }

    pub async fn silence_node(&self, node: &str) -> Result<()> {
        self.patch_node(node, &json!({"metadata": {"annotations": {SILENT: "true"}}}))
            .await?;
        let unknown = json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.", "lastTransitionTime": Timestamp::now()});
        let patch = Patch::Strategic(json!({"status": {"conditions": [unknown]}}));
        let patched = self.nodes.patch_status(node, &PatchParams::default(), &patch).await;
        patched.map_err(api("losing node", node))?;
        Ok(())
    }

    pub async fn silence_pod(&self, pod: &str, silent: bool) -> Result<()> {
        let value = silent.then_some("true");
        let patch = Patch::Merge(json!({"metadata": {"annotations": {SILENT: value}}}));
        let patched = self.pods.patch(pod, &PatchParams::default(), &patch).await;
        patched.map_err(api("changing pod", pod))?;
        Ok(())
    }

    pub async fn delete(&self, pod: &str, how: &DeleteParams) -> Result<()> {
        let deleted = self.pods.delete(pod, how).await;
        deleted.map_err(api("deleting pod", pod))?;
        Ok(())
    }

    /// A rank's container ends by itself.
    pub async fn ends(&self, pod: &str, code: i32, words: &str) -> Result<()> {
        let ended = json!({"exitCode": code, "reason": "Error", "message": words, "finishedAt": Timestamp::now()});
        self.says(pod, "Failed", json!({"terminated": ended})).await
    }

    pub async fn says(&self, pod: &str, phase: &str, state: Value) -> Result<()> {
        let container = json!({"name": "trainer", "image": "example.com/trainer:1", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        self.patch_pod_status(pod, json!({"phase": phase, "containerStatuses": [container]}))
            .await
    }

    pub async fn patch_pod_status(&self, pod: &str, status: Value) -> Result<()> {
        let patch = Patch::Strategic(json!({"status": status}));
        let patched = self.pods.patch_status(pod, &PatchParams::default(), &patch).await;
        patched.map_err(api("writing the status of pod", pod))?;
        Ok(())
    }

    /// The driver reports that new weights are published.
    pub async fn finishes(&self, weights: &str) -> Result<()> {
        let uid = self.seen().await?.uid();
        let progress = json!({
            "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": NAME},
            "status": {"progress": {"runUid": uid, "iteration": 2, "weights": weights}},
        });
        let written = self
            .runs
            .patch_status(
                NAME,
                &PatchParams::apply(PROGRESS_FIELD_MANAGER).force(),
                &Patch::Apply(progress),
            )
            .await;
        written.map_err(api("writing the progress of", NAME))?;
        Ok(())
    }
}

pub fn attempts(run: &GrpoRun) -> AttemptStatus {
    let status = run.status.as_ref();
    let attempts = status.and_then(|status| status.attempts.clone());
    attempts.unwrap_or_default().trainer
}

pub fn node_of(pod: &Pod) -> String {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone())
        .unwrap_or_default()
}

/// Whether the pod takes a GPU, as far as the operator can tell.
pub fn holds(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && phase != Some("Failed")
}

pub fn condition(pod: &Pod, type_: &str) -> Option<PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_).cloned()
}

/// The value of a variable in a rank's environment.
pub fn variable(pod: &Pod, name: &str) -> Option<String> {
    let container = pod.spec.as_ref()?.containers.first()?;
    let found = container.env.iter().flatten().find(|variable| variable.name == name)?;
    found.value.clone()
}
