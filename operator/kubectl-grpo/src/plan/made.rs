//! The objects that the operator would create for the manifests, as plans read them: runs, pools, and pods with their
//! needs.

use super::error::PlanError;
use super::report::{PodRow, SandboxRow};
use crate::sandbox_pool::overlay;
use grpo_crds::{GrpoRun, InferencePool, SandboxPool};
use grpo_operator_core::admission::facts::PodNeeds;
use grpo_operator_core::device_claims::ClaimedGpus;
use grpo_operator_core::names::{ROLE, RUN, role};
use grpo_operator_core::preview::PreviewError;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::Value;

const GPU: &str = "nvidia.com/gpu";
const CPU: &str = "cpu";
const MEMORY: &str = "memory";

/// All of these objects.
pub struct Made {
    pub runs: Vec<GrpoRun>,
    pub inference: Vec<InferencePool>,
    pub sandboxes: Vec<SandboxPool>,
    pub pods: Vec<PlannedPod>,
    /// GPUs that trainers and engines share.
    pub shared_gpus: ClaimedGpus,
}

/// A pod that the operator, or one of its Deployments, would create.
pub struct PlannedPod {
    /// The owner: `GrpoRun demo`.
    pub of: String,
    pub role: String,
    /// The pod's run; `None` for a pool that no run owns.
    pub run: Option<String>,
    pub spec: PodSpec,
    pub needs: PodNeeds,
}

impl Made {
    pub fn of(objects: &[Value]) -> Result<Self, PlanError> {
        let mut pods: Vec<PlannedPod> = of_kind::<Pod>(objects, "Pod")?.into_iter().map(planned).collect();
        for deployment in of_kind::<Deployment>(objects, "Deployment")? {
            pods.extend(of_deployment(&deployment).into_iter().map(planned));
        }
        // Runs' pods before their pools'.
        pods.sort_by_key(|pod| {
            (
                pod.run.clone(),
                !pod.of.starts_with("GrpoRun "),
                pod.of.clone(),
                pod.role.clone(),
            )
        });
        Ok(Self {
            runs: of_kind(objects, "GrpoRun")?,
            inference: of_kind(objects, "InferencePool")?,
            sandboxes: of_kind(objects, "SandboxPool")?,
            pods,
            shared_gpus: ClaimedGpus::of(&of_kind::<ResourceClaim>(objects, "ResourceClaim")?),
        })
    }

    /// Pods by role.
    pub fn rows(&self) -> Vec<PodRow> {
        let mut rows: Vec<PodRow> = Vec::new();
        for pod in &self.pods {
            if let Some(row) = rows.iter_mut().find(|row| row.of == pod.of && row.role == pod.role) {
                row.count += 1;
                continue;
            }
            let amount = |resource: &str| pod.needs.requests.get(resource).copied().unwrap_or(0);
            let others = pod.needs.requests.iter();
            let others = others.filter(|(name, _)| ![GPU, CPU, MEMORY, "pods"].contains(&&***name));
            rows.push(PodRow {
                of: pod.of.clone(),
                role: pod.role.clone(),
                count: 1,
                gpus: amount(GPU) / 1000,
                shared_gpus: self.shared_gpus.of_pod(&pod.spec),
                cpu_millis: amount(CPU),
                memory_bytes: amount(MEMORY) / 1000,
                others: others.map(|(name, amount)| (name.to_string(), amount / 1000)).collect(),
                from: self.source(pod),
            });
        }
        rows
    }

