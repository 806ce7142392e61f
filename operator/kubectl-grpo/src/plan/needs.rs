//! Objects that must exist before the pods of a plan can start: claims, Secrets, ConfigMaps, classes, queues, and the
//! pools that a run refers to.

use super::input::Document;
use super::made::Made;
use grpo_contracts::reason::Reason;
use grpo_crds::GrpoRun;
use grpo_operator_core::grpo_run::references::references;
use k8s_openapi::api::core::v1::Volume;
use serde_json::Value;
use std::collections::BTreeSet;

/// All of them, except those that the operator creates and those in the manifests.
pub fn needs(made: &Made, objects: &[Value], documents: &[Document]) -> Vec<String> {
    let mut wanted = BTreeSet::new();
    for pod in &made.pods {
        let volumes = pod.spec.volumes.iter().flatten();
        wanted.extend(volumes.filter_map(mounted));
        let secrets = pod.spec.image_pull_secrets.iter().flatten();
        wanted.extend(secrets.map(|secret| named("Secret", &secret.name)));
        let class = |kind: &str, name: &Option<String>| name.as_ref().map(|name| named(kind, name));
        wanted.extend(class("PriorityClass", &pod.spec.priority_class_name));
        wanted.extend(class("RuntimeClass", &pod.spec.runtime_class_name));
    }
    for run in &made.runs {
        wanted.extend(pools(run));
        wanted.extend(run.spec.queue_name.as_ref().map(|queue| named("LocalQueue", queue)));
        let found = references(&run.spec).into_iter();
        wanted.extend(found.map(|reference| named(&format!("{:?}", reference.kind), &reference.name)));
    }
    let there =
        |kind: &Value, name: &Value| named(kind.as_str().unwrap_or_default(), name.as_str().unwrap_or_default());
    let made = objects
        .iter()
        .map(|object| there(&object["kind"], &object["metadata"]["name"]));
    let beside = documents.iter().map(|document| named(document.kind(), document.name()));
    let there: BTreeSet<String> = made.chain(beside).collect();
    wanted.difference(&there).cloned().collect()
}

fn named(kind: &str, name: &str) -> String {
    format!("{kind} {name}")
}

fn mounted(volume: &Volume) -> Option<String> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(named("PersistentVolumeClaim", &claim.claim_name));
    }
    if let Some(secret) = &volume.secret {
        return secret.secret_name.as_ref().map(|name| named("Secret", name));
    }
    volume
        .config_map
        .as_ref()
        .map(|config| named("ConfigMap", &config.name))
}

/// Pools that a run refers to.
fn pools(run: &GrpoRun) -> Vec<String> {
    let spec = &run.spec;
    let mut pools = Vec::new();
    let inference = spec.inference.pool_ref.as_ref().filter(|_| spec.mode.needs_engines());
    pools.extend(inference.map(|pool| named("InferencePool", &pool.name)));
    let judge = spec.reward.process.as_ref();
    pools.extend(judge.map(|judge| named("InferencePool", &judge.pool_ref.name)));
    let sandboxes = spec.sandboxes.pool_ref.as_ref().filter(|_| spec.mode.needs_sandboxes());
    pools.extend(sandboxes.map(|pool| named("SandboxPool", &pool.name)));
    pools
}

/// Whether the operator, with this reason, waits for something that a plan cannot see.
pub fn is_unseen(reason: &str) -> bool {
    matches!(
        Reason::named(reason),
        Some(
            Reason::InferencePoolMissing
                | Reason::SandboxPoolMissing
                | Reason::JudgeMissing
                | Reason::StoreMissing
                | Reason::ReferenceMissing
                | Reason::ExternalServerNotProbed
        )
    )
}

/// The reasons of a run that nothing blocks: admission, or Kueue, decides next.
pub fn is_free(run: &GrpoRun, reason: &str) -> bool {
    match Reason::named(reason) {
        Some(Reason::NotEvaluated) => true,
        Some(Reason::WaitsForQuota) => run.spec.queue_name.is_some(),
        _ => false,
    }
}
