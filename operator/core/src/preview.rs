//! Previews the objects that the operator creates from manifests, by its own decisions, without a cluster.
//!
//! A manifest takes the same path as in a cluster: a run's decision creates objects, and the pools among them go
//! through their own decisions. `kubectl grpo plan` shows the result; the operator's tests compare it for every example
//! (`docs/examples/golden`).

use std::collections::BTreeSet;

use grpo_crds::{
    GrpoRun, InferencePool, SandboxPool,
    grpo_run::{Attempts, GrpoRunStatus, Phase},
};
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    admission::facts::VolumeTerms,
    desired_object::{DesiredObject, Owner},
    grpo_run::{
        self,
        decision::{ADMITTED, WorkloadStep},
        gpu_claims::gpu_claims,
        observation::{Asked, QueueState, RunObservation, StoreVolume},
    },
    inference_pool::{self, observation::InferencePoolObservation},
    names::RUN,
    sandbox_pool::{self, observation::SandboxPoolObservation},
    settings::Settings,
};

/// Why a manifest has no preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    #[error("failed to read {what}: {source}; correct this field")]
    Unreadable { what: String, source: serde_json::Error },
    #[error("failed to preview {what}: it has no metadata.name; give it one")]
    NoName { what: String },
    #[error("failed to preview {what}: the operator makes objects for GrpoRun, InferencePool and SandboxPool only")]
    NotOurs { what: String },
}

/// The context of a preview.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The namespace of objects without one.
    pub namespace: &'a str,
    pub settings: &'a Settings,
    pub now: Timestamp,
    /// Memory of the largest GPU, in MiB, if nodes report it.
    pub gpu_memory: Option<u64>,
}

/// These manifests as the API server would store them, and all objects that the operator would create first.
pub fn objects(manifests: &[Value], around: &Surroundings<'_>) -> Result<Vec<Value>, PreviewError> {
    let mut objects = Vec::new();
    for manifest in manifests {
        let document = accepted(manifest.clone(), around.namespace, objects.len());
        match document["kind"].as_str() {
            Some("GrpoRun") => of_run(&document, around, &mut objects)?,
            _ => of_pool(document, around, &mut objects)?,
        }
    }
    Ok(objects)
}

/// The state of a run once its pools exist: the phase, and the reason and message of its condition Admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub phase: Option<Phase>,
    pub reason: String,
    pub message: String,
}

/// The state of a run with these objects before it asks for capacity: its first blocker, if any.
pub fn standing(run: &GrpoRun, objects: &[Value], around: &Surroundings<'_>) -> Result<Standing, PreviewError> {
    let mut seen = observed(run.clone(), around)?;
    seen.inference = find(objects, &seen.owner.namespace, seen.inference_name())?;
    seen.sandboxes = find(objects, seen.sandboxes_namespace(), seen.sandboxes_name())?;
    if let Some(judge) = seen.judge_name() {
        seen.judge = find(objects, &seen.owner.namespace, judge)?;
    }
    let status = grpo_run::decide::decide(&seen, around.settings).status;
    let mut conditions = status.conditions.iter();
    let admitted = conditions.find(|condition| condition.type_ == ADMITTED);
    let (reason, message) = admitted.map_or_else(
        || (String::new(), status.message.clone().unwrap_or_default()),
        |admitted| (admitted.reason.clone(), admitted.message.clone()),
    );
    Ok(Standing {
        phase: status.phase,
        reason,
        message,
    })
}

/// An object as the API server returns it.
fn accepted(mut object: Value, namespace: &str, number: usize) -> Value {
    if object["metadata"]["namespace"].is_null() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object["metadata"]["uid"] = json!(format!("uid-of-object-{number:04}"));
    object["metadata"]["generation"] = json!(1);
    object
}

fn of_run(document: &Value, around: &Surroundings<'_>, objects: &mut Vec<Value>) -> Result<(), PreviewError> {
    let run: GrpoRun = read(document)?;
    let (status, children) = first_of_run(run.clone(), around)?;
    let with_status = GrpoRun {
        status: Some(status),
        ..run
    };
    objects.push(written(&with_status, document)?);
    for child in children {
        let object = accepted(child.object, around.namespace, objects.len());
        match object["kind"].as_str() {
            Some("InferencePool" | "SandboxPool") => of_pool(object, around, objects)?,
            _ => objects.push(object),
        }
    }
    Ok(())
}

fn of_pool(object: Value, around: &Surroundings<'_>, objects: &mut Vec<Value>) -> Result<(), PreviewError> {
    let children = match object["kind"].as_str() {
        Some("InferencePool") => first_of_inference_pool(read(&object)?, around)?,
        Some("SandboxPool") => first_of_sandbox_pool(read(&object)?, around)?,
        _ => return Err(PreviewError::NotOurs { what: words(&object) }),
    };
    objects.push(object);
    for child in children {
        objects.push(accepted(child.object, around.namespace, objects.len()));
    }
    Ok(())
}

