//! The pods of a plan, by role. Pods of one group are shown once.
//!
//! The gateway's pod is read from its Deployment, since only Kubernetes' own controllers create the pod, if they run.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Pod, PodSpec, Toleration},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Serialize;
use serde_yaml_ng::Value;

use super::{
    container::{ContainerPlan, resources},
    merge::merged,
    source::{Objects, Unreadable},
};
use crate::device_claims::ClaimedGpus;

const ROLE: &str = "grpo.dev/role";

/// Pods of one role of one owner.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGroup {
    pub role: String,
    /// The owner, such as `GrpoRun demo`.
    pub of: String,
    pub count: usize,
    pub names: Vec<String>,
    /// GPUs of each pod.
    #[serde(skip_serializing_if = "is_zero")]
    pub gpus: i64,
    /// GPUs that each pod shares with other pods.
    #[serde(skip_serializing_if = "is_zero")]
    pub shared_gpus: i64,
    pub each: Value,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodPlan {
    /// Set if it differs from the pod's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subdomain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account: Option<String>,
    /// Whether the pod has the token of its service account.
    token: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scheduling_gates: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority_class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime_class: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tolerations: Vec<String>,
    /// Placed on the node of the pods with these labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beside: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    away_from: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pull_secrets: Vec<String>,
    /// ResourceClaims, by their name within the pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    resource_claims: BTreeMap<String, String>,
    restart_policy: String,
    grace_seconds: i64,
    /// The user of its processes, the group of its volumes' files, and the seccomp profile.
    user: String,
    containers: Vec<ContainerPlan>,
}

pub fn pods(objects: &Objects, shared: &ClaimedGpus) -> Result<Vec<PodGroup>, Unreadable> {
    let mut groups = Groups::new();
    for pod in objects.of_kind::<Pod>()? {
        let spec = pod.spec.unwrap_or_default();
        add(
            &mut groups,
            shared,
            &pod.metadata,
            pod.metadata.labels.as_ref(),
            &spec,
            1,
        );
    }
    for deployment in objects.of_kind::<Deployment>()? {
        let Some(wanted) = deployment.spec else { continue };
        let template = wanted.template;
        let labels = template.metadata.and_then(|metadata| metadata.labels);
        let spec = template.spec.unwrap_or_default();
        add(
            &mut groups,
            shared,
            &deployment.metadata,
            labels.as_ref(),
            &spec,
            wanted.replicas.unwrap_or(1),
        );
    }
    groups
        .into_iter()
        .map(|((of, role), pods)| {
            let each: Vec<Value> = pods
                .iter()
                .map(|pod| serde_yaml_ng::to_value(&pod.plan))
                .collect::<Result<_, _>>()
                .map_err(|source| Unreadable::Section {
                    section: "pods",
                    source,
                })?;
            Ok(PodGroup {
                role,
                of,
                count: pods.len(),
                gpus: pods.iter().map(|pod| pod.gpus).max().unwrap_or(0),
                shared_gpus: pods.iter().map(|pod| pod.shared_gpus).max().unwrap_or(0),
                names: pods.into_iter().map(|pod| pod.name).collect(),
                each: merged(&each),
            })
        })
        .collect()
}

/// One pod of a group.
struct OnePod {
    name: String,
    gpus: i64,
    shared_gpus: i64,
    plan: PodPlan,
}

type Groups = BTreeMap<(String, String), Vec<OnePod>>;

fn add(
    groups: &mut Groups,
    shared: &ClaimedGpus,
    metadata: &ObjectMeta,
    labels: Option<&BTreeMap<String, String>>,
    spec: &PodSpec,
    count: i32,
) {
    let name = metadata.name.clone().unwrap_or_default();
    let owner = metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true));
    // Pods without an owner of our kinds have another creator: a Deployment.
    let Some(owner) = owner.filter(|owner| owner.api_version.starts_with(grpo_crds::GROUP)) else {
        return;
    };
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).cloned();
    let key = (
        format!("{} {}", owner.kind, owner.name),
        label(ROLE).unwrap_or_default(),
    );
    let gpus = spec.containers.iter().map(ContainerPlan::gpus).sum();
    let group = groups.entry(key).or_default();
    for _ in 0..count {
        group.push(OnePod {
            name: name.clone(),
            gpus,
            shared_gpus: shared.of_pod(spec),
            plan: PodPlan::of(&name, spec),
        });
    }
    group.sort_by_key(|pod| in_order(&pod.name));
}

