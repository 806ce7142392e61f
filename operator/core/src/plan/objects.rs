//! The objects of a plan besides pods: services, policies, rights, and mounted objects.

use std::collections::BTreeMap;

use grpo_crds::{GrpoRun, grpo_run::Phase};
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service, ServiceAccount},
        networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort},
        rbac::v1::{PolicyRule, Role},
        resource::v1::ResourceClaim,
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, OwnerReference},
        util::intstr::IntOrString,
    },
};
use kube::Resource;
use serde::Serialize;

use super::{
    pods::in_words,
    source::{Objects, Unreadable},
};
use crate::{desired_object::Owner, device_claims::ClaimedGpus, grpo_run::gpu_claims::gpu_claims};

/// Whether the operator created the object. Objects without owners existed before, such as the API server's own.
fn is_made(owners: &Option<Vec<OwnerReference>>) -> bool {
    owners.as_ref().is_some_and(|owners| !owners.is_empty())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePlan {
    /// Headless: the name resolves to the pods; says so if unready pods are included.
    kind: String,
    selects: String,
    ports: Vec<String>,
}

pub fn services(objects: &Objects) -> Result<BTreeMap<String, ServicePlan>, Unreadable> {
    let services = objects.of_kind::<Service>()?.into_iter();
    Ok(services
        .filter(|service| is_made(&service.metadata.owner_references))
        .map(|service| {
            let spec = service.spec.unwrap_or_default();
            let headless = spec.cluster_ip.as_deref() == Some("None");
            let plan = ServicePlan {
                kind: match (headless, spec.publish_not_ready_addresses) {
                    (true, Some(true)) => "headless, of pods ready or not".into(),
                    (true, _) => "headless".into(),
                    (false, _) => "one address".into(),
                },
                selects: in_words(spec.selector.as_ref()),
                ports: spec
                    .ports
                    .iter()
                    .flatten()
                    .map(|port| format!("{} {}", port.name.as_deref().unwrap_or("unnamed"), port.port))
                    .collect(),
            };
            (service.metadata.name.unwrap_or_default(), plan)
        })
        .collect())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPlan {
    of: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lets_in: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lets_out: Option<Vec<String>>,
}

pub fn policies(objects: &Objects) -> Result<BTreeMap<String, PolicyPlan>, Unreadable> {
    let policies = objects.of_kind::<NetworkPolicy>()?.into_iter();
    Ok(policies
        .filter(|policy| is_made(&policy.metadata.owner_references))
        .map(|policy| {
            let spec = policy.spec.unwrap_or_default();
            let judges = |way: &str| spec.policy_types.iter().flatten().any(|kind| kind == way);
            let rules_in = spec.ingress.iter().flatten();
            let rules_out = spec.egress.iter().flatten();
            let plan = PolicyPlan {
                of: selected(spec.pod_selector.as_ref()),
                lets_in: judges("Ingress").then(|| {
                    rules_in
                        .map(|rule| ways(rule.from.as_deref(), rule.ports.as_deref()))
                        .collect()
                }),
                lets_out: judges("Egress").then(|| {
                    rules_out
                        .map(|rule| ways(rule.to.as_deref(), rule.ports.as_deref()))
                        .collect()
                }),
            };
            (policy.metadata.name.unwrap_or_default(), plan)
        })
        .collect())
}

fn ways(peers: Option<&[NetworkPolicyPeer]>, ports: Option<&[NetworkPolicyPort]>) -> String {
    let peers = peers.map_or_else(
        || "everybody".to_owned(),
        |peers| peers.iter().map(peer).collect::<Vec<_>>().join("; or "),
    );
    let ports = ports.map_or_else(
        || "all ports".to_owned(),
        |ports| {
            let numbers = ports.iter().map(|port| match &port.port {
                Some(IntOrString::Int(number)) => number.to_string(),
                Some(IntOrString::String(name)) => name.clone(),
                None => "all".into(),
            });
            format!("port {}", numbers.collect::<Vec<_>>().join(", "))
        },
    );
    format!("{peers}: {ports}")
}

fn peer(peer: &NetworkPolicyPeer) -> String {
    let pods = selected(peer.pod_selector.as_ref());
    match (&peer.namespace_selector, &peer.ip_block) {
        (_, Some(block)) => format!("addresses {}", block.cidr),
        (Some(namespaces), None) => match selected(Some(namespaces)).as_str() {
            "everything" => format!("{pods}, of any namespace"),
            namespaces => format!("{pods}, of namespaces {namespaces}"),
        },
        (None, None) => pods,
    }
}

fn selected(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else {
        return "everything".into();
    };
    let labels = in_words(selector.match_labels.as_ref());
    let expressions = selector.match_expressions.iter().flatten().map(|wanted| {
        let values = wanted.values.clone().unwrap_or_default().join(", ");
        format!("{} {} ({values})", wanted.key, wanted.operator.to_lowercase())
    });
    let all: Vec<String> = (!labels.is_empty())
        .then_some(labels)
        .into_iter()
        .chain(expressions)
        .collect();
    if all.is_empty() {
        "everything".into()
    } else {
        all.join(", ")
    }
}

/// Rights of each service account, one line for each rule.
pub fn rights(objects: &Objects) -> Result<BTreeMap<String, Vec<String>>, Unreadable> {
    let roles: Vec<Role> = objects.of_kind()?;
    let accounts = objects.of_kind::<ServiceAccount>()?.into_iter();
    Ok(accounts
        .filter(|account| is_made(&account.metadata.owner_references))
        .map(|account| {
            let name = account.metadata.name.unwrap_or_default();
            let role = roles.iter().find(|role| role.metadata.name.as_ref() == Some(&name));
            let rules = role.and_then(|role| role.rules.clone()).unwrap_or_default();
            (name, rules.iter().map(rule).collect())
        })
        .collect())
}

fn rule(rule: &PolicyRule) -> String {
    let list = |items: &Option<Vec<String>>| items.clone().unwrap_or_default().join(", ");
    let group = match list(&rule.api_groups).as_str() {
        "" => String::new(),
        group => format!(" ({group})"),
    };
    let names = match list(&rule.resource_names).as_str() {
        "" => "any".to_owned(),
        names => names.to_owned(),
    };
    format!("{}{group} {names}: {}", list(&rule.resources), rule.verbs.join(", "))
}

/// The GPUs that pods share by ResourceClaims. A run that is not admitted yet has no claims: they are known from its
/// spec. A run that is suspended or over gets none.
pub fn claimed_gpus(objects: &Objects) -> Result<ClaimedGpus, Unreadable> {
    let runs: Vec<GrpoRun> = objects.named(&GrpoRun::kind(&()))?;
    let has_pods = |run: &&GrpoRun| {
        let phase = run.status.as_ref().and_then(|status| status.phase);
        !run.spec.suspend && !matches!(phase, Some(Phase::Succeeded | Phase::Failed))
    };
    let planned = runs
        .iter()
        .filter(has_pods)
        .filter_map(|run| Some(gpu_claims(run, &Owner::of(run)?)))
        .flatten();
    let planned = planned.filter_map(|claim| serde_json::from_value(claim.object).ok());
    let claims: Vec<ResourceClaim> = objects.of_kind()?;
    let made = claims
        .into_iter()
        .filter(|claim| is_made(&claim.metadata.owner_references));
    Ok(ClaimedGpus::of(&planned.chain(made).collect::<Vec<ResourceClaim>>()))
}

/// The created volume claims, ConfigMaps and Secrets.
pub fn files(objects: &Objects) -> Result<BTreeMap<String, String>, Unreadable> {
    let mut files = BTreeMap::new();
    for claim in objects.of_kind::<PersistentVolumeClaim>()? {
        if is_made(&claim.metadata.owner_references) {
            let spec = claim.spec.unwrap_or_default();
            let modes = spec.access_modes.unwrap_or_default().join(", ");
            let requests = spec
                .resources
                .and_then(|resources| resources.requests)
                .unwrap_or_default();
            let size = requests.get("storage").map(|size| size.0.clone()).unwrap_or_default();
            let name = claim.metadata.name.unwrap_or_default();
            files.insert(format!("claim {name}"), format!("{size}, {modes}"));
        }
    }
    for config in objects.of_kind::<ConfigMap>()? {
        if is_made(&config.metadata.owner_references) {
            let name = config.metadata.name.unwrap_or_default();
            files.insert(
                format!("ConfigMap {name}"),
                keys(config.data.unwrap_or_default().into_keys()),
            );
        }
    }
    for secret in objects.of_kind::<Secret>()? {
        if is_made(&secret.metadata.owner_references) {
            let name = secret.metadata.name.unwrap_or_default();
            files.insert(
                format!("Secret {name}"),
                keys(secret.data.unwrap_or_default().into_keys()),
            );
        }
    }
    Ok(files)
}

fn keys(keys: impl Iterator<Item = String>) -> String {
    match keys.collect::<Vec<_>>().join(", ").as_str() {
        "" => "empty at first".into(),
        keys => keys.to_owned(),
    }
}