    /// The manifest fields that cause such a pod.
    fn source(&self, pod: &PlannedPod) -> String {
        let run = pod
            .run
            .as_ref()
            .and_then(|name| self.runs.iter().find(|run| run.name_any() == *name));
        let name = pod.of.rsplit(' ').next().unwrap_or_default();
        match pod.role.as_str() {
            role::DRIVER => "spec.driver".to_owned(),
            role::TRAINER => run
                .and_then(|run| run.spec.trainer.as_ref())
                .map_or_else(String::new, |trainer| {
                    format!(
                        "spec.trainer: nodes {} with gpusPerNode {}",
                        trainer.nodes, trainer.gpus_per_node
                    )
                }),
            role::ENGINE => {
                let pool = self.inference.iter().find(|pool| pool.name_any() == name);
                let place = if run.is_some() { "spec.inference.pool" } else { "spec" };
                pool.map_or_else(String::new, |pool| {
                    let (engine, replicas) = (pool.spec.engine.name(), pool.spec.replicas);
                    let pods = match pool.spec.engine.nodes() {
                        1 => String::new(),
                        nodes => format!(" of {nodes} pods"),
                    };
                    format!("{place}: engine {engine}, replicas {replicas}{pods}")
                })
            }
            role::GATEWAY if run.is_some() => "spec.sandboxes.pool".to_owned(),
            _ => "spec".to_owned(),
        }
    }
}

/// The requests of a pool's sandboxes.
pub fn sandbox_row(pool: &SandboxPool) -> SandboxRow {
    let needs = sandbox(pool);
    let limits = pool.spec.bounded_resources().limits.unwrap_or_default();
    let amount = |resource: &str| needs.requests.get(resource).copied().unwrap_or(0);
    SandboxRow {
        of: format!("SandboxPool {}", pool.name_any()),
        at_most: pool.spec.max,
        cpu_millis: amount(CPU),
        memory_bytes: amount(MEMORY) / 1000,
        limits: limits.into_iter().map(|(name, limit)| (name, limit.0)).collect(),
        fit: None,
    }
}

/// A sandbox as the scheduler sees it: the gateway creates it with the pool's resources, selector and tolerations.
pub fn sandbox(pool: &SandboxPool) -> PodNeeds {
    let overlay = overlay(Some(&pool.spec));
    PodNeeds::planned(&Pod {
        spec: Some(PodSpec {
            containers: vec![Container {
                name: role::SANDBOX.to_owned(),
                resources: Some(pool.spec.bounded_resources()),
                ..Container::default()
            }],
            node_selector: Some(overlay.node_selector),
            tolerations: Some(overlay.tolerations),
            ..PodSpec::default()
        }),
        ..Pod::default()
    })
}

fn planned(pod: Pod) -> PlannedPod {
    let mut owners = pod.owner_references().iter();
    let owner = owners.find(|owner| owner.controller == Some(true));
    PlannedPod {
        of: owner.map_or_else(String::new, |owner| format!("{} {}", owner.kind, owner.name)),
        role: pod.labels().get(ROLE).cloned().unwrap_or_default(),
        run: pod.labels().get(RUN).cloned(),
        needs: PodNeeds::planned(&pod),
        spec: pod.spec.unwrap_or_default(),
    }
}

/// The pods of a Deployment, shown with its owner.
fn of_deployment(deployment: &Deployment) -> Vec<Pod> {
    let Some(spec) = &deployment.spec else {
        return Vec::new();
    };
    let pod = |number: i32| {
        let mut metadata = spec.template.metadata.clone().unwrap_or_default();
        metadata.name = Some(format!("{}-{number}", deployment.name_any()));
        metadata.namespace = deployment.namespace();
        metadata.owner_references = Some(deployment.owner_references().to_vec());
        Pod {
            metadata,
            spec: spec.template.spec.clone(),
            ..Pod::default()
        }
    };
    (0..spec.replicas.unwrap_or(1)).map(pod).collect()
}

fn of_kind<K: DeserializeOwned>(objects: &[Value], kind: &str) -> Result<Vec<K>, PlanError> {
    let read = |object: &Value| {
        serde_json::from_value(object.clone()).map_err(|source| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            PlanError::Preview(PreviewError::Unreadable {
                what: format!("{kind} {name}"),
                source,
            })
        })
    };
    objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .map(read)
        .collect()
}
