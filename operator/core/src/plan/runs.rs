//! The plan of our own kinds: the locations that a run uses, its sandboxes, and fields that no process executes yet.

use std::collections::BTreeMap;

use grpo_contracts::{
    DatasetMount, RunConfig,
    support::{Unsupported, unsupported},
};
use grpo_crds::{GrpoRun, SandboxPool, grpo_run::Mode};
use k8s_openapi::api::core::v1::ConfigMap;
use serde::Serialize;

use super::{
    pods::of_sandbox,
    source::{Objects, Unreadable},
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NotExecuted {
    field: String,
    value: String,
    instead: String,
}

impl NotExecuted {
    fn of(kind: &str, name: &str, found: Unsupported) -> Self {
        Self {
            field: format!("{kind} {name}: spec.{}", found.path),
            value: found.value,
            instead: found.remedy.to_owned(),
        }
    }
}

/// API fields that this version's processes do not execute.
pub fn not_executed(objects: &Objects) -> Result<Vec<NotExecuted>, Unreadable> {
    let mut fields = Vec::new();
    for run in objects.named::<GrpoRun>("GrpoRun")? {
        let name = run.metadata.name.clone().unwrap_or_default();
        fields.extend(
            unsupported(&run.spec)
                .into_iter()
                .map(|found| NotExecuted::of("GrpoRun", &name, found)),
        );
    }
    Ok(fields)
}

/// The facts of a run from `run.json` and the status.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunPlan {
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    objective: Option<String>,
    /// Path below the store's volume.
    store: String,
    model: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    datasets: BTreeMap<String, String>,
    gateway: String,
    engines: String,
    /// The pool that judges turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    judge: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trainer: Option<String>,
    driver: String,
}

pub fn runs(objects: &Objects) -> Result<BTreeMap<String, RunPlan>, Unreadable> {
    let files: Vec<ConfigMap> = objects.of_kind()?;
    let mut plans = BTreeMap::new();
    for run in objects.named::<GrpoRun>("GrpoRun")? {
        let name = run.metadata.name.clone().unwrap_or_default();
        let text = files.iter().find_map(|file| {
            file.data
                .as_ref()?
                .get(RunConfig::KEY)
                .filter(|_| owned_by(file, &name))
        });
        let Some(text) = text else { continue };
        let config: RunConfig = serde_json::from_str(text).map_err(|source| Unreadable::Object {
            what: format!("{} of GrpoRun {name}", RunConfig::KEY),
            source,
        })?;
        plans.insert(name, RunPlan::of(&run, config));
    }
    Ok(plans)
}

fn owned_by(file: &ConfigMap, run: &str) -> bool {
    file.metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.name == run)
}

impl RunPlan {
    fn of(run: &GrpoRun, config: RunConfig) -> Self {
        let source = |mount: &DatasetMount| match (&mount.image, &mount.claim_name, &mount.object_store) {
            (Some(image), ..) => format!("image {image}"),
            (None, Some(claim), _) => format!("claim {claim}"),
            (None, None, Some(bucket)) => format!("object store {}", bucket.url),
            (None, None, None) => format!("hub {}", mount.hub.as_ref().map_or("", |hub| &hub.repo)),
        };
        let datasets = config.datasets.into_iter();
        let judge = run.spec.reward.process.as_ref();
        let judge = judge.filter(|_| run.spec.mode == Mode::Train);
        Self {
            mode: format!("{:?}", run.spec.mode),
            objective: run.status.as_ref().and_then(|status| status.objective.clone()),
            store: match &run.spec.store.object_store {
                Some(bucket) => format!("{}/{}", bucket.url.trim_end_matches('/'), config.store_path),
                None => config.store_path,
            },
            model: config.model_path,
            datasets: datasets.map(|set| (set.path.clone(), source(&set))).collect(),
            gateway: config.endpoints.gateway,
            engines: format!("{}:{}", config.endpoints.engines_host, config.endpoints.engines_port),
            judge: judge.map(|process| format!("InferencePool {}", process.pool_ref.name)),
            trainer: run.spec.trainer.as_ref().map(|_| config.endpoints.trainer),
            driver: config.endpoints.driver,
        }
    }
}

/// Sandbox pods, which a gateway creates when they are leased, and deletes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxesPlan {
    at_most: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_most_per_node: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    resources: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    image_rewrites: BTreeMap<String, String>,
    user_namespaces: bool,
    allow_unenforced: bool,
    longest_lease: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime_class: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    node_selector: BTreeMap<String, String>,
}

pub fn sandboxes(objects: &Objects) -> Result<BTreeMap<String, SandboxesPlan>, Unreadable> {
    let pools = objects.named::<SandboxPool>("SandboxPool")?.into_iter();
    Ok(pools
        .map(|pool| {
            let overlay = pool
                .spec
                .pod_template
                .clone()
                .and_then(|overlay| overlay.spec)
                .unwrap_or_default();
            let plan = SandboxesPlan {
                at_most: pool.spec.max,
                at_most_per_node: pool.spec.max_per_node,
                resources: of_sandbox(&pool.spec),
                image_rewrites: pool
                    .spec
                    .image_rewrites
                    .iter()
                    .map(|rewrite| (rewrite.from.clone(), rewrite.to.clone()))
                    .collect(),
                user_namespaces: pool.spec.user_namespaces,
                allow_unenforced: pool.spec.allow_unenforced,
                longest_lease: pool.spec.lease.max_ttl.to_string(),
                runtime_class: overlay.runtime_class_name,
                node_selector: overlay.node_selector,
            };
            (pool.metadata.name.clone().unwrap_or_default(), plan)
        })
        .collect())
}