/// The observation of a newly accepted run, without its pools.
fn observed(run: GrpoRun, around: &Surroundings<'_>) -> Result<RunObservation, PreviewError> {
    let store = match &run.spec.store.volume_claim_template {
        Some(template)
            if template
                .access_modes
                .contains(&grpo_crds::grpo_run::AccessMode::ReadWriteMany) =>
        {
            StoreVolume::Shared
        }
        Some(_) => StoreVolume::OneNode,
        None => StoreVolume::Shared,
    };
    Ok(RunObservation {
        owner: owner(&run)?,
        run,
        attempts: Attempts::default(),
        driver_pods: Vec::new(),
        trainer_pods: Vec::new(),
        inference: None,
        judge: None,
        sandboxes: None,
        store,
        volumes: VolumeTerms::new(),
        provisioning: BTreeSet::new(),
        gpu_memory: around.gpu_memory,
        verdict: None,
        quota: None,
        unbound_engines: Vec::new(),
        engines_on_nodes: false,
        gpu_claims: Vec::new(),
        engines_left: false,
        queue: QueueState::default(),
        priority: None,
        missing: Vec::new(),
        now: around.now,
    })
}

fn first_of_run(run: GrpoRun, around: &Surroundings<'_>) -> Result<(GrpoRunStatus, Vec<DesiredObject>), PreviewError> {
    let seen = RunObservation {
        gpu_memory: None,
        ..observed(run, around)?
    };
    let first = grpo_run::decide::decide(&seen, around.settings);
    let (decision, workload) = match first.workload {
        // Pods and engines of a run in Kueue's queue follow its admission.
        WorkloadStep::Create(workload) => {
            let asked = Asked::granted(&workload);
            let admitted = RunObservation {
                queue: asked
                    .map(|asked| QueueState::Asked(Box::new(asked)))
                    .unwrap_or_default(),
                ..seen.clone()
            };
            (grpo_run::decide::decide(&admitted, around.settings), Some(*workload))
        }
        _ => (first, None),
    };
    let pods = decision.create.into_iter().map(|(_, pod, _)| pod);
    // Created when the run is admitted, and shown before the pool that names them.
    let has_claims = decision
        .objects
        .iter()
        .any(|child| child.kind() == ResourceClaim::kind(&()));
    let claims = match decision.objects.is_empty() || has_claims {
        true => Vec::new(),
        false => gpu_claims(&seen.run, &seen.owner),
    };
    let is_pool = |child: &DesiredObject| child.kind() == InferencePool::kind(&());
    let mut children = decision.objects;
    let at = children.iter().position(is_pool).unwrap_or(children.len());
    children.splice(at..at, claims);
    Ok((
        decision.status,
        children.into_iter().chain(workload).chain(pods).collect(),
    ))
}

fn first_of_inference_pool(pool: InferencePool, around: &Surroundings<'_>) -> Result<Vec<DesiredObject>, PreviewError> {
    let owner = owner(&pool)?;
    let seen = InferencePoolObservation::just_made(pool, owner, around.now);
    let decision = inference_pool::decide::decide(&seen, around.settings);
    let attempt = decision.create.first().map(|(_, facts)| facts.attempt);
    let pods = attempt.map(|attempt| inference_pool::all_pods(&seen, around.settings, attempt));
    Ok(decision.objects.into_iter().chain(pods.into_iter().flatten()).collect())
}

fn first_of_sandbox_pool(pool: SandboxPool, around: &Surroundings<'_>) -> Result<Vec<DesiredObject>, PreviewError> {
    let seen = SandboxPoolObservation {
        owner: owner(&pool)?,
        run: pool.labels().get(RUN).cloned(),
        pool,
        gateway_pods: Vec::new(),
        sandbox_pods: Vec::new(),
        leases: 0,
        report: None,
        now: around.now,
    };
    Ok(sandbox_pool::decide::decide(&seen, around.settings).objects)
}

fn owner<K: Resource<DynamicType = ()>>(object: &K) -> Result<Owner, PreviewError> {
    Owner::of(object).ok_or_else(|| PreviewError::NoName {
        what: K::kind(&()).into_owned(),
    })
}

/// The object with this kind and name.
fn find<K>(objects: &[Value], namespace: &str, name: &str) -> Result<Option<K>, PreviewError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let kind = K::kind(&());
    let is_it = |object: &&Value| {
        let metadata = &object["metadata"];
        object["kind"] == *kind && metadata["name"] == name && metadata["namespace"] == namespace
    };
    objects.iter().find(is_it).map(read).transpose()
}

/// Parses an object, with the defaults that the API server fills in.
fn read<K: DeserializeOwned>(object: &Value) -> Result<K, PreviewError> {
    serde_json::from_value(object.clone()).map_err(|source| PreviewError::Unreadable {
        what: words(object),
        source,
    })
}

fn written(run: &GrpoRun, document: &Value) -> Result<Value, PreviewError> {
    serde_json::to_value(run).map_err(|source| PreviewError::Unreadable {
        what: words(document),
        source,
    })
}

fn words(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("without a name").to_owned();
    format!(
        "{} {}",
        object["kind"].as_str().unwrap_or("an object without a kind"),
        text(&object["metadata"]["name"])
    )
}

#[cfg(test)]
mod tests;