/// Sort key: names in the order of the numbers at their end.
fn in_order(name: &str) -> (String, Vec<u64>) {
    let mut stem = name;
    let mut numbers = Vec::new();
    while let Some((before, number)) = stem.rsplit_once('-')
        && let Ok(number) = number.parse()
    {
        numbers.insert(0, number);
        stem = before;
    }
    (stem.to_owned(), numbers)
}

impl PodPlan {
    fn of(name: &str, spec: &PodSpec) -> Self {
        let volumes = spec.volumes.clone().unwrap_or_default();
        let container = |container, sidecar| ContainerPlan::of(container, &volumes, sidecar);
        let early = spec.init_containers.iter().flatten();
        let affinity = spec.affinity.clone().unwrap_or_default();
        let names = |references: &Option<Vec<k8s_openapi::api::core::v1::LocalObjectReference>>| {
            references
                .iter()
                .flatten()
                .map(|reference| reference.name.clone())
                .collect()
        };
        Self {
            hostname: spec.hostname.clone().filter(|hostname| hostname != name),
            subdomain: spec.subdomain.clone(),
            service_account: spec.service_account_name.clone().filter(|account| account != "default"),
            token: spec.automount_service_account_token != Some(false),
            scheduling_gates: spec
                .scheduling_gates
                .iter()
                .flatten()
                .map(|gate| gate.name.clone())
                .collect(),
            priority_class: spec.priority_class_name.clone(),
            runtime_class: spec.runtime_class_name.clone(),
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            tolerations: spec.tolerations.iter().flatten().filter_map(toleration).collect(),
            beside: affinity
                .pod_affinity
                .iter()
                .flat_map(|affinity| {
                    affinity
                        .required_during_scheduling_ignored_during_execution
                        .iter()
                        .flatten()
                })
                .map(|term| {
                    let labels = term
                        .label_selector
                        .as_ref()
                        .and_then(|selector| selector.match_labels.as_ref());
                    format!("{} (by {})", in_words(labels), term.topology_key)
                })
                .collect(),
            away_from: affinity
                .node_affinity
                .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution)
                .iter()
                .flat_map(|required| &required.node_selector_terms)
                .flat_map(|term| term.match_expressions.iter().chain(&term.match_fields).flatten())
                .map(|wanted| {
                    format!(
                        "{} {} {}",
                        wanted.key,
                        wanted.operator,
                        wanted.values.clone().unwrap_or_default().join(", ")
                    )
                })
                .collect(),
            pull_secrets: names(&spec.image_pull_secrets),
            resource_claims: spec
                .resource_claims
                .iter()
                .flatten()
                .map(|claim| {
                    (
                        claim.name.clone(),
                        claim.resource_claim_name.clone().unwrap_or_default(),
                    )
                })
                .collect(),
            restart_policy: spec.restart_policy.clone().unwrap_or_else(|| "Always".into()),
            grace_seconds: spec.termination_grace_period_seconds.unwrap_or(30),
            user: user(spec),
            containers: early
                .map(|early| container(early, early.restart_policy.as_deref() == Some("Always")))
                .chain(spec.containers.iter().map(|one| container(one, false)))
                .collect(),
        }
    }
}

fn user(spec: &PodSpec) -> String {
    let context = spec.security_context.clone().unwrap_or_default();
    let number = |number: Option<i64>| number.map_or_else(|| "the image's".to_owned(), |number| number.to_string());
    let seccomp = context
        .seccomp_profile
        .map_or_else(|| "none".to_owned(), |profile| profile.type_);
    format!(
        "{}, files {}, seccomp {seccomp}",
        number(context.run_as_user),
        number(context.fs_group)
    )
}

/// Returns `None` for a toleration that Kubernetes adds to every pod.
fn toleration(toleration: &Toleration) -> Option<String> {
    let key = toleration.key.clone().unwrap_or_else(|| "everything".into());
    if key.starts_with("node.kubernetes.io/") {
        return None;
    }
    let value = toleration
        .value
        .as_ref()
        .map(|value| format!("={value}"))
        .unwrap_or_default();
    let effect = toleration
        .effect
        .as_ref()
        .map(|effect| format!(":{effect}"))
        .unwrap_or_default();
    Some(format!("{key}{value}{effect}"))
}

/// Labels in selector syntax.
pub fn in_words(labels: Option<&BTreeMap<String, String>>) -> String {
    let words: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    words.join(", ")
}

/// Requests and limits of each sandbox of a pool.
pub fn of_sandbox(pool: &grpo_crds::SandboxPoolSpec) -> BTreeMap<String, String> {
    resources(Some(&pool.bounded_resources()))
}
